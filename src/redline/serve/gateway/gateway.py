"""One address for every model: calls go to whichever endpoint can answer them first."""

from __future__ import annotations

import os
from collections.abc import Mapping
from itertools import count
from typing import TYPE_CHECKING

import msgspec

from redline.calls import Call, Health, Outcome, Request
from redline.clock import SYSTEM
from redline.httpserver import Exchange
from redline.serve.dashboard import BatchView, ClassState, Dashboard, TenantView
from redline.serve.gateway.lineup import Lineup, Target
from redline.serve.gateway.metrics import GatewayMetrics
from redline.serve.gateway.model_list import ModelList
from redline.serve.gateway.totals import OTHER, Fault, Totals
from redline.serve.gateway.watch import GatewayWatch
from redline.serve.http import (
    CALLS,
    Bounds,
    Door,
    Page,
    Passed,
    Refusal,
    busy,
    facts_of,
    no_model,
    pass_back,
    read_body,
    status_of,
)

if TYPE_CHECKING:
    from ssl import SSLContext


_MODELS = "/v1/models"


class Gateway(Door):
    """Serves while it is entered, or from `start` to `aclose`; starts once.

    lineup: its endpoints, closed by their owner. pages: see Door. totals: what it counts.
    """

    def __init__(
        self,
        lineup: Lineup,
        *,
        address: tuple[str, int] = ("127.0.0.1", 0),
        pages: Mapping[str, Page] | None = None,
        bounds: Bounds | None = None,
        ssl: SSLContext | None = None,
    ) -> None:
        self._lineup = lineup
        self.totals = Totals()
        own = {
            "/healthz": self._is_alive,
            "/readyz": self._health,
            "/metrics": GatewayMetrics(lineup, self.totals).page,
        }
        super().__init__(
            models=(),
            address=address,
            calls=CALLS,
            pages={**own, **(pages or {})},
            bounds=bounds,
            ssl=ssl,
        )
        self._models_known = ModelList(lineup)
        self.watch = GatewayWatch(
            lineup,
            self.totals,
            self,
            waiting=lambda: 0,
            is_draining=lambda: self.is_draining,
        )
        self._dashboard = Dashboard(self.watch.snapshot, self._check_admin)
        # Unique over processes and restarts, and cheap.
        self._prefix, self._numbers = f"req_{os.urandom(6).hex()}", count(1)

    async def start(self) -> None:
        await super().start()
        self.watch.start()

    async def aclose(self) -> None:
        try:
            await super().aclose()
        finally:
            await self.watch.aclose()
            await self._models_known.aclose()

    def classes(self) -> list[ClassState]:
        return []

    def tenants(self) -> list[TenantView]:
        return []

    def batches(self) -> list[BatchView]:
        return []

    def _check_admin(self, exchange: Exchange) -> None:
        """Raises Refusal for a request that may not see the state."""

    async def _handle(self, exchange: Exchange) -> None:
        try:
            if exchange.path in self._dashboard.paths:
                await self._dashboard.answer(exchange)
                return
            if exchange.path.startswith(_MODELS) and exchange.method in ("GET", "HEAD"):
                await self._show_models(exchange)
                return
        except Refusal as refusal:
            refusal.send(exchange)
            return
        await super()._handle(exchange)

    async def _show_models(self, exchange: Exchange) -> None:
        """The list of models, or the one that the path names. Raises Refusal for an unknown one."""
        found: object = {"object": "list", "data": await self._models_known.all()}
        if name := exchange.path.removeprefix(_MODELS).removeprefix("/"):
            found = await self._models_known.one(name)
            if found is None:
                raise no_model(name, self._lineup.names)
        exchange.respond(200, msgspec.json.encode(found))

    async def _answer(self, exchange: Exchange) -> None:
        began_s = SYSTEM.now_s()
        raw = await self._until_closed(read_body(exchange))
        facts = facts_of(raw)
        target = self._target(facts.model)
        request = Request(raw=raw, url=exchange.path)
        call = Call(avoid=target.unfit, unfit=target.unfit)
        request_id = self._request_id()
        stream = Passed(exchange, has_usage=facts.stream_options is not None, request_id=request_id)
        sink = stream if facts.stream else None
        try:
            outcome = await self._until_closed(target.backend.send(request, call, sink))
            self._count(facts.model, outcome, request_id, SYSTEM.now_s() - began_s)
            await pass_back(exchange, outcome, stream)
        except Refusal as refusal:
            if not stream.has_begun:
                raise
            await stream.fail(refusal)
        finally:
            call.let_go()

    def _request_id(self) -> str:
        return f"{self._prefix}{next(self._numbers):x}"

    def _target(self, model: str | None) -> Target:
        """Who answers calls for the model. Raises Refusal if no endpoint has it."""
        target = self._lineup.target(model)
        if target is None:
            raise no_model(model or "", self._lineup.names)
        return target

    def _count(self, asked: str | None, outcome: Outcome, request_id: str, took_s: float) -> None:
        totals, model = self.totals, asked if self._lineup.has(asked) else OTHER
        reply = outcome.reply
        if reply is not None:
            totals.answered(model, "normal", reply.status, took_s)
            totals.used(model, reply.input_tokens or 0, reply.output_tokens or 0)
            return
        assert outcome.error is not None
        status = status_of(outcome)
        totals.answered(model, "normal", status, took_s)
        totals.failed(
            Fault(
                at_s=SYSTEM.wall_s(),
                status=status,
                what=outcome.error.what,
                request_id=request_id,
                model=model,
                endpoint=outcome.endpoint,
            )
        )

    def _is_alive(self) -> bytes:
        return msgspec.json.encode({"status": "ok"})

    def _trouble(self) -> Refusal | None:
        now_s = SYSTEM.now_s()
        states = {pool.load(now_s).state for pool in self._lineup.pools}
        if states <= {Health.GONE}:
            return busy("No endpoint is left.", "no_endpoint")
        if states <= {Health.GONE, Health.DEGRADED, Health.STARTING}:
            return busy("No endpoint works at the moment.", "no_endpoint")
        return None
