"""One answer as server-sent events (WHATWG HTML, 9.2), at the pace at which its client reads.

state  from             a failure is
plain  the start        an HTTP error, as that of any other request
begun  the first chunk  an error event; then the connection is closed without an end of the body,
                        so that half an answer never passes for a whole one
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from redline.apis import DONE_EVENT, event_bytes, responses
from redline.calls import Chunk, Reply, Sink
from redline.httpserver import ClientGoneError, Exchange, header_lines
from redline.serve.http.refusals import Refusal
from redline.serve.http.replies import body_of, events_of
from redline.serve.http.requests import Asked

# Browsers would store the events, and nginx would hold them back.
AT_ONCE = header_lines({"cache-control": "no-cache", "x-accel-buffering": "no"})
STREAM_HEADERS = header_lines({"content-type": "text/event-stream; charset=utf-8"}) + AT_ONCE


class ClientStream(Sink):
    """Writes a stream to the client of an exchange."""

    _exchange: Exchange
    has_begun = False

    async def fail(self, refusal: Refusal) -> None:
        """Breaks off the stream, which has begun, so that it does not pass for a whole one."""
        await self._write(self._error(refusal))
        self._exchange.break_off()

    async def _write(self, data: bytes) -> None:
        """Writes, and returns once the client can take more."""
        try:
            if not self.has_begun:
                self.has_begun = True
                await self._exchange.begin(200, self._fields())
            await self._exchange.write(data)
        except ClientGoneError:
            # The call is being cancelled. If the error were raised here, it would look like a
            # failure of the server from which the backend reads.
            await asyncio.sleep(0)

    def _fields(self) -> bytes:
        """The header lines of a stream that a write begins."""
        return STREAM_HEADERS

    def _error(self, refusal: Refusal) -> bytes:
        """The event of a failure."""
        return event_bytes(refusal.body)


class EventStream(ClientStream):
    """The sink of one request."""

    def __init__(self, exchange: Exchange, asked: Asked) -> None:
        self._exchange = exchange
        self._asked = asked
        # /v1/responses names its events, and its last event states that it is the last.
        self._is_named = asked.request.url == responses.API.path

    async def put(self, chunk: Chunk) -> None:
        for event in events_of(chunk.data, wants_usage=self._asked.wants_usage):
            await self._write(self._encoded(event))

    async def finish(self, reply: Reply) -> None:
        """Ends the stream. If the backend sent no chunk, its whole answer is sent as one."""
        if not self.has_begun:
            await self.put(Chunk("", msgspec.json.decode(body_of(self._asked, reply))))
        await self._exchange.end(b"" if self._is_named else DONE_EVENT)

    def _encoded(self, event: Any) -> bytes:
        name = event.get("type") if self._is_named and isinstance(event, dict) else None
        return event_bytes(event, name if isinstance(name, str) and name.isprintable() else "")
