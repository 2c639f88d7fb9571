"""The simulated provider as a real HTTP server on loopback."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from aiohttp import web

from redline.clock import SYSTEM, Clock
from redline.errors import RedlineError
from redline.listening import listen
from redline.sim.batch_door import BatchDoor
from redline.sim.bodies import BadCall
from redline.sim.provider import Provider, refusal
from redline.sim.settings import SimSettings
from redline.sim.stats import KEPT_REQUESTS
from redline.sim.wire import Reply, error_reply

MAX_BODY_BYTES = 256 * 2**20
_MODELS = {
    "object": "list",
    "data": [{"id": "sim", "object": "model", "created": 0, "owned_by": "redline"}],
}


class Sim:
    """A simulated provider that serves while it is entered, or from `start` to `aclose`.

    Runs inside the loop that starts it, and starts once. Raises ConfigError for a replay file it
    cannot read and, from `start`, for an address it cannot listen on.
    """

    def __init__(self, settings: SimSettings | None = None, clock: Clock = SYSTEM) -> None:
        self._settings = settings or SimSettings()
        self._provider = Provider(self._settings, clock)
        self._running: set[asyncio.Task[Any]] = set()
        self._web: web.Server | None = None
        self._listener: asyncio.Server | None = None
        self._base_url = ""

    async def __aenter__(self) -> Sim:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    @property
    def base_url(self) -> str:
        """`http://HOST:PORT/v1`. Raises RedlineError before `start`."""
        if not self._base_url:
            raise RedlineError("the simulated provider has not been started")
        return self._base_url

    def stats(self) -> dict[str, Any]:
        """The counters of `GET /sim/stats`; redline.sim.stats says what each one means."""
        stats = self._provider.stats.as_dict()
        batches = self._provider.batches.stats()
        return {**stats, "waiting": self._provider.waiting, "batches": batches}

    def summary(self) -> str:
        """The counters and their sum, in one line."""
        return str(self._provider.stats)

    async def start(self) -> None:
        """Listens. Returns once connections are accepted."""
        if self._web is not None:
            raise RedlineError("the simulated provider has already been started")
        self._web, self._listener, self._base_url = await listen(
            self._handle,
            (self._settings.host, self._settings.port),
            most_body_bytes=MAX_BODY_BYTES,
            name="the simulated provider",
        )

    async def aclose(self) -> None:
        """Stops listening and cuts off every request in flight. A second call does nothing."""
        listener, self._listener = self._listener, None
        if listener is None or self._web is None:
            return
        listener.close()
        # Idle connections end here; shutdown would wait for each of them.
        self._web.pre_shutdown()
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.wait(self._running)
        await self._web.shutdown(0.1)
        await listener.wait_closed()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.method in ("GET", "HEAD"):
            shown = self._show(request)
            if shown is not None:
                return self._provider.write(request, shown)
        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        try:
            if BatchDoor.takes(request.path):
                return await self._provider.batches.serve(request)
            return await self._provider.serve(request)
        finally:
            self._running.discard(task)

    def _show(self, request: web.BaseRequest) -> Reply | None:
        """What can be looked at without being counted, or None."""
        if request.path == "/healthz":
            return _json({"status": "ok"})
        if request.path == "/sim/stats":
            return _json(self.stats())
        if request.path == "/sim/requests":
            text = request.query.get("limit", str(KEPT_REQUESTS))
            if not (text.isascii() and text.isdigit() and len(text) < 10):
                return error_reply(400, f"limit is not a number: {text}", "invalid_request_error")
            return _json({"requests": self._provider.stats.last(int(text))})
        if request.path == "/v1/models":
            try:
                self._provider.refuse_key(request)
            except BadCall as error:
                return refusal(error)
            return _json(_MODELS)
        return None


def _json(shown: object) -> Reply:
    return Reply(200, msgspec.json.encode(shown))
