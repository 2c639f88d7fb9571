"""The lines of batches, as calls of their tenants: they use what interactive calls leave."""

from __future__ import annotations

import asyncio
import math

from redline.calls import Call
from redline.calls.tokens import BodyFacts
from redline.clock import SYSTEM, Clock
from redline.errors import Rejected, TimedOut, Withdrawn
from redline.serve.gateway.allowed import target_of
from redline.serve.gateway.lineup import Lineup, Target
from redline.serve.gateway.metering import Meter, read_request
from redline.serve.http import Refusal
from redline.serve.keys import Refused, Started, Tenants
from redline.waist import Backend, Health, Load, Outcome, Request, Sink, failed

# A limit may have room earlier than it stated.
_LONGEST_PAUSE_S = 5.0


class Lines:
    """A backend that sends each call to the endpoints that have its model.

    A call waits until its tenant's limits allow it. A call that can never start is refused: no
    endpoint has its model, or it is larger than a limit. lineup: closed by its owner.
    """

    def __init__(
        self, lineup: Lineup, tenants: Tenants, meter: Meter, *, clock: Clock = SYSTEM
    ) -> None:
        self._lineup = lineup
        self._tenants = tenants
        self._meter = meter
        self._clock = clock

    def load(self, now_s: float, request: Request | None = None) -> Load:
        backends: list[Backend] = [*self._lineup.pools]
        if request is not None:
            target = self._lineup.target(read_request(request)[0].model)
            backends = [] if target is None else [target.lines]
        loads = [backend.load(now_s, request) for backend in backends]
        if not loads:
            return Load(state=Health.GONE, room_s=math.inf)
        return min(loads, key=lambda load: load.room_s)

    async def send(self, request: Request, call: Call, sink: Sink | None = None) -> Outcome:
        facts, raw = read_request(request)
        found = self._target(call.tenant, facts, raw)
        if isinstance(found, Outcome):
            return found
        try:
            started = await call.in_time(self._started(call.tenant, facts, len(raw)), self._clock)
        except TimedOut as error:
            return failed(error)
        if isinstance(started, Refused):
            return failed(Rejected(started.what, status=400))
        with started:
            outcome = await self._sent(request, call, sink, facts, raw)
            used = self._meter.used(facts.model, outcome)
            started.settle(self._clock.now_s(), used.tokens, used.picodollars)
            return outcome

    def _target(self, tenant: str, facts: BodyFacts, raw: bytes) -> Target | Outcome:
        """The target of a call; the outcome of a call that has none."""
        try:
            return target_of(self._lineup, self._tenants.of(tenant), facts, raw)
        except Refusal as refusal:
            return failed(Rejected(str(refusal), status=refusal.status))

    async def _sent(
        self, request: Request, call: Call, sink: Sink | None, facts: BodyFacts, raw: bytes
    ) -> Outcome:
        """The outcome of a call, sent to the endpoints that have its model now."""
        avoid, unfit = call.avoid, call.unfit
        while True:
            target = self._target(call.tenant, facts, raw)
            if isinstance(target, Outcome):
                return target
            call.avoid, call.unfit = avoid | target.unfit, unfit | target.unfit
            outcome = await target.lines.send(request, call, sink)
            if not isinstance(outcome.error, Withdrawn):
                return outcome

    async def aclose(self) -> None:
        """Does nothing: the owner of the endpoints closes them."""

    async def _started(self, name: str, facts: BodyFacts, size_bytes: int) -> Started | Refused:
        """The call, started once its tenant's limits allow it; Refused if they never will."""
        limits = self._tenants.of(name).limits
        estimate = self._meter.estimate(facts, size_bytes)
        while True:
            now_s = self._clock.now_s()
            found = limits.try_start(now_s, estimate.tokens, estimate.picodollars)
            if isinstance(found, Started) or found.retry_after_s == math.inf:
                return found
            await asyncio.sleep(min(found.retry_after_s, _LONGEST_PAUSE_S))
