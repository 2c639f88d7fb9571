"""What the gates of all pools have in common: classes, tenants, and what calls cost."""

from __future__ import annotations

from collections.abc import Sequence

from redline.serve.admission import ClassSettings, Gate, Gated
from redline.serve.gateway.metering import Meter, read_request
from redline.serve.keys import Tenants
from redline.waist import Backend, Request


class Gates:
    """A call states its class by `Call.priority`. priorities: by the names of classes."""

    def __init__(self, classes: Sequence[ClassSettings], tenants: Tenants, meter: Meter) -> None:
        self.classes = tuple(classes)
        self.priorities = {one.name: one.priority for one in classes}
        self.tenants = tenants
        self.meter = meter

    def gated(self, backend: Backend, gate: Gate) -> Gated:
        """The backend behind the gate, whose tenants share it by their weights."""
        return Gated(backend, gate, tokens_of=self._tokens_of, weight_of=self._weight_of)

    def _tokens_of(self, request: Request) -> float:
        facts, raw = read_request(request)
        return self.meter.estimate(facts, len(raw)).tokens

    def _weight_of(self, tenant: str) -> float:
        return self.tenants.of(tenant).settings.weight
