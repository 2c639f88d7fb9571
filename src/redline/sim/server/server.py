"""The simulated provider as a real HTTP server: while it is entered, or until Ctrl-C."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Callable
from typing import Any

from aiohttp import web

from redline.clock import SYSTEM, Clock
from redline.httpserver import HttpServer
from redline.process import run_until_told
from redline.sim.answers import BadCall
from redline.sim.batches import BatchDoor, refusal
from redline.sim.server.provider import Provider
from redline.sim.settings import SimSettings
from redline.sim.stats import KEPT_REQUESTS
from redline.sim.wire import Reply, error_reply, json_reply

MAX_BODY_BYTES = 256 * 2**20
_MODELS = {
    "object": "list",
    "data": [{"id": "sim", "object": "model", "created": 0, "owned_by": "redline"}],
}


class Sim(HttpServer):
    """A simulated provider that serves while it is entered, or from `start` to `aclose`.

    Runs inside the loop that starts it, and starts once. Raises ConfigError for a replay file it
    cannot read and, from `start`, for an address it cannot listen on.
    """

    def __init__(self, settings: SimSettings | None = None, clock: Clock = SYSTEM) -> None:
        self._settings = settings or SimSettings()
        self._provider = Provider(self._settings, clock)
        self._running: set[asyncio.Task[Any]] = set()
        address = (self._settings.host, self._settings.port)
        super().__init__("the simulated provider", address, most_body_bytes=MAX_BODY_BYTES)

    def stats(self) -> dict[str, Any]:
        """The counters of `GET /sim/stats`; redline.sim.stats says what each one means."""
        stats = self._provider.stats.as_dict()
        batches = self._provider.batches.stats()
        return {**stats, "waiting": self._provider.waiting, "batches": batches}

    def summary(self) -> str:
        """The counters and their sum, in one line."""
        return str(self._provider.stats)

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
            return json_reply({"status": "ok"})
        if request.path == "/sim/stats":
            return json_reply(self.stats())
        if request.path == "/sim/requests":
            text = request.query.get("limit", str(KEPT_REQUESTS))
            if not (text.isascii() and text.isdigit() and len(text) < 10):
                return error_reply(400, f"limit is not a number: {text}", "invalid_request_error")
            return json_reply({"requests": self._provider.stats.last(int(text))})
        if request.path == "/v1/models":
            try:
                self._provider.refuse_key(request)
            except BadCall as error:
                return refusal(error)
            return json_reply(_MODELS)
        return None


def serve_forever(
    settings: SimSettings, *, on_url: Callable[[str], None], on_note: Callable[[str], None]
) -> None:
    """Serves until SIGINT or SIGTERM, then returns.

    on_url: told the base URL, once connections are accepted. on_note: told what is simulated,
    and at the end what was seen; one line each.
    Raises ConfigError where the settings or the address do not work.
    """

    async def main(stop: asyncio.Event) -> None:
        sim = Sim(settings)
        async with sim:
            on_url(sim.base_url)
            on_note(f"simulating {settings}; Ctrl-C ends it")
            await stop.wait()
        on_note(sim.summary())

    _allow_connections()
    run_until_told(main)


def _allow_connections() -> None:
    """Raises the limit on open files to what the system allows: each connection is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
