"""Calls on their way through the gate: in their class, and in the name of their tenant."""

from __future__ import annotations

from collections.abc import Sequence

from redline.clock import SYSTEM, Clock
from redline.serve.admission import ClassSettings, Gate, Overloaded, QueueFull
from redline.serve.gateway.metering import Meter, sized
from redline.serve.keys import Tenants
from redline.waist import Backend, Call, Load, Outcome, Request, Sink, failed


class Admission:
    """What the gates of all pools have in common: classes, tenants, and what calls cost.

    A call states its class by `Call.priority`.
    """

    def __init__(self, classes: Sequence[ClassSettings], tenants: Tenants, meter: Meter) -> None:
        self.classes = tuple(classes)
        self.priorities = {one.name: one.priority for one in classes}
        self.names = {one.priority: one.name for one in classes}
        self.tenants = tenants
        self.meter = meter


class Admitted:
    """A backend whose calls go on when the gate lets them. inner: closed by its owner."""

    def __init__(
        self, gate: Gate, inner: Backend, admission: Admission, *, clock: Clock = SYSTEM
    ) -> None:
        self._gate = gate
        self._inner = inner
        self._admission = admission
        self._clock = clock

    def load(self, now_s: float, request: Request | None = None) -> Load:
        return self._inner.load(now_s, request)

    async def send(self, request: Request, call: Call, sink: Sink | None = None) -> Outcome:
        klass, unfit = self._admission.names[call.priority], call.unfit
        place = self._gate.try_enter(klass, unfit)
        if place is not None:
            # In this form, for nearly all calls: nothing waits, so nothing is to be shared.
            try:
                return await self._inner.send(request, call, sink)
            finally:
                place.leave()
        meter, tenant = self._admission.meter, self._admission.tenants.of(call.tenant)
        facts, size_bytes = sized(request)
        try:
            place = await self._gate.enter(
                klass,
                tenant=tenant.name,
                weight=tenant.settings.weight,
                tokens=meter.estimate(facts, size_bytes).tokens,
                deadline_s=call.deadline_s,
                avoid=unfit,
            )
        except (QueueFull, Overloaded) as error:
            return failed(error)
        with place:
            outcome = await self._inner.send(request, call, sink)
            used = meter.used(facts.model, outcome).tokens
            if used is not None:
                place.settle(used)
            return outcome

    async def aclose(self) -> None:
        """What is behind the gate is closed by its owner."""
