"""Makes the gates in front of pools, which share classes, tenants and estimates of calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from redline.route import Pool
from redline.serve.admission import ClassSettings, Gate, Gated
from redline.serve.gateway.metering import Meter, read_request
from redline.serve.keys import Tenants
from redline.serve.workers import Worker
from redline.waist import Backend, Request


class Gates:
    """Makes gates, and backends behind them.

    priorities: by class name; `Call.priority` selects the class of a call. meter: estimates the
    tokens of calls. worker: this process, if it is one of several workers, which count calls in
    flight together.
    """

    def __init__(
        self,
        classes: Sequence[ClassSettings],
        tenants: Tenants,
        meter: Meter,
        worker: Worker | None = None,
    ) -> None:
        self.classes = tuple(classes)
        self.priorities = {one.name: one.priority for one in classes}
        self.tenants = tenants
        self.meter = meter
        self._worker = worker

    def gate(self, pool: Pool, name: str, want: Callable[[], None]) -> Gate:
        """Makes the gate in front of a pool.

        name: the name of the pool, the same in all workers. want: see Gate.
        """
        worker = self._worker
        if worker is None:
            return Gate(pool, self.classes)
        return Gate(
            pool,
            self.classes,
            want=want,
            flights=lambda klass: worker.flights(f"class/{name}/{klass}"),
        )

    def gated(self, backend: Backend, gate: Gate) -> Gated:
        """Returns the backend behind the gate, which serves tenants by their weights."""
        return Gated(backend, gate, tokens_of=self._tokens_of, weight_of=self._weight_of)

    def _tokens_of(self, request: Request) -> float:
        facts, raw = read_request(request)
        return self.meter.estimate(facts, raw, request.url).tokens

    def _weight_of(self, tenant: str) -> float:
        """Returns a tenant's weight times this worker's share of the tenant's calls in flight."""
        found = self.tenants.of(tenant)
        flights = found.limits.flights
        return found.settings.weight * max(1, flights.own) / max(1, flights.count)
