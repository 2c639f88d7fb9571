"""One address for every model: each call goes to the endpoint that can answer it first."""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Coroutine
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

import msgspec

from redline.apis.messages import COUNT_TOKENS
from redline.calls import Backend, Call, Health, Outcome, Request, Sink
from redline.calls.cost import DOLLAR
from redline.calls.tokens import BodyFacts, facts_of
from redline.clock import SYSTEM
from redline.errors import Withdrawn
from redline.httpserver import Address, Exchange, State
from redline.serve.batches import Batches
from redline.serve.dashboard import BatchView, ClassView, Dashboard, Snapshot, TenantView
from redline.serve.gateway.allowed import missing, target_of
from redline.serve.gateway.lineup import Lineup, Target
from redline.serve.gateway.metrics import GatewayMetrics
from redline.serve.gateway.model_list import ModelList
from redline.serve.gateway.totals import CUT, LEFT, OTHER, Asking, Totals
from redline.serve.gateway.watch import GatewayWatch, quantile
from redline.serve.http import (
    MESSAGES_CALLS,
    Bounds,
    Door,
    HeldBytes,
    Refusal,
    Routes,
    answer_messages,
    busy,
    count_tokens,
    pass_on,
    read_part,
    status_of,
)
from redline.serve.keys import Keyring, Refused, Started, Tenant
from redline.serve.workers import Elsewhere, Fellows, Published, together

if TYPE_CHECKING:
    from ssl import SSLContext


_MODELS = "/v1/models"
# OpenAI's values for the urgency of a call.
_TIERS = {"flex": "low", "priority": "high"}


class Way(msgspec.Struct, frozen=True):
    """The target of a call, the call, and what it has taken from its tenant's limits.

    is_anew: it wants no stored answer.
    """

    target: Target
    is_anew: bool
    call: Call
    started: Started

    @property
    def backend(self) -> Backend:
        return self.target.anew if self.is_anew else self.target.backend


class Caller(msgspec.Struct, frozen=True, gc=False):
    """What the head of a request states, for every kind of call.

    readings: the keyring's count of readings when the tenant was looked up. klass: the requested
    class. is_anew: the client wants no stored answer (RFC 9111, 5.2.1).
    """

    tenant: Tenant
    readings: int
    klass: str | None
    is_anew: bool


class Gateway(Door):
    """Serves while it is entered, or from `start` to `aclose`; starts once.

    lineup: its endpoints, closed by their owner. keyring: who may send requests. batches: started
    and closed by their owner. fellows: other workers behind the same address. ssl: makes it an
    HTTPS server. totals: its counters.
    """

    def __init__(
        self,
        lineup: Lineup,
        keyring: Keyring,
        batches: Batches | Elsewhere | None,
        fellows: Fellows | None,
        *,
        address: Address,
        bounds: Bounds,
        ssl: SSLContext | None,
    ) -> None:
        self.lineup = lineup
        self.keyring = keyring
        self.gates = lineup.gates
        self._meter = lineup.gates.meter
        self.totals = Totals()
        self._fellows = fellows
        self._metrics = GatewayMetrics(lineup, self.totals, fellows)
        own = {
            "/healthz": self._is_alive,
            "/readyz": self._health,
            "/metrics": self._metrics.page,
        }
        super().__init__(
            models=(),
            address=address,
            calls=lineup.paths,
            pages=own,
            bounds=bounds,
            routes=Routes(
                [] if batches is None else batches.routes, lambda each: self.tenant_of(each).name
            ),
            ssl=ssl,
        )
        self._batches = batches
        self._models_known = ModelList(lineup)
        self.watch = GatewayWatch(
            lineup,
            self.totals,
            self,
            waiting=lambda: sum(way.gate.state().waiting for way in lineup.ways),
            is_draining=lambda: self.is_draining,
            on_look=self._publish,
        )
        self._dashboard = Dashboard(self._snapshot, self._check_admin)
        self._held = HeldBytes(bounds.most_held_bytes, has_tenants=keyring.is_asked)
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

    def _publish(self) -> None:
        """Publishes this worker's figures to the other workers."""
        if self._fellows is not None:
            published = Published(
                at_s=SYSTEM.now_s(),
                families=self._metrics.families(),
                snapshot=self.watch.snapshot(),
                buckets=self.watch.buckets(),
            )
            self._fellows.publish(published)

    def _snapshot(self) -> Snapshot:
        """The present state of all workers."""
        own = self.watch.snapshot()
        if self._fellows is None or not (others := self._fellows.fresh()):
            return own
        buckets = [self.watch.buckets(), *(one.buckets for one in others)]
        counts = [sum(each) for each in zip(*buckets, strict=True)]
        return msgspec.structs.replace(
            together([own, *(one.snapshot for one in others)]),
            latency_p50_s=quantile(counts, 0.5),
            latency_p95_s=quantile(counts, 0.95),
        )

    def classes(self) -> list[ClassView]:
        """The classes, summed over all pools."""
        states = [way.gate.state().classes for way in self.lineup.ways]
        return [
            ClassView(
                name=alike[0].name,
                running=sum(one.in_flight for one in alike),
                waiting=sum(one.waiting for one in alike),
                oldest_s=max(one.oldest_wait_s for one in alike),
                admitted=sum(one.admitted for one in alike),
                refused=sum(sum(one.refused.values()) for one in alike),
            )
            for alike in zip(*states, strict=True)
        ]

    def tenants(self) -> list[TenantView]:
        """The tenants that have made requests."""
        return [
            TenantView(
                name=name,
                calls=counts.calls,
                refused=counts.refused,
                tokens=counts.tokens,
                running=limits.in_flight,
                spent_usd=limits.money.spent / DOLLAR or None,
            )
            for name, counts in self.totals.tenants.items()
            for limits in (self.gates.tenants.of(name).limits,)
        ]

    def batches(self) -> list[BatchView]:
        """The unfinished batches."""
        if self._batches is None:
            return []
        return [
            BatchView(
                id=one.id,
                tenant=one.tenant,
                state=one.trouble or one.status,
                done=one.completed,
                failed=one.failed,
                total=one.total,
            )
            for one in self._batches.snapshot().batches
        ]

    def _check_admin(self, exchange: Exchange) -> None:
        """Raises Refusal for a request whose tenant may not see the state of other tenants."""
        tenant = self.tenant_of(exchange)
        if self.keyring.is_asked and not tenant.settings.is_admin:
            message = f"Tenant {tenant.name} may not see this: it needs admin = true."
            raise Refusal(message, status=403, code="not_an_admin")

    def _handle(self, exchange: Exchange) -> Coroutine[Any, Any, None]:
        # Most requests are calls: answering them here saves a coroutine.
        is_call = exchange.path in self._calls
        return super()._handle(exchange) if is_call else self._handle_other(exchange)

    async def _handle_other(self, exchange: Exchange) -> None:
        """Answers requests other than calls."""
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
        """The models that a tenant may use, or the one that the path names. Raises Refusal."""
        tenant = self.tenant_of(exchange)
        if name := exchange.path.removeprefix(_MODELS).removeprefix("/"):
            found: object = await self._models_known.one(name) if tenant.may_use(name) else None
            if found is None:
                raise missing(self.lineup, tenant, name)
        else:
            entries = await self._models_known.all()
            usable = [entry for entry in entries if tenant.may_use(entry["id"])]
            found = {"object": "list", "data": usable}
        exchange.respond(200, msgspec.json.encode(found))

    async def _answer(self, exchange: Exchange) -> None:
        request_id = self._request_id()
        try:
            await self._answer_call(exchange, request_id)
        except Refusal as refusal:
            if exchange.state is not State.WAITING:
                raise
            # With the id under which the call is counted.
            refusal.send(exchange, request_id)

    async def _answer_call(self, exchange: Exchange, request_id: str) -> None:
        """Identifies the tenant, parses and admits the call, then forwards it."""
        began_s = SYSTEM.now_s()
        # Before the body: a client without a key must not send one.
        caller = exchange.kept
        if caller is None or caller.readings != self.keyring.readings:
            caller = self._caller(exchange)
        tenant: Tenant = caller.tenant
        raw = await self._whole_body(exchange, tenant)
        facts = facts_of(raw)
        asking = Asking(
            tenant=tenant,
            asked=facts.model,
            model=facts.model if self.lineup.has(facts.model) else OTHER,
            klass=class_of(tenant, caller.klass, facts),
            request_id=request_id,
            began_s=began_s,
        )
        if exchange.path == COUNT_TOKENS:
            # An estimate, made here.
            count_tokens(exchange, raw, request_id=asking.request_id)
            return
        try:
            target = target_of(self.lineup, tenant, facts, raw)
            call = Call(
                priority=self.gates.priorities[asking.klass],
                avoid=target.unfit,
                unfit=target.unfit,
                tenant=tenant.name,
            )
            started = self._started(tenant, facts, len(raw))
        except Refusal as refusal:
            self._refused(asking, refusal)
            raise
        exchange.holds(target.waits_for_slots)
        way = Way(target, facts.stream or caller.is_anew, call, started)
        try:
            with started:
                if exchange.path in MESSAGES_CALLS:
                    await self._translate(exchange, raw, asking, way)
                else:
                    await pass_on(
                        exchange,
                        raw,
                        facts,
                        partial(self._sent, asking=asking, way=way),
                        request_id=asking.request_id,
                    )
        except asyncio.CancelledError:
            # The client has left, or the time for calls in flight is over.
            self._ended(asking, LEFT if exchange.is_gone or not self.is_draining else CUT)
            raise
        finally:
            self._held.release(tenant.name, len(raw))
            call.let_go()

    async def _whole_body(self, exchange: Exchange, tenant: Tenant) -> bytes:
        if exchange.is_complete and exchange.error is None:
            return exchange.received()
        return await self._until_closed(self._coming_body(exchange, tenant))

    async def _coming_body(self, exchange: Exchange, tenant: Tenant) -> bytes:
        """The complete body. Received bytes count as held. Raises Refusal."""
        parts, size = list[bytes](), 0
        try:
            while part := await read_part(exchange):
                self._held.take(tenant.name, len(part), size)
                size += len(part)
                parts.append(part)
            return b"".join(parts)
        finally:
            self._held.release(tenant.name, size)

    async def _translate(self, exchange: Exchange, raw: bytes, asking: Asking, way: Way) -> None:
        """Answers in the shape of Anthropic's API."""

        was_sent = False

        async def send(request: Request, sink: Sink | None) -> Outcome:
            nonlocal was_sent
            was_sent = True
            return await self._sent(request, sink, asking, way)

        try:
            await answer_messages(exchange, raw, send, request_id=asking.request_id)
        except Refusal as refusal:
            if not was_sent:
                # The request was not sent, such as one that cannot be translated: it costs nothing.
                way.started.cancel()
                self._refused(asking, refusal)
            raise

    async def _sent(self, request: Request, sink: Sink | None, asking: Asking, way: Way) -> Outcome:
        """The outcome of the call, settled with its tenant and counted."""
        while True:
            try:
                outcome = await self._until_closed(way.backend.send(request, way.call, sink))
            except Refusal:
                # The time for calls in flight is over.
                self._ended(asking, CUT)
                raise
            if not isinstance(outcome.error, Withdrawn):
                break
            way = self._elsewhere(asking, way)
        used = self._meter.used(asking.asked, outcome)
        way.started.settle(SYSTEM.now_s(), used.tokens, used.picodollars)
        self._count(asking, outcome)
        return outcome

    def _elsewhere(self, asking: Asking, way: Way) -> Way:
        """The call's way to the endpoints that have its model now.

        Raises Refusal, and cancels what the call has taken, if there are none any more.
        """
        target = self.lineup.target(asking.asked)
        if target is None:
            refusal = missing(self.lineup, asking.tenant, asking.asked or "")
            way.started.cancel()
            self._refused(asking, refusal)
            raise refusal
        way.call.avoid = way.call.unfit = target.unfit
        return msgspec.structs.replace(way, target=target)

    def tenant_of(self, exchange: Exchange) -> Tenant:
        """The tenant of a request. Raises Refusal without a known key."""
        header = exchange.header
        return self.keyring.tenant(header(b"authorization"), header(b"x-api-key"))

    def _caller(self, exchange: Exchange) -> Caller:
        """The caller of a request, read from its head. Raises Refusal without a known key."""
        header, keyring = exchange.header, self.keyring
        known = keyring.known(header(b"authorization"), header(b"x-api-key"))
        klass = header(b"x-redline-class")
        caller = Caller(known.tenant, keyring.readings, klass, _asks_anew(exchange))
        if known.until_s == math.inf:
            exchange.keep(caller)
        return caller

    def _started(self, tenant: Tenant, facts: BodyFacts, size_bytes: int) -> Started:
        """Starts the call within its tenant's limits, with its body held.

        Raises Refusal if they do not allow it now.
        """
        self._held.take(tenant.name, size_bytes)
        estimate = self._meter.estimate(facts, size_bytes)
        limits = tenant.limits
        started = limits.try_start(SYSTEM.now_s(), estimate.tokens, estimate.picodollars)
        if isinstance(started, Refused):
            self._held.release(tenant.name, size_bytes)
            raise started.refusal()
        return started

    def _request_id(self) -> str:
        return f"{self._prefix}{next(self._numbers):x}"

    def _ended(self, asking: Asking, how: str) -> None:
        """Counts a call without an outcome of its own, unless it has been counted."""
        if not asking.is_over:
            self.totals.answered(asking, how, SYSTEM.now_s() - asking.began_s)

    def _count(self, asking: Asking, outcome: Outcome) -> None:
        totals, reply, status = self.totals, outcome.reply, status_of(outcome)
        totals.answered(asking, status, SYSTEM.now_s() - asking.began_s)
        if reply is not None:
            totals.used(asking, reply.input_tokens or 0, reply.output_tokens or 0)
            return
        assert outcome.error is not None
        totals.failed(asking, status, outcome.error.what, outcome.endpoint)

    def _refused(self, asking: Asking, refusal: Refusal) -> None:
        """Counts a call that was refused before it was passed on."""
        self.totals.answered(asking, refusal.status, SYSTEM.now_s() - asking.began_s)
        self.totals.refused(asking)
        self.totals.failed(asking, refusal.status, str(refusal))

    def _is_alive(self) -> bytes:
        return msgspec.json.encode({"status": "ok"})

    def _trouble(self) -> Refusal | None:
        if not self.lineup.pools:
            return None
        now_s = SYSTEM.now_s()
        states = {pool.load(now_s).state for pool in self.lineup.pools}
        if states <= {Health.GONE}:
            return busy("No endpoint is left.", "no_endpoint")
        if states <= {Health.GONE, Health.DEGRADED, Health.STARTING}:
            return busy("No endpoint works at the moment.", "no_endpoint")
        return None


def class_of(tenant: Tenant, asked: str | None, facts: BodyFacts) -> str:
    """The class that a call requests by its header `x-redline-class` or by its service tier.

    asked: the header. A class that its tenant may not use is ignored: the call then has the
    tenant's default class.
    """
    settings = tenant.settings
    if asked is None and facts.service_tier is not None:
        asked = _TIERS.get(facts.service_tier)
    return asked if asked in settings.classes else settings.default_class


def _asks_anew(exchange: Exchange) -> bool:
    """Whether its client wants no stored answer (RFC 9111, 5.2.1)."""
    asked = exchange.header(b"cache-control")
    if asked is None:
        return False
    return any(word in asked.lower() for word in ("no-cache", "no-store", "max-age=0"))
