"""Streams an answer as server-sent events (WHATWG HTML, 9.2), as fast as its client reads.

state  from             a failure is sent as
plain  the start        an HTTP error, as for any other request
begun  the first chunk  an error event; then the connection is closed without the end of the body,
                        so that a partial answer is never taken for a complete one
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

# Without these headers, browsers would store the events, and nginx would buffer them.
AT_ONCE = header_lines({"cache-control": "no-cache", "x-accel-buffering": "no"})
STREAM_HEADERS = header_lines({"content-type": "text/event-stream; charset=utf-8"}) + AT_ONCE


class ClientStream(Sink):
    """Writes a stream to the client of an exchange."""

    _exchange: Exchange
    has_begun = False

    async def fail(self, refusal: Refusal) -> None:
        """Sends an error event in a stream that has begun, and closes the connection.

        The end of the body is missing, so the client sees that the answer is incomplete.
        """
        await self._write(self._error(refusal))
        self._exchange.break_off()

    async def _write(self, data: bytes) -> None:
        """Writes the data, and returns once the client can take more."""
        try:
            if not self.has_begun:
                self.has_begun = True
                await self._exchange.begin(200, self._fields())
            await self._exchange.write(data)
        except ClientGoneError:
            # The call is being cancelled. Raised here, the error would look to the backend like a
            # failure of its own server.
            await asyncio.sleep(0)

    def _fields(self) -> bytes:
        """Returns the header lines of a stream that begins with its first write."""
        return STREAM_HEADERS

    def _error(self, refusal: Refusal) -> bytes:
        """Returns the error event for a refusal."""
        return event_bytes(refusal.body)


class EventStream(ClientStream):
    """The sink of one request in the OpenAI API; writes its chunks as events."""

    def __init__(self, exchange: Exchange, asked: Asked) -> None:
        self._exchange = exchange
        self._asked = asked
        # Events of /v1/responses have names, and the last one is recognizable without [DONE].
        self._is_named = asked.request.url == responses.API.path

    async def put(self, chunk: Chunk) -> None:
        for event in events_of(chunk.data, wants_usage=self._asked.wants_usage):
            await self._write(self._encoded(event))

    async def finish(self, reply: Reply) -> None:
        """Ends the stream. If the backend sent no chunk, its whole answer is sent as one.

        Raises Refusal, before anything is sent, if JSON cannot represent that answer.
        """
        if not self.has_begun:
            await self.put(Chunk("", msgspec.json.decode(body_of(self._asked, reply))))
        await self._exchange.end(b"" if self._is_named else DONE_EVENT)

    def _encoded(self, event: Any) -> bytes:
        name = event.get("type") if self._is_named and isinstance(event, dict) else None
        return event_bytes(event, name if isinstance(name, str) and name.isprintable() else "")
