"""Calls the Batch API in OpenAI's form: uploads files, creates batches, downloads results.

Providers count these requests separately from requests to models, so the endpoint's limits do not
apply. They are retried, except for the deletion of a file and the creation of a batch.
If the response to a creation is lost, the batch may exist, and a second batch would cost as much
again, so the caller looks for the batch before creating another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import msgspec
from msgspec.structs import asdict

from redline.apis import BATCHES, FILES, WINDOW, Batch, BatchRequest
from redline.calls.client.retry import Retry, RetryPolicy
from redline.calls.http import HttpBackend
from redline.calls.wire import Endpoint, Timeouts
from redline.errors import BadReply, Rejected, Retryable
from redline.limits import Limits
from redline.process import in_thread
from redline.waist import Backend, Call, Request

# 50,000 embeddings of 3,072 numbers take 2 GB; results are streamed to disk.
_MOST_RESULT_BYTES = 8 * 1024**3
# At 1 MB/s, an upload of 100 MB takes 100 s, and a download of 1 GB 17 minutes.
_TRANSFER_S = 3600.0
_PAGE = 100

T = TypeVar("T")


class File(msgspec.Struct):
    """A file at the provider."""

    id: str
    status: Any = None

    @property
    def is_pending(self) -> bool:
        """Whether the file is still being processed: Azure then creates no batch from it."""
        return self.status in ("pending", "running")


class _Page(msgspec.Struct):
    data: list[Batch]
    has_more: bool = False


class BatchApi:
    """Files and batches of one endpoint. A failed request raises CallError or NoEndpoint."""

    def __init__(self, endpoint: Endpoint, retry: RetryPolicy) -> None:
        own = msgspec.structs.replace(endpoint, limits=Limits(), max_reply_bytes=_MOST_RESULT_BYTES)
        slow = Timeouts(
            connect_s=endpoint.timeouts.connect_s, first_byte_s=_TRANSFER_S, attempt_s=_TRANSFER_S
        )
        self._retry = retry
        self._small = HttpBackend(own)
        self.mask = self._small.mask
        self._large = HttpBackend(msgspec.structs.replace(own, timeouts=slow))
        self._patient: Backend = Retry(self._small, retry)
        self._patient_large: Backend = Retry(self._large, retry)

    async def aclose(self) -> None:
        """Closes all connections."""
        await self._small.aclose()
        await self._large.aclose()

    async def upload(self, name: str, data: bytes) -> File:
        """Uploads a file. Returns its id and its state at the provider."""
        boundary = uuid4().hex
        form = _form(boundary, name, data)
        headers = {"Content-Type": f"multipart/form-data; boundary={boundary}"}
        request = Request(url=FILES, body=form, headers=headers)
        return await self._asked(self._patient_large, request, File)

    async def file(self, file_id: str) -> File:
        """Returns the current state of the file."""
        request = Request(method="GET", url=f"{FILES}/{file_id}")
        return await self._asked(self._patient, request, File)

    async def make(self, file_id: str, url: str, metadata: Mapping[str, str]) -> Batch:
        """Creates a batch in one attempt; after a Retryable error, the batch may exist."""
        body = asdict(BatchRequest(file_id, url, WINDOW, dict(metadata)))
        call = Call(once=True)
        return await self._asked(self._small, Request(url=BATCHES, body=body), Batch, call)

    async def look(self, batch_id: str) -> Batch:
        """Returns the current state of the batch."""
        request = Request(method="GET", url=f"{BATCHES}/{batch_id}")
        return await self._asked(self._patient, request, Batch)

    async def cancel(self, batch_id: str) -> Batch:
        """Cancels the batch and returns it. Raises Rejected if it has already ended."""
        request = Request(url=f"{BATCHES}/{batch_id}/cancel")

        async def ask() -> Batch:
            try:
                return await self._asked(self._small, request, Batch)
            except Retryable as error:
                if error.status != 409:
                    raise
                # OpenAI sends 409 for a batch that has ended, not for a temporary conflict.
                raise Rejected(error.what, where=error.where, status=409) from error

        return await self._patiently(ask)

    async def page(self, after: str | None = None) -> tuple[list[Batch], bool]:
        """Returns up to 100 batches of the account, newest first, and whether older ones follow.

        after: the id of the batch to continue after; None for the first page.
        """
        behind = "" if after is None else f"&after={after}"
        request = Request(method="GET", url=f"{BATCHES}?limit={_PAGE}{behind}")
        page = await self._asked(self._patient, request, _Page)
        return page.data, page.has_more

    async def download(self, file_id: str, path: Path) -> None:
        """Downloads the file to `path`, replacing its contents; may raise OSError as well."""
        await self._patiently(partial(self._download, file_id, path))

    async def _download(self, file_id: str, path: Path) -> None:
        file = await in_thread(path.open, "wb")
        try:

            async def take(chunk: bytes) -> None:
                await in_thread(file.write, chunk)

            request = Request(method="GET", url=f"{FILES}/{file_id}/content")
            await self._large.download(request, Call(), take)
        finally:
            await in_thread(file.close)

    async def delete(self, file_id: str) -> None:
        """Deletes the file at the provider, in one attempt."""
        request = Request(method="DELETE", url=f"{FILES}/{file_id}")
        await self._asked(self._small, request, dict)

    def pause_s(self, attempt: int, error: Retryable) -> float:
        """Returns the seconds to wait after the failed attempt with this number, counted from 0."""
        return max(error.retry_after_s or 0.0, self._retry.pause_s(attempt))

    async def _patiently(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Returns the result of `ask`; after a Retryable error, retries up to max_retries times."""
        attempt = 0
        while True:
            try:
                return await ask()
            except Retryable as error:
                if attempt >= self._retry.max_retries:
                    raise
                await asyncio.sleep(self.pause_s(attempt, error))
            attempt += 1

    async def _asked(
        self, backend: Backend, request: Request, kind: type[T], call: Call | None = None
    ) -> T:
        """Sends a request; returns the response's JSON as `kind`, masked as `Mask.body` does."""
        call = call or Call()
        outcome = await backend.send(request, call)
        call.let_go()
        if outcome.error is not None:
            raise outcome.error
        reply: Any = outcome.reply
        try:
            return msgspec.json.decode(self.mask.body(reply.body), type=kind)
        except msgspec.DecodeError as error:
            raise BadReply(
                f"the answer does not match the format of {request.url.partition('?')[0]}: {error}",
                where=f"endpoint {outcome.endpoint}",
                hint="--via batch needs an endpoint with OpenAI's Batch API",
            ) from error


def _form(boundary: str, name: str, data: bytes) -> bytes:
    """Returns a multipart/form-data body with `purpose` and `file` (RFC 7578)."""
    line = f"--{boundary}\r\nContent-Disposition: form-data; name="
    head = (
        f'{line}"purpose"\r\n\r\nbatch\r\n'
        f'{line}"file"; filename="{name}"\r\nContent-Type: application/jsonl\r\n\r\n'
    )
    return b"".join((head.encode(), data, f"\r\n--{boundary}--\r\n".encode()))
