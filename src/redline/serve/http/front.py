"""A backend as an HTTP server with the OpenAI API.

state    from     a new call        one in flight
open     start    is answered; 503  goes on until its client leaves
                  where it is full
closing  aclose   503               has `grace_s` to end, then gets 503, too
closed   the end  no connection     is cut off
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec

from redline.apis import APIS
from redline.calls import Backend, Call, Health, Reply, Request, Sink
from redline.clock import SYSTEM
from redline.errors import nearest
from redline.httpserver import JSON, Exchange, HttpBounds, HttpServer, header_lines
from redline.process import counted
from redline.serve.http.event_stream import EventStream
from redline.serve.http.refusals import Refusal, busy, hinted, no_model, refusal_of
from redline.serve.http.replies import body_of
from redline.serve.http.requests import Bounds, read_body, read_call

T = TypeVar("T")

CALLS = tuple(api.path for api in APIS)
_ONE_MODEL = "/v1/models/"
# For what is cut off to say so.
_LAST_WORDS_S = 1.0
# Prometheus' text format.
_METRICS_FIELDS = header_lines({"content-type": "text/plain; version=0.0.4; charset=utf-8"})


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
        http_bounds = HttpBounds(
            most_body_bytes=self._bounds.most_body_bytes,
            body_s=self._bounds.body_s,
            unread_s=self._bounds.unread_s,
        )
        super().__init__("the server", (host, port), bounds=http_bounds)
        self._pages = {"/v1/models": self._list_models, "/health": self._health}
        if metrics is not None:
            self._pages["/metrics"] = lambda: metrics().encode()
        self._since = int(SYSTEM.wall_s())
        self._waits: set[asyncio.Timeout] = set()
        self._is_empty = asyncio.Event()
        self._is_empty.set()
        self.in_flight = 0

    async def _drain(self) -> None:
        """Lets what is in flight end within grace_s; then it is answered with 503."""
        await self._emptied(self._bounds.grace_s)
        for wait in self._waits:
            wait.reschedule(0.0)
        await self._emptied(_LAST_WORDS_S)

    async def _emptied(self, within_s: float) -> None:
        """Returns once nothing is in flight, or the time is up."""
        try:
            async with asyncio.timeout(within_s):
                await self._is_empty.wait()
        except TimeoutError:
            pass

    async def _handle(self, exchange: Exchange) -> None:
        try:
            if exchange.path in CALLS:
                await self._take(exchange)
            else:
                page = self._page(exchange)
                fields = _METRICS_FIELDS if exchange.path == "/metrics" else JSON
                exchange.respond(200, page, fields)
        except Refusal as refusal:
            refusal.send(exchange)

    def _page(self, exchange: Exchange) -> bytes:
        path = exchange.path
        page = self._pages.get(path)
        if page is None and (name := path.removeprefix(_ONE_MODEL)) != path:
            page = partial(self._show_model, name)
        if page is None:
            near = nearest(path, [*CALLS, *self._pages])
            message = hinted(f"Unknown URL: {exchange.method} {path}", near)
            raise Refusal(message, status=404, code="unknown_url")
        if exchange.method not in ("GET", "HEAD"):
            raise _wrong_method(exchange, "GET, HEAD")
        return page()

    async def _take(self, exchange: Exchange) -> None:
        """Answers one call, where there is room for it."""
        if exchange.method != "POST":
            raise _wrong_method(exchange, "POST")
        if self.is_draining:
            raise _closing()
        if self.in_flight >= self._bounds.most_requests:
            in_flight = counted(self.in_flight, "request is", "requests are")
            raise busy(f"{in_flight} in flight already.", "overloaded")
        self.in_flight += 1
        self._is_empty.clear()
        try:
            await self._answer(exchange)
        finally:
            self.in_flight -= 1
            if not self.in_flight:
                self._is_empty.set()

    async def _answer(self, exchange: Exchange) -> None:
        raw = await self._until_closed(read_body(exchange))
        asked = read_call(exchange.path, raw, self._models)
        del raw
        call = Call(priority=asked.priority)
        try:
            if not asked.is_stream:
                reply = await self._send(asked.request, call)
                exchange.respond(reply.status, body_of(asked, reply))
                # In flight until its client has taken it.
                await exchange.drained()
                return
            stream = EventStream(exchange, asked)
            try:
                reply = await self._send(asked.request, call, stream)
            except Refusal as refusal:
                if not stream.has_begun:
                    raise
                await stream.fail(refusal)
                return
            await stream.finish(reply)
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

    def _list_models(self) -> bytes:
        models = [self._about(name) for name in self._models]
        return msgspec.json.encode({"object": "list", "data": models})

    def _show_model(self, name: str) -> bytes:
        if name not in self._models:
            raise no_model(name, self._models)
        return msgspec.json.encode(self._about(name))

    def _about(self, name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": self._since, "owned_by": "redline"}

    def _health(self) -> bytes:
        if self.is_draining:
            raise _closing()
        if self._backend.load(SYSTEM.now_s()).state is Health.GONE:
            raise busy("The backend is down.", "backend_down")
        return msgspec.json.encode({"status": "ok"})


def _closing() -> Refusal:
    return busy("The server is shutting down.", "shutting_down")


def _wrong_method(exchange: Exchange, right: str) -> Refusal:
    message = f"{exchange.path} takes {right}, not {exchange.method}."
    return Refusal(message, status=405, code="method_not_allowed", headers={"allow": right})
