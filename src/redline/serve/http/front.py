"""A backend as an HTTP server with the OpenAI API.

state    from     a new call        one in flight
open     start    is answered; 503  goes on until its client leaves
                  where it is full
closing  aclose   503               has `grace_s` to end, then gets 503, too
closed   the end  no connection     is cut off
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from aiohttp import web

from redline.apis import APIS
from redline.calls import Backend, Call, Cost, Reply, Request, Sink
from redline.clock import SYSTEM
from redline.errors import nearest
from redline.httpserver import HttpServer
from redline.process import counted
from redline.serve.http.event_stream import EventStream, cut_off
from redline.serve.http.refusals import Refusal, busy, hinted, json_response, no_model, refusal_of
from redline.serve.http.replies import body_of
from redline.serve.http.requests import Bounds, read_body, read_call

T = TypeVar("T")

CALLS = tuple(api.path for api in APIS)
_ONE_MODEL = "/v1/models/"
# On top of unread_s for a long answer.
_SLOWEST_BYTES_PER_S = 64 * 1024
# For what is cut off to say so, and for what was written to go out.
_LAST_WORDS_S = 1.0


class Front(HttpServer):
    """Publishes `backend` while it is entered, or from `start` to `aclose`; starts once.

    models: what GET /v1/models names, and all that a call may name; empty for any.
    metrics: the text of GET /metrics, for Prometheus.
    Runs inside the loop that starts it. The backend is closed by its owner, and not here.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        models: Sequence[str] = (),
        host: str = "127.0.0.1",
        port: int = 0,
        metrics: Callable[[], str] | None = None,
        bounds: Bounds | None = None,
    ) -> None:
        self._backend = backend
        self._models = tuple(models)
        self._bounds = bounds if bounds is not None else Bounds()
        super().__init__("the server", (host, port), most_body_bytes=self._bounds.most_body_bytes)
        self._pages = {"/v1/models": self._list_models, "/health": self._health}
        if metrics is not None:
            self._pages["/metrics"] = partial(_for_prometheus, metrics)
        self._since = int(SYSTEM.wall_s())
        self._waits: set[asyncio.Timeout] = set()
        self._is_empty = asyncio.Event()
        self._is_empty.set()
        self._is_closing = False
        self.in_flight = 0

    async def aclose(self) -> None:
        """Stops listening, and ends what is in flight within grace_s and a few seconds.

        A second call does nothing.
        """
        listener, self._listener = self._listener, None
        if listener is None or self._web is None:
            return
        listener.close()
        self._is_closing = True
        await self._emptied(self._bounds.grace_s)
        for wait in self._waits:
            wait.reschedule(0.0)
        await self._emptied(_LAST_WORDS_S)
        found = [connection.transport for connection in self._web.connections]
        transports = [transport for transport in found if transport is not None]
        # Idle connections end here; shutdown would wait for each of them.
        self._web.pre_shutdown()
        await self._web.shutdown(0.1)
        until_s = SYSTEM.now_s() + _LAST_WORDS_S
        # No transport tells anybody that its buffer has become empty.
        while any(t.get_write_buffer_size() for t in transports) and SYSTEM.now_s() < until_s:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        for transport in transports:
            transport.abort()
        await listener.wait_closed()

    async def _emptied(self, within_s: float) -> None:
        """Returns once nothing is in flight, or the time is up."""
        try:
            async with asyncio.timeout(within_s):
                await self._is_empty.wait()
        except TimeoutError:
            pass

    async def _handle(self, http: web.BaseRequest) -> web.StreamResponse:
        try:
            if http.path in CALLS:
                return await self._take(http)
            response = self._page(http)
        except Refusal as refusal:
            response = refusal.response()
        except ConnectionError:
            # The client left while its answer was being written.
            return web.Response()
        if self._is_closing:
            response.force_close()
        return response

    def _page(self, http: web.BaseRequest) -> web.Response:
        page = self._pages.get(http.path)
        if page is None and (name := http.path.removeprefix(_ONE_MODEL)) != http.path:
            page = partial(self._show_model, name)
        if page is None:
            near = nearest(http.path, [*CALLS, *self._pages])
            message = hinted(f"Unknown URL: {http.method} {http.path}", near)
            raise Refusal(message, status=404, code="unknown_url")
        if http.method not in ("GET", "HEAD"):
            raise _wrong_method(http, "GET, HEAD")
        return page()

    async def _take(self, http: web.BaseRequest) -> web.StreamResponse:
        """Answers one call, where there is room for it."""
        if http.method != "POST":
            raise _wrong_method(http, "POST")
        if self._is_closing:
            raise _closing()
        if self.in_flight >= self._bounds.most_requests:
            in_flight = counted(self.in_flight, "request is", "requests are")
            raise busy(f"{in_flight} in flight already.", "overloaded")
        self.in_flight += 1
        self._is_empty.clear()
        try:
            return await self._answer(http)
        finally:
            self.in_flight -= 1
            if not self.in_flight:
                self._is_empty.set()

    async def _answer(self, http: web.BaseRequest) -> web.StreamResponse:
        raw = await self._until_closed(read_body(http, self._bounds))
        asked = read_call(http.path, raw, self._models)
        del raw
        call = Call(priority=asked.priority)
        try:
            if not asked.is_stream:
                reply = await self._send(asked.request, call)
                return await self._write(http, json_response(body_of(asked, reply), reply.status))
            stream = EventStream(http, asked, self._bounds.unread_s)
            try:
                reply = await self._send(asked.request, call, stream)
            except Refusal as refusal:
                if not stream.has_begun:
                    raise
                return await stream.fail(refusal)
            return await stream.finish(reply)
        finally:
            call.let_go()

    async def _send(self, request: Request, call: Call, sink: Sink | None = None) -> Reply:
        """The backend's reply. Raises Refusal where there is none."""
        outcome = await self._until_closed(self._backend.send(request, call, sink))
        if outcome.error is not None:
            raise refusal_of(outcome.error)
        assert outcome.reply is not None
        return outcome.reply

    async def _until_closed(self, waiting: Awaitable[T]) -> T:
        """What it waits for. Raises Refusal where the front closes before that."""
        wait = asyncio.timeout(None)
        self._waits.add(wait)
        try:
            async with wait:
                return await waiting
        except TimeoutError:
            if not wait.expired():
                raise
            raise _closing() from None
        finally:
            self._waits.discard(wait)

    async def _write(self, http: web.BaseRequest, response: web.Response) -> web.StreamResponse:
        """Writes a whole answer, which is in flight until its client has taken it."""
        if self._is_closing:
            response.force_close()
        size = response.content_length or 0
        try:
            async with asyncio.timeout(self._bounds.unread_s + size / _SLOWEST_BYTES_PER_S):
                await response.prepare(http)
                await response.write_eof()
        except TimeoutError:
            cut_off(http)
        return response

    def _list_models(self) -> web.Response:
        models = [self._about(name) for name in self._models]
        return json_response({"object": "list", "data": models})

    def _show_model(self, name: str) -> web.Response:
        if name not in self._models:
            raise no_model(name, self._models)
        return json_response(self._about(name))

    def _about(self, name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": self._since, "owned_by": "redline"}

    def _health(self) -> web.Response:
        if self._is_closing:
            raise _closing()
        if self._backend.room(Cost(), SYSTEM.now_s()) == math.inf:
            raise busy("The backend is down.", "backend_down")
        return json_response({"status": "ok"})


def _closing() -> Refusal:
    return busy("The server is shutting down.", "shutting_down")


def _wrong_method(http: web.BaseRequest, right: str) -> Refusal:
    message = f"{http.path} takes {right}, not {http.method}."
    return Refusal(message, status=405, code="method_not_allowed", headers={"allow": right})


def _for_prometheus(metrics: Callable[[], str]) -> web.Response:
    """Prometheus' text format, version 0.0.4."""
    headers = {"content-type": "text/plain; version=0.0.4; charset=utf-8"}
    return web.Response(body=metrics().encode(), headers=headers)
