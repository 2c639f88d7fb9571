"""Serves every model at one address: a call goes to the endpoint that can take it first."""

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
from redline.calls import Attempt, Call, Health, Outcome, Request, Sink
from redline.calls.tokens import BodyFacts, facts_of
from redline.clock import SYSTEM
from redline.errors import Withdrawn
from redline.httpserver import Address, Exchange, State
from redline.serve.batches import Batches
from redline.serve.dashboard import Dashboard
from redline.serve.gateway.allowed import (
    FOR_PAGES,
    class_of,
    is_here,
    may_ask,
    missing,
    refuse_other_site,
    removed_for,
    target_of,
)
from redline.serve.gateway.lineup import Lineup, Target
from redline.serve.gateway.metrics import GatewayMetrics
from redline.serve.gateway.model_list import ModelList
from redline.serve.gateway.totals import CUT, LEFT, OTHER, Asking, Totals
from redline.serve.gateway.watch import GatewayWatch
from redline.serve.http import (
    Bounds,
    Door,
    HeldBytes,
    Refusal,
    Routes,
    busy,
    count_tokens,
    pass_on,
    read_of,
    status_of,
)
from redline.serve.keys import Keyring, Refused, Started, Tenant
from redline.serve.workers import Elsewhere, Fellows

if TYPE_CHECKING:
    from ssl import SSLContext


_MODELS = "/v1/models"


class Caller(msgspec.Struct, frozen=True, gc=False):
    """The parts of a request's head that matter for every kind of call.

    readings: `Keyring.readings` when the tenant was looked up. klass: the requested class.
    is_anew: the client sent `cache-control: no-store`, so the cache is not used; renews: it sent
    `no-cache` or `max-age=0`, so it gets no stored answer, but its answer is stored (RFC 9111,
    5.2.1).
    """

    tenant: Tenant
    readings: int
    klass: str | None
    is_anew: bool
    renews: bool


class Gateway(Door):
    """A server that runs in an `async with` block, or from `start` to `aclose`; starts only once.

    lineup: its endpoints, closed by their owner. keyring: finds the tenant of a request. batches:
    started and closed by their owner. fellows: the other workers behind the same address. ssl: for
    HTTPS; None for HTTP. totals: its counters.
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
        self._metrics = GatewayMetrics(lineup, self.totals, fellows)
        own = {
            "/healthz": self._is_alive,
            "/readyz": self._health,
            "/metrics": self._show_metrics,
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
        self._serves_here_only = is_here(address.host)
        self._models_known = ModelList(lineup)
        self.watch = GatewayWatch(
            lineup,
            self.totals,
            batches,
            fellows,
            families=self._metrics.families,
            is_draining=lambda: self.is_draining,
        )
        self._dashboard = Dashboard(self.watch.of_all, self._check_admin)
        self._held = HeldBytes(bounds.most_held_bytes, has_tenants=keyring.is_asked)
        # Makes ids that are unique across processes and restarts, and cheap.
        self._prefix, self._numbers = f"req_{os.urandom(6).hex()}", count(1)

    async def aclose(self) -> None:
        try:
            await super().aclose()
        finally:
            await self._models_known.aclose()

    def _check_admin(self, exchange: Exchange) -> None:
        """Raises Refusal if the tenant of a request may not see the state of other tenants."""
        tenant = self.tenant_of(exchange)
        if self.keyring.is_asked and not tenant.settings.is_admin:
            raise Refusal(
                f"Tenant {tenant.name} may not see this: it needs admin = true in its settings.",
                status=403,
                code="not_an_admin",
            )

    def _handle(self, exchange: Exchange) -> Coroutine[Any, Any, None]:
        origin = exchange.header(b"origin")
        if origin is None or not (self.keyring.is_asked or may_ask(origin)):
            return super()._handle(exchange)
        return self._answer_page(exchange)

    async def _answer_page(self, exchange: Exchange) -> None:
        """Answers a request of a web page, or its preflight request; pages may use only /v1/."""
        if exchange.path.startswith("/v1/"):
            exchange.add(FOR_PAGES)
            if exchange.method == "OPTIONS":
                exchange.respond(204, fields=b"")
                return
        await super()._handle(exchange)

    async def _answer_other(self, exchange: Exchange) -> None:
        if exchange.path in self._dashboard.paths:
            await self._dashboard.answer(exchange)
        elif f"{exchange.path}/".startswith(f"{_MODELS}/") and exchange.method in ("GET", "HEAD"):
            await self._show_models(exchange)
        else:
            await super()._answer_other(exchange)

    async def _show_models(self, exchange: Exchange) -> None:
        """Responds with the models that the tenant may use, or with the model in the path.

        Raises Refusal if the key is not valid, if the model in the path does not exist, or if the
        tenant may not use it.
        """
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
            # Send the id under which the call was counted.
            refusal.send(exchange, request_id)

    async def _answer_call(self, exchange: Exchange, request_id: str) -> None:
        """Identifies the tenant, parses and admits the call, then forwards it."""
        began_s = SYSTEM.now_s()
        # Look the key up first: the body of a client without a key must not be read.
        caller = exchange.kept
        if caller is None or caller.readings != self.keyring.readings:
            caller = self._caller(exchange)
        tenant: Tenant = caller.tenant
        if exchange.is_complete and exchange.error is None:
            raw = exchange.received()
        else:
            raw = await self._until_closed(self._coming_body(exchange, tenant))
        facts = facts_of(raw)
        asking = Asking(
            tenant=tenant,
            asked=facts.model,
            model=facts.model if self.lineup.has(facts.model) else OTHER,
            klass=class_of(tenant, caller.klass, facts),
            request_id=request_id,
            began_s=began_s,
            is_anew=facts.stream or caller.is_anew,
            renews=caller.renews,
        )
        if exchange.path == COUNT_TOKENS:
            await self._estimate(exchange, tenant, raw, request_id)
            return
        try:
            target = target_of(self.lineup, tenant, facts, raw)
            call = Call(priority=self.gates.priorities[asking.klass], tenant=tenant.name)
            call.bar(target.barred)
            if removed := removed_for(tenant, facts):
                raw = Request(raw=raw).with_fields(**removed).raw or raw
            started = self._started(tenant, facts, raw, exchange.path)
        except Refusal as refusal:
            self.totals.refused(asking, refusal)
            raise
        exchange.holds(partial(_is_wanted, call, target))
        send = partial(self._sent, asking, target, call, started)
        try:
            await pass_on(exchange, raw, facts, send, request_id=request_id)
        except Refusal as refusal:
            if not asking.is_over:
                # The call was not sent; for example, it has no equivalent in another API.
                self.totals.refused(asking, refusal)
            raise
        except asyncio.CancelledError:
            # The client has disconnected, or the time for calls in flight is over.
            is_cut = self.is_draining and not exchange.is_gone
            self.totals.answered(asking, CUT if is_cut else LEFT)
            raise
        finally:
            if call.requests:
                started.settle(SYSTEM.now_s())
            else:
                # The call reached no endpoint, so it costs nothing.
                started.cancel()
            self._held.release(tenant.name, len(raw))
            call.let_go()

    async def _estimate(
        self, exchange: Exchange, tenant: Tenant, raw: bytes, request_id: str
    ) -> None:
        """Answers a request to COUNT_TOKENS, without a call to an endpoint. Raises Refusal."""
        self._held.take(tenant.name, len(raw))
        try:
            await count_tokens(exchange, raw, request_id=request_id)
        finally:
            self._held.release(tenant.name, len(raw))

    async def _coming_body(self, exchange: Exchange, tenant: Tenant) -> bytes:
        """Receives the complete body, and returns it. Received bytes count as held.

        Raises Refusal if the body is too large, malformed or late, or if too many bytes are held.
        """
        parts, size = list[bytes](), 0
        try:
            while part := await read_of(exchange.part()):
                self._held.take(tenant.name, len(part), size)
                size += len(part)
                parts.append(part)
            return b"".join(parts)
        finally:
            self._held.release(tenant.name, size)

    async def _sent(
        self,
        asking: Asking,
        target: Target,
        call: Call,
        started: Started,
        request: Request,
        sink: Sink | None,
    ) -> Outcome:
        """Sends the call, settles its cost with its tenant, counts it, and returns its outcome.

        Raises Refusal if no endpoint has its model any more, or if the gateway closes first.
        """
        tried: tuple[Attempt, ...] = ()
        while True:
            send = target.send
            if asking.is_anew:
                send = target.anew
            elif asking.renews:
                send = target.renew
            try:
                outcome = await self._until_closed(send(request, call, sink))
            except Refusal:
                # The time for calls in flight is over.
                self.totals.answered(asking, CUT)
                raise
            outcome.tried = tried = tried + outcome.tried
            if not isinstance(outcome.error, Withdrawn):
                break
            found = self.lineup.target(asking.asked)
            if found is None:
                self._settle(started, asking, call, outcome)
                raise missing(self.lineup, asking.tenant, asking.asked or "")
            target = found
            call.bar(target.barred)
        self._settle(started, asking, call, outcome)
        self._count(asking, outcome)
        return outcome

    def _settle(self, started: Started, asking: Asking, call: Call, outcome: Outcome) -> None:
        if outcome.reply is None and not call.requests:
            # The gateway refused the call, or no endpoint works.
            started.cancel()
            return
        used = self._meter.used(asking.asked, outcome)
        started.settle(SYSTEM.now_s(), used.tokens, used.picodollars)

    def tenant_of(self, exchange: Exchange) -> Tenant:
        """Returns the tenant of a request. Raises Refusal as `_caller` does."""
        return self._caller(exchange).tenant

    def _caller(self, exchange: Exchange) -> Caller:
        """Reads the caller of a request from its head.

        Raises Refusal if the key is missing or not accepted; if the gateway has no keys, for a
        request from another site.
        """
        header, keyring = exchange.header, self.keyring
        if not keyring.is_asked:
            refuse_other_site(exchange, serves_here_only=self._serves_here_only)
        known = keyring.known(header(b"authorization"), header(b"x-api-key"))
        asked = (header(b"cache-control") or "").lower()
        caller = Caller(
            tenant=known.tenant,
            readings=keyring.readings,
            klass=header(b"x-redline-class"),
            is_anew="no-store" in asked,
            renews="no-cache" in asked or "max-age=0" in asked,
        )
        if known.until_s == math.inf:
            exchange.keep(caller)
        return caller

    def _started(self, tenant: Tenant, facts: BodyFacts, raw: bytes, path: str) -> Started:
        """Reserves the call's cost in its tenant's limits, and counts its body as held.

        Raises Refusal if the limits do not allow the call now, or if too many bytes are held.
        """
        self._held.take(tenant.name, len(raw))
        estimate = self._meter.estimate(facts, raw, path)
        limits = tenant.limits
        started = limits.try_start(SYSTEM.now_s(), estimate.tokens, estimate.picodollars)
        if isinstance(started, Refused) and started.is_too_large:
            # That was an estimate: the least that the call uses may be within the limit.
            estimate = self._meter.cut(limits, facts, raw, path)
            started = limits.try_start(SYSTEM.now_s(), estimate.tokens, estimate.picodollars)
        if isinstance(started, Refused):
            self._held.release(tenant.name, len(raw))
            raise started.refusal()
        return started

    def _request_id(self) -> str:
        return f"{self._prefix}{next(self._numbers):x}"

    def _count(self, asking: Asking, outcome: Outcome) -> None:
        totals, reply, status = self.totals, outcome.reply, status_of(outcome)
        totals.answered(asking, status)
        if reply is not None:
            if not outcome.is_cached:
                totals.used(asking, reply.input_tokens or 0, reply.output_tokens or 0)
            return
        assert outcome.error is not None
        totals.failed(asking, status, outcome.error.what, outcome.endpoint)

    def _is_alive(self) -> bytes:
        return msgspec.json.encode({"status": "ok"})

    def _show_metrics(self) -> bytes:
        # The replacement of a lost worker continues its published counters, so the page must not
        # show higher ones.
        self.watch.publish()
        return self._metrics.page(self.watch.of_all().endpoints)

    def _trouble(self) -> Refusal | None:
        pools, now_s = self.lineup.pools, SYSTEM.now_s()
        # A load balancer sends no call while this fails, but only a call can show that an endpoint
        # works again.
        if not pools or any(pool.may_answer(now_s) for pool in pools):
            return None
        if all(pool.load(now_s).state is Health.GONE for pool in pools):
            return busy("No endpoint is left.", "no_endpoint")
        return busy("No endpoint works at the moment.", "no_endpoint")


def _is_wanted(call: Call, target: Target, state: State) -> bool:
    """Whether other calls wait for the slot of a stream, or for the memory of a whole answer."""
    if state is State.STREAMING:
        return target.waits_for_slots()
    return call.held is not None and call.held.is_wanted
