"""The HTTP side of files and batches: /v1/files and /v1/batches.

These requests are not counted as received, and no limit holds them. They meet the faults of the
settings: 429, 503, 500 and stall before anything is done; reset, half and notjson when it is done
and only the answer is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

from aiohttp import BodyPartReader, web

from redline.clock import Clock
from redline.sim.answers import Answers, BadCall, Object
from redline.sim.batches.batches import Batches
from redline.sim.settings import SimSettings
from redline.sim.wire import (
    CLOSED,
    HTML_PAGE,
    MAX_STALL_S,
    Reply,
    encode,
    error_reply,
    half,
    json_reply,
    reset,
)

_FILES, _BATCHES = "/v1/files", "/v1/batches"
_BEFORE = {"429": 429, "500": 500, "503": 503}
_BINARY = "application/octet-stream"

Write = Callable[[web.BaseRequest, Reply], web.StreamResponse]


class BatchDoor:
    """Answers requests for files and batches.

    refuse_key: raises BadCall where the key is wrong. write: sends a reply.
    """

    def __init__(
        self,
        settings: SimSettings,
        answers: Answers,
        clock: Clock,
        refuse_key: Callable[[web.BaseRequest], None],
        write: Write,
    ) -> None:
        self._batches = Batches(settings, answers)
        self._faults = settings.faults
        self._fault_rng = Random(f"{settings.seed} batch door")
        self._clock = clock
        self._refuse_key = refuse_key
        self._write = write

    @staticmethod
    def takes(path: str) -> bool:
        """The path is one of a file or a batch."""
        return f"{path}/".startswith((f"{_FILES}/", f"{_BATCHES}/"))

    def stats(self) -> dict[str, int]:
        """What stands under `batches` in GET /sim/stats."""
        return self._batches.as_dict(self._clock.now_s(), self._clock.wall_s())

    async def serve(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answers one request."""
        try:
            self._refuse_key(request)
            fault = self._faults.draw(self._fault_rng)
            if fault == "stall":
                await asyncio.sleep(MAX_STALL_S)
                return CLOSED
            if fault in _BEFORE:
                text = "The request failed (injected fault)."
                return self._write(request, error_reply(_BEFORE[fault], text, "server_error"))
            reply = await self._reply(request)
            if fault is not None:
                return self._lose(request, reply, fault)
            return self._write(request, reply)
        except BadCall as error:
            return self._write(request, refusal(error))
        except ConnectionError:
            # The client left while its reply was being written.
            return CLOSED

    def _lose(self, request: web.BaseRequest, reply: Reply, fault: str) -> web.StreamResponse:
        """What was asked for is done; the client does not hear so."""
        if fault == "notjson":
            return self._write(request, Reply(200, HTML_PAGE, content_type="text/html"))
        transport = request.transport
        if fault == "half" and transport is not None:
            raw = encode(reply, self._clock.wall_s(), is_kept_alive=True)
            transport.write(half(raw, len(reply.body)))
            transport.close()
        else:
            reset(request)
        return CLOSED

    async def _reply(self, request: web.BaseRequest) -> Reply:
        """Raises BadCall."""
        method, path = request.method, request.path.rstrip("/")
        if method == "POST" and path == _FILES:
            return json_reply(await self._upload(request))
        if path.startswith(_FILES):
            return self._file(method, path.removeprefix(_FILES).strip("/"))
        times = (self._clock.now_s(), self._clock.wall_s())
        batches = self._batches
        if path == _BATCHES:
            if method == "POST":
                return json_reply(batches.create(await request.read(), *times))
            if method == "GET":
                return json_reply(batches.listed(request.query, *times))
        batch_id, _, verb = path.removeprefix(_BATCHES).strip("/").partition("/")
        if method == "POST" and verb == "cancel":
            return json_reply(batches.cancel(batch_id, *times))
        if method == "GET" and batch_id and not verb:
            return json_reply(batches.look(batch_id, *times))
        raise _unknown(method, path)

    def _file(self, method: str, rest: str) -> Reply:
        """rest: of the path, such as `file-sim1/content`."""
        batches = self._batches
        file_id, _, verb = rest.partition("/")
        if method == "GET" and not file_id:
            return json_reply(batches.files())
        if method == "GET" and verb == "content":
            return Reply(200, batches.file(file_id).data, content_type=_BINARY)
        if method == "GET" and not verb:
            return json_reply(batches.file(file_id).shown())
        if method == "DELETE" and file_id and not verb:
            return json_reply(batches.delete(file_id))
        raise _unknown(method, f"{_FILES}/{rest}")

    async def _upload(self, request: web.BaseRequest) -> Object:
        if not request.headers.get("content-type", "").startswith("multipart/form-data"):
            raise BadCall("A file is uploaded as multipart/form-data.")
        name, data, purpose = "", b"", ""
        try:
            async for part in await request.multipart():
                if isinstance(part, BodyPartReader) and part.name == "file":
                    name, data = part.filename or "", bytes(await part.read())
                elif isinstance(part, BodyPartReader) and part.name == "purpose":
                    purpose = (await part.read()).decode("utf-8", "replace")
        except web.HTTPRequestEntityTooLarge as error:
            raise BadCall(f"The file is too large: {error.text}", status=413) from None
        except (ValueError, web.RequestPayloadError) as error:
            raise BadCall(f"The form could not be read: {error}") from None
        return self._batches.upload(name, purpose, data, self._clock.wall_s())


def refusal(error: BadCall) -> Reply:
    """The reply to a request that is itself wrong."""
    return error_reply(error.status, error.message, "invalid_request_error", code=error.code)


def _unknown(method: str, path: str) -> BadCall:
    return BadCall(f"Unknown URL: {method} {path}", status=404, code="unknown_url")
