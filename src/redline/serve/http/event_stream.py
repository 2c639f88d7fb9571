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
from aiohttp import web

from redline.apis import DONE_EVENT, RESPONSES, event_bytes
from redline.calls import Chunk, Reply
from redline.serve.http.refusals import Refusal
from redline.serve.http.replies import body_of, events_of
from redline.serve.http.requests import Asked

_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    # nginx would hold the events back.
    "x-accel-buffering": "no",
}


class EventStream:
    """The sink of one request. Made in the task that answers it."""

    def __init__(self, http: web.BaseRequest, asked: Asked, unread_s: float) -> None:
        self._http = http
        self._asked = asked
        self._unread_s = unread_s
        self._task = asyncio.current_task()
        self._response = web.StreamResponse(headers=_HEADERS)
        # /v1/responses names its events, and the last one says itself that it is the last.
        self._is_named = asked.request.url == RESPONSES.path
        self.has_begun = False

    async def put(self, chunk: Chunk) -> None:
        for event in events_of(chunk.data, wants_usage=self._asked.wants_usage):
            await self._write(self._encoded(event))

    async def finish(self, reply: Reply) -> web.StreamResponse:
        """Ends the stream. A backend that gave no chunk has its whole answer sent as one."""
        if not self.has_begun:
            await self.put(Chunk("", msgspec.json.decode(body_of(self._asked, reply))))
        await self._write(b"" if self._is_named else DONE_EVENT, is_last=True)
        return self._response

    async def fail(self, refusal: Refusal) -> web.StreamResponse:
        """Breaks off the stream, which has begun."""
        await self._write(self._encoded(refusal.body))
        if self._http.transport is not None:
            self._http.transport.close()
        return self._response

    def _encoded(self, event: Any) -> bytes:
        name = event.get("type") if self._is_named and isinstance(event, dict) else None
        return event_bytes(event, name if isinstance(name, str) and name.isprintable() else "")

    async def _write(self, data: bytes, *, is_last: bool = False) -> None:
        """Returns once the client has room for more. Cancels the call of one that is gone."""
        try:
            async with asyncio.timeout(self._unread_s):
                if not self.has_begun:
                    self.has_begun = True
                    await self._response.prepare(self._http)
                await (self._response.write_eof if is_last else self._response.write)(data)
        except (ConnectionError, TimeoutError):
            # Raised here it would be taken for a failure of what the backend itself reads from.
            cut_off(self._http)
            if self._task is not None:
                self._task.cancel()
            await asyncio.sleep(0)


def cut_off(http: web.BaseRequest) -> None:
    """Ends the connection of a client that does not read; what it has not taken is dropped."""
    if http.transport is not None:
        http.transport.abort()
