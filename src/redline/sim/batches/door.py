"""Serves files and batches over HTTP: /v1/files and /v1/batches.

These requests are not counted as received, and no rate limit applies to them. The faults of the
settings do: 429, 503, 500 and stall occur before the request is carried out; reset, half and
notjson occur after it, so that only the reply is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

from redline.apis import BATCHES, FILES
from redline.clock import Clock
from redline.httpserver import BodyError, Exchange, header_lines, read_form
from redline.sim.answers import Answers, BadCall, Object
from redline.sim.batches.batches import Batches
from redline.sim.faults import Faults
from redline.sim.settings import SimSettings
from redline.sim.wire import (
    MAX_STALL_S,
    NOT_JSON,
    Reply,
    error_reply,
    json_reply,
    send,
    send_first_half,
)

_BEFORE = ("429", "500", "503")
_BINARY = header_lines({"content-type": "application/octet-stream"})


class BatchDoor:
    """Answers requests for files and batches.

    refuse_key: raises BadCall if the request's key is missing or wrong.
    """

    def __init__(
        self,
        settings: SimSettings,
        answers: Answers,
        clock: Clock,
        refuse_key: Callable[[Exchange], None],
    ) -> None:
        self._batches = Batches(settings, answers)
        self._fault_rng = Random(f"{settings.seed} batch door")
        self._clock = clock
        self._refuse_key = refuse_key

    @staticmethod
    def takes(path: str) -> bool:
        """Returns whether requests for this path are served here."""
        return f"{path}/".startswith((f"{FILES}/", f"{BATCHES}/"))

    def disturb(self, faults: Faults) -> None:
        """Injects these faults from now on: into requests, and into the lines of new batches."""
        self._batches.reader.disturb(faults)

    def stats(self) -> dict[str, int]:
        """Returns the counters that `GET /sim/stats` shows as `batches`."""
        return self._batches.as_dict(self._clock.now_s(), self._clock.wall_s())

    async def serve(self, exchange: Exchange) -> None:
        """Answers one request."""
        try:
            self._refuse_key(exchange)
            fault = self._batches.reader.faults.draw(self._fault_rng)
            if fault == "stall":
                await asyncio.sleep(MAX_STALL_S)
                exchange.close()
                return
            if fault in _BEFORE:
                text = "The request failed (injected fault)."
                send(exchange, error_reply(int(fault), text, "server_error"))
                return
            reply = await self._reply(exchange)
            if fault == "half":
                send_first_half(exchange, reply)
            elif fault == "reset":
                exchange.reset()
            else:
                send(exchange, NOT_JSON if fault == "notjson" else reply)
        except BadCall as error:
            send(exchange, refusal(error))

    async def _reply(self, exchange: Exchange) -> Reply:
        """Carries out the request and returns its reply. Raises BadCall if it is invalid."""
        method, path = exchange.method, exchange.path.rstrip("/")
        batches, times = self._batches, (self._clock.now_s(), self._clock.wall_s())
        match [method, *path.split("/")[2:]]:
            case ["POST", "files"]:
                return json_reply(await self._upload(exchange))
            case ["GET", "files"]:
                return json_reply(batches.files())
            case ["GET", "files", file_id]:
                return json_reply(batches.file(file_id).shown)
            case ["GET", "files", file_id, "content"]:
                return Reply(200, batches.file(file_id).data, _BINARY)
            case ["DELETE", "files", file_id]:
                return json_reply(batches.delete(file_id))
            case ["POST", "batches"]:
                return json_reply(batches.create(await read_body(exchange), *times))
            case ["GET", "batches"]:
                return json_reply(batches.listed(exchange.query, *times))
            case ["GET", "batches", batch_id]:
                return json_reply(batches.look(batch_id, *times))
            case ["POST", "batches", batch_id, "cancel"]:
                return json_reply(batches.cancel(batch_id, *times))
        raise BadCall(f"Unknown URL: {method} {path}", status=404, code="unknown_url")

    async def _upload(self, exchange: Exchange) -> Object:
        try:
            parts = await read_form(exchange)
        except BodyError as error:
            raise bad_body(error) from None
        file, purpose = parts.get("file"), parts.get("purpose")
        return self._batches.upload(
            "" if file is None else file.filename,
            "" if purpose is None else purpose.data.decode("utf-8", "replace"),
            b"" if file is None else bytes(file.data),
            self._clock.wall_s(),
        )


async def read_body(exchange: Exchange) -> bytes:
    """Reads the complete body. Raises BadCall if it is too large, malformed or late."""
    try:
        return await exchange.body()
    except BodyError as error:
        raise bad_body(error) from None


def bad_body(error: BodyError) -> BadCall:
    """Returns the error for a body that could not be read."""
    status = 400 if error.status == 415 else error.status
    return BadCall(f"The request could not be read: {error.reason}.", status=status)


def refusal(error: BadCall) -> Reply:
    """Returns the reply to an invalid request."""
    return error_reply(error.status, error.message, "invalid_request_error", code=error.code)
