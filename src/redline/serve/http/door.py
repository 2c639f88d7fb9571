"""Implements what all fronts share: paths, pages, bounds on calls, and an orderly shutdown.

state    from     a new call                         a call in flight
open     start    is answered; gets 503 beyond       continues unless its client disconnects
                  `most_requests`
closing  aclose   gets 503 on an open connection;    has `grace_s` to end, then gets 503 or, in a
                  new connections are refused        stream that has begun, an error event
closed   after    cannot connect                     is cut off
         closing
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from redline.clock import SYSTEM
from redline.errors import nearest
from redline.httpserver import JSON, PROMETHEUS, Address, Exchange, HttpServer, State
from redline.process import counted
from redline.serve.http.refusals import Refusal, busy, hinted, no_model, shortened
from redline.serve.http.requests import CALLS, Bounds, read_of
from redline.serve.http.routes import Answer, Routes, wrong_method

if TYPE_CHECKING:
    from ssl import SSLContext

T = TypeVar("T")

Page = Callable[[], bytes]
_ONE_MODEL = "/v1/models/"
# Time for requests that are cut off to send their 503.
_LAST_WORDS_S = 1.0


class Door(HttpServer):
    """A server of calls, in an `async with` block or from `start` to `aclose`; starts only once.

    models: the names that GET /v1/models lists. address: host and port. pages: by path, functions
    that return the body for GET, besides models and health; `/metrics` is served as Prometheus
    text. calls: the paths of calls. routes: further paths. ssl: for HTTPS; None for HTTP.
    in_flight: the number of calls and of requests to routes. The server runs in the event loop
    that starts it.
    """

    def __init__(
        self,
        *,
        models: Sequence[str],
        address: tuple[str, int] | Address,
        pages: Mapping[str, Page],
        bounds: Bounds | None,
        calls: Collection[str] = CALLS,
        routes: Routes | None = None,
        ssl: SSLContext | None = None,
    ) -> None:
        self._models = tuple(models)
        self._routes = routes or Routes()
        self._bounds = msgspec.structs.replace(
            bounds or Bounds(), bodies_by_path=self._routes.bodies_by_path
        )
        super().__init__("the server", address, bounds=self._bounds, ssl=ssl)
        self._calls = calls
        self._pages = {
            "/v1/models": self._list_models,
            "/health": self._health,
            "/healthz": self._health,
            **pages,
        }
        self._since = int(SYSTEM.wall_s())
        # Tasks to cancel when the door closes, and tasks that the door has cancelled.
        self._waits: set[asyncio.Task[Any]] = set()
        self._shut_out: set[asyncio.Task[Any]] = set()
        self._is_empty = asyncio.Event()
        self._is_empty.set()
        self.in_flight = 0

    @abstractmethod
    async def _answer(self, exchange: Exchange) -> None:
        """Answers one call, or raises Refusal before any part of the response has been sent."""

    async def _drain(self) -> None:
        """Waits up to `grace_s` for requests in flight, then ends the rest with the error 503."""
        await self._emptied(self._bounds.grace_s)
        self._shut_out.update(self._waits)
        for task in self._waits:
            task.cancel()
        await self._emptied(_LAST_WORDS_S)

    async def _emptied(self, within_s: float) -> None:
        """Returns once nothing is in flight, or after this many seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._is_empty.wait()

    async def _handle(self, exchange: Exchange) -> None:
        try:
            if exchange.path in self._calls:
                if exchange.method != "POST":
                    raise wrong_method(exchange, "POST")
                await self._take(exchange, self._answer)
            elif (found := self._routes.find(exchange)) is not None:
                await self._take(exchange, self._answer_route, *found)
            else:
                await self._answer_other(exchange)
        except Refusal as refusal:
            if exchange.state is State.WAITING:
                refusal.send(exchange, self._request_id())
            else:
                exchange.break_off()

    async def _answer_route(self, exchange: Exchange, answer: Answer, ids: tuple[str, ...]) -> None:
        await self._until_closed(answer(exchange, self._routes.tenant_of(exchange), *ids))

    def _request_id(self) -> str:
        """Returns the id for a response that has no id from an endpoint; empty for none."""
        return ""

    async def _answer_other(self, exchange: Exchange) -> None:
        """Answers a request that is not a call and has no route. Raises Refusal."""
        path = exchange.path
        page = self._pages.get(path)
        if page is None and (name := path.removeprefix(_ONE_MODEL)) != path:
            page = partial(self._show_model, name)
        if page is None:
            message = hinted(
                f"Unknown URL: {exchange.method} {shortened(path)}",
                nearest(path, [*self._calls, *self._routes.paths, *self._pages]),
            )
            raise Refusal(message, status=404, code="unknown_url")
        if exchange.method not in ("GET", "HEAD"):
            raise wrong_method(exchange, "GET, HEAD")
        exchange.respond(200, page(), PROMETHEUS if path == "/metrics" else JSON)

    async def _take(self, exchange: Exchange, answer: Answer, *asked: object) -> None:
        """Answers one request, or raises Refusal while `most_requests` are in flight.

        Also raises Refusal while the door is closing. asked: further arguments of `answer`.
        """
        if self.is_draining:
            raise _closing()
        if self.in_flight >= self._bounds.most_requests:
            in_flight = counted(self.in_flight, "request is", "requests are")
            raise busy(f"{in_flight} in flight already.", "overloaded")
        self.in_flight += 1
        self._is_empty.clear()
        try:
            await answer(exchange, *asked)
        finally:
            self.in_flight -= 1
            if not self.in_flight:
                self._is_empty.set()

    async def _until_closed(self, waiting: Awaitable[T]) -> T:
        """Returns the result of `waiting`. Raises Refusal if the door closes first."""
        # asyncio.timeout works in the same way, but would cost each call several times as much.
        task = asyncio.current_task()
        assert task is not None
        self._waits.add(task)
        try:
            return await waiting
        except asyncio.CancelledError:
            # The task may also have been cancelled because its client has disconnected.
            if not self._take_back(task) or task.cancelling():
                raise
            raise _closing() from None
        finally:
            self._waits.discard(task)
            if self._shut_out:
                self._take_back(task)

    def _take_back(self, task: asyncio.Task[Any]) -> bool:
        """Undoes this door's cancellation of the task; False if this door did not cancel it."""
        is_shut_out = task in self._shut_out
        if is_shut_out:
            self._shut_out.discard(task)
            task.uncancel()
        return is_shut_out

    async def _body(self, exchange: Exchange) -> bytes:
        """Receives the complete body. Raises Refusal as `read_of` does, or if the door closes."""
        if exchange.is_complete and exchange.error is None:
            return exchange.received()
        return await self._until_closed(read_of(exchange.body()))

    def _list_models(self) -> bytes:
        models = [model_entry(name, self._since) for name in self._models]
        return msgspec.json.encode({"object": "list", "data": models})

    def _show_model(self, name: str) -> bytes:
        if name not in self._models:
            raise no_model(name, self._models)
        return msgspec.json.encode(model_entry(name, self._since))

    def _health(self) -> bytes:
        if self.is_draining:
            raise _closing()
        if (trouble := self._trouble()) is not None:
            raise trouble
        return msgspec.json.encode({"status": "ok"})

    @abstractmethod
    def _trouble(self) -> Refusal | None:
        """Returns the reason why no call can be answered; None if calls can be answered."""


def model_entry(name: str, since: int) -> dict[str, Any]:
    """Returns an entry of `GET /v1/models`. since: its `created`, in seconds since 1970."""
    return {"id": name, "object": "model", "created": since, "owned_by": "redline"}


def _closing() -> Refusal:
    return busy("The server is shutting down.", "shutting_down")
