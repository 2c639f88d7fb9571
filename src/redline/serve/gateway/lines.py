"""Sends lines of batches as calls of their tenants, with the capacity left by interactive calls.

While a tenant's limits are used up, an interactive call is refused, but a line waits. Lines
therefore leave a part of these limits free; otherwise they would take all capacity as soon as it
becomes free. While no endpoint of a model works, only one line of each tenant with this model
counts against the tenant's limits at a time, to find out whether an endpoint works again; otherwise
failing lines would hold up all other lines of the tenant.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter

import msgspec

from redline.calls import Call
from redline.calls.tokens import BodyFacts
from redline.clock import SYSTEM
from redline.errors import Rejected, TimedOut, Withdrawn
from redline.serve.admission import Overloaded, QueueFull
from redline.serve.gateway.allowed import removed_for, target_of
from redline.serve.gateway.lineup import Lineup, Target
from redline.serve.gateway.metering import read_request
from redline.serve.gateway.totals import OTHER, Totals
from redline.serve.http import Refusal
from redline.serve.keys import Started
from redline.waist import Backend, Health, Load, Outcome, Request, Sink, failed

# Bounds of a pause: a limit may have room earlier than it stated.
_LONGEST_PAUSE_S = 5.0
_SHORTEST_PAUSE_S = 0.1


class Lines:
    """A backend that sends each call to the endpoints that have its model.

    A call waits until its tenant's limits allow it. It is refused if it can never start, for
    example because no endpoint has its model, or because it is larger than a limit. lineup: closed
    by its owner. klass: the class under which lines are counted.
    """

    def __init__(self, lineup: Lineup, klass: str) -> None:
        self._lineup = lineup
        self._klass = klass
        self._totals = Totals()
        # The number of lines that count against the limits, by tenant and model.
        self._counting = Counter[tuple[str, str | None]]()
        self._tenants = lineup.gates.tenants
        self._meter = lineup.gates.meter

    def load(self, now_s: float, request: Request | None = None) -> Load:
        backends: list[Backend] = [*self._lineup.pools]
        if request is not None:
            target = self._lineup.target(read_request(request)[0].model)
            backends = [] if target is None else [target.lines]
        loads = [backend.load(now_s, request) for backend in backends]
        return min(
            loads, key=lambda load: load.room_s, default=Load(state=Health.GONE, room_s=math.inf)
        )

    def count_in(self, totals: Totals) -> None:
        """Sets the counters to which lines are added."""
        self._totals = totals

    async def send(self, request: Request, call: Call, sink: Sink | None = None) -> Outcome:
        facts, raw = read_request(request)
        if removed := removed_for(self._tenants.of(call.tenant), facts):
            request = request.with_fields(**removed)
        try:
            starting = self._started(call, facts, raw, request.url)
            started = await call.in_time(starting, SYSTEM)
        except Refusal as refusal:
            return _rejected(refusal)
        except TimedOut as error:
            return failed(error)
        requests = call.requests
        with started:
            try:
                outcome = await self._sent(request, call, sink, facts, raw)
            except TimedOut as error:
                outcome = failed(error)
            except asyncio.CancelledError:
                if call.requests == requests:
                    # The call reached no endpoint, so it costs nothing.
                    started.cancel()
                raise
            finally:
                # Drops zero counts; otherwise names of models would accumulate.
                self._counting -= Counter([(call.tenant, facts.model)])
            if outcome.reply is None and call.requests == requests:
                started.cancel()
            else:
                used = self._meter.used(facts.model, outcome)
                started.settle(SYSTEM.now_s(), used.tokens, used.picodollars)
            model = facts.model if self._lineup.has(facts.model) else OTHER
            self._totals.line(call.tenant, model, self._klass, outcome)
            return outcome

    def _target(self, call: Call, facts: BodyFacts, raw: bytes) -> Target:
        return target_of(self._lineup, self._tenants.of(call.tenant), facts, raw)

    async def _sent(
        self, request: Request, call: Call, sink: Sink | None, facts: BodyFacts, raw: bytes
    ) -> Outcome:
        """Sends a call to the endpoints that currently have its model, and returns its outcome.

        Raises TimedOut at the call's deadline.
        """
        failed_at = call.avoid - call.barred
        while True:
            try:
                target = self._target(call, facts, raw)
            except Refusal as refusal:
                return _rejected(refusal)
            call.bar(target.barred)
            call.avoid |= failed_at
            outcome = await target.lines.send(request, call, sink)
            error = outcome.error
            if isinstance(error, Withdrawn):
                # Other endpoints may have its model now.
                failed_at = frozenset()
            elif isinstance(error, Overloaded | QueueFull):
                # The gateway refused the call; the line is not at fault, and may wait longer.
                pause_s = max(_SHORTEST_PAUSE_S, error.retry_after_s or 0.0)
                await call.in_time(asyncio.sleep(min(pause_s, _LONGEST_PAUSE_S)), SYSTEM)
            else:
                return outcome

    async def aclose(self) -> None:
        """Does nothing: the owner of the endpoints closes them."""

    async def _started(self, call: Call, facts: BodyFacts, raw: bytes, path: str) -> Started:
        """Waits until the tenant's limits allow the call, and reserves its cost in them.

        Raises Refusal if they can never allow it, and as `target_of` does.
        """
        limits = self._tenants.of(call.tenant).limits
        estimate = self._meter.estimate(facts, raw, path)
        is_cut = False
        while True:
            target = self._target(call, facts, raw)
            if self._counting[call.tenant, facts.model] and target.is_down():
                await asyncio.sleep(_LONGEST_PAUSE_S)
                continue
            found = limits.try_start(
                SYSTEM.now_s(), estimate.tokens, estimate.picodollars, yields=True
            )
            if isinstance(found, Started):
                self._counting[call.tenant, facts.model] += 1
                return found
            if found.is_too_large and not is_cut:
                estimate, is_cut = self._meter.cut(limits, facts, raw, path), True
                continue
            if found.retry_after_s == math.inf:
                raise found.refusal()
            await asyncio.sleep(min(found.retry_after_s, _LONGEST_PAUSE_S))


def _rejected(refusal: Refusal) -> Outcome:
    error = Rejected(str(refusal), status=refusal.status)
    error.keep_body(msgspec.json.encode(refusal.body))
    return failed(error)
