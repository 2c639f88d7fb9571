"""Runs the simulated provider as a real HTTP server, in an `async with` block or until Ctrl-C."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from redline.clock import SYSTEM, Clock
from redline.httpserver import PROMETHEUS, Exchange, HttpBounds, HttpServer
from redline.process import raise_limit_fully, run_until_told
from redline.sim.answers import ENDPOINTS, BadCall
from redline.sim.batches import BatchDoor, refusal
from redline.sim.server.provider import Provider
from redline.sim.settings import SimSettings
from redline.sim.stats import KEPT_REQUESTS
from redline.sim.wire import Reply, error_reply, json_reply, send

MAX_BODY_BYTES = 256 * 2**20
_HEALTHY = json_reply({"status": "ok"})
_MODELS = json_reply(
    {
        "object": "list",
        "data": [{"id": "sim", "object": "model", "created": 0, "owned_by": "redline"}],
    }
)


class Sim(HttpServer):
    """A simulated provider that serves in an `async with` block, or from `start` to `aclose`.

    It runs in the event loop that starts it, and can start only once. settings: None for the
    defaults. Raises ConfigError for a replay file that cannot be read and, from `start`, for an
    address on which it cannot listen.
    """

    def __init__(self, settings: SimSettings | None = None, clock: Clock = SYSTEM) -> None:
        self._settings = settings or SimSettings()
        self._provider = Provider(self._settings, clock)
        address = (self._settings.host, self._settings.port)
        bounds = HttpBounds(most_body_bytes=MAX_BODY_BYTES)
        super().__init__("the simulated provider", address, bounds=bounds)

    def stats(self) -> dict[str, Any]:
        """Returns the counters of `GET /sim/stats`; redline.sim.stats explains them."""
        stats = self._provider.stats.as_dict()
        batches = self._provider.batches.stats()
        return {**stats, "waiting": self._provider.waiting, "batches": batches}

    def summary(self) -> str:
        """Returns the counters and their sum, in one line."""
        return str(self._provider.stats)

    def _handle(self, exchange: Exchange) -> Coroutine[Any, Any, None] | None:
        if exchange.path in ENDPOINTS:
            return self._provider.serve(exchange)
        if exchange.method in ("GET", "HEAD"):
            shown = self._show(exchange)
            if shown is not None:
                send(exchange, shown)
                return None
        if exchange.path == "/sim/limits":
            return self._provider.answer_limits(exchange)
        if exchange.path == "/sim/faults":
            return self._provider.answer_faults(exchange)
        if BatchDoor.takes(exchange.path):
            return self._provider.batches.serve(exchange)
        return self._provider.serve(exchange)

    async def _drain(self) -> None:
        """Does not wait: requests in flight are cut off, as when a provider goes down."""

    def _metrics(self) -> Reply:
        """Returns the metrics that a pool reads from each of its servers."""
        gauges = {
            "redline_requests_running": self._provider.stats.serving,
            "redline_requests_waiting": self._provider.waiting,
        }
        lines = (f"# TYPE {name} gauge\n{name} {value}\n" for name, value in gauges.items())
        return Reply(200, "".join(lines).encode(), PROMETHEUS)

    def _show(self, exchange: Exchange) -> Reply | None:
        """Returns the page of a path whose requests are not counted; None for any other path."""
        if exchange.path in ("/health", "/healthz"):
            return _HEALTHY
        if exchange.path == "/metrics":
            return self._metrics()
        if exchange.path == "/sim/stats":
            return json_reply(self.stats())
        if exchange.path in ("/sim/requests", "/sim/gaps"):
            text = exchange.query.get("limit", str(KEPT_REQUESTS))
            if not (text.isascii() and text.isdigit() and len(text) < 10):
                return error_reply(400, f"limit is not a number: {text}", "invalid_request_error")
            if exchange.path == "/sim/gaps":
                return json_reply({"gaps_s": self._provider.stats.last_gaps_s(int(text))})
            return json_reply({"requests": self._provider.stats.last(int(text))})
        if exchange.path == "/v1/models":
            try:
                self._provider.refuse_key(exchange)
            except BadCall as error:
                return refusal(error)
            return _MODELS
        return None


def serve_forever(
    settings: SimSettings, *, on_url: Callable[[str], None], on_note: Callable[[str], None]
) -> None:
    """Serves until SIGINT or SIGTERM, then returns.

    on_url: called with the base URL once connections are accepted. on_note: called with a line that
    describes what is simulated, and at the end with a line of counters. Raises ConfigError if the
    replay file or the address cannot be used.
    """

    async def main(stop: asyncio.Event) -> None:
        sim = Sim(settings)
        async with sim:
            on_url(sim.base_url)
            on_note(f"simulating {settings}; Ctrl-C stops it")
            await stop.wait()
        on_note(sim.summary())

    raise_limit_fully()
    run_until_told(main)
