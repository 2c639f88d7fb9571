"""Builds the metrics of a gateway at /metrics: names, labels and values.

As on a job's page, values are in base units, the names of counters end in `_total`, and each label
has few values. The values of the label `model` are the names in the settings, and `other`; for a
function, its name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from redline._version import __version__
from redline.errors import ConfigError
from redline.job.exporter import MetricsPage
from redline.job.monitor import ENDPOINT_STATES, Family, Histogram, counter, gauge
from redline.serve.dashboard import EndpointView
from redline.serve.gateway.lineup import FunctionLineup, Lineup
from redline.serve.gateway.totals import Totals
from redline.serve.http import Refusal
from redline.serve.workers import Fellows


class GatewayMetrics(msgspec.Struct, eq=False):
    """The metrics page of a gateway, made at the first request: most gateways are not monitored."""

    _lineup: Lineup
    _totals: Totals
    _fellows: Fellows | None
    _page: MetricsPage | None = None

    def page(self, endpoints: Sequence[EndpointView]) -> bytes:
        """Returns the page in Prometheus' text format. Raises Refusal without prometheus-client.

        endpoints: those of all workers, as on the dashboard.
        """
        if self._page is None:
            try:
                self._page = MetricsPage("the page /metrics")
            except ConfigError as error:
                raise Refusal(
                    f"{error.what}: {error.hint}", status=501, code="not_installed"
                ) from error
        found = self.families()
        if self._fellows is not None:
            found = self._fellows.added_to(found)
        return self._page.of([*found, *self._about_gateway(found, endpoints)])

    def families(self) -> list[Family]:
        """Returns the metric families of this process."""
        found = (*self._about_calls(), *self._about_endpoints())
        return [family for family in found if family.samples]

    def _about_calls(self) -> Iterator[Family]:
        totals = self._totals
        yield counter(
            "redline_serve_requests",
            "Finished calls and attempts at lines of batches, by HTTP status, 499 or cut.",
            _by("model", "class", "kind", of=totals.answers),
        )
        yield counter(
            "redline_serve_tokens",
            "Tokens that answers report, by direction; cached answers do not count.",
            _by("model", "kind", of=totals.tokens),
        )
        yield Family(
            name="redline_serve_duration_seconds",
            kind="histogram",
            about="From the arrival of a call to the end of its answer, without lines of batches.",
            samples=[
                ({"class": klass}, durations.histogram())
                for klass, durations in totals.durations.items()
            ],
        )

    def _about_classes(self) -> Iterator[Family]:
        classes = self._lineup.classes()
        for name, about in (
            ("waiting", "Calls that wait for admission."),
            ("in_flight", "Admitted calls in flight."),
        ):
            counts = Counter[str]()
            for one in classes:
                counts[one.name] += getattr(one, name)
            yield gauge(f"redline_serve_{name}", about, _by("class", of=counts))
        refused = Counter[tuple[str, str]]()
        for one in classes:
            refused.update({(one.name, reason): n for reason, n in one.refused.items()})
        about = "Calls refused admission, by reason."
        yield counter("redline_serve_refused", about, _by("class", "kind", of=refused))

    def _about_batching(self) -> Iterator[Family]:
        if not isinstance(self._lineup, FunctionLineup):
            return
        figures = self._lineup.function.figures()
        name = {"model": self._lineup.function.name}
        about = "Batches with which the function was called."
        yield counter("redline_batches", about, [(name, figures.batches)])
        yield counter("redline_batch_items", "Items in all batches.", [(name, figures.items)])

    def _about_gateway(
        self, families: Sequence[Family], endpoints: Sequence[EndpointView]
    ) -> Iterator[Family]:
        """Yields the metrics that are not sums over workers. families: the sums."""
        if endpoints:
            yield gauge(
                "redline_endpoint_state",
                "1 for the current state of an endpoint, 0 for its other states.",
                [
                    ({"endpoint": one.name, "kind": state}, float(one.state == state))
                    for one in endpoints
                    for state in ENDPOINT_STATES
                ],
            )
        yield gauge("redline_build_info", "1, with the version.", [({"version": __version__}, 1)])
        if not isinstance(self._lineup, FunctionLineup):
            return
        function = self._lineup.function
        of = {one.name: value for one in families for _, value in one.samples}
        batches, items = of["redline_batches"], of["redline_batch_items"]
        assert not isinstance(batches, Histogram)
        assert not isinstance(items, Histogram)
        if batches:
            share = items / (batches * function.max_batch_size)
            samples = [({"model": function.name}, share)]
            about = "Share of the places in batches that were filled."
            yield gauge("redline_batch_efficiency_ratio", about, samples)

    def _about_endpoints(self) -> Iterator[Family]:
        attempts = self._lineup.attempts.items()
        yield counter(
            "redline_requests",
            "Requests written to an endpoint, including failovers.",
            [({"endpoint": name}, one.attempts) for name, one in attempts],
        )
        yield counter(
            "redline_request_errors",
            "Failed attempts, by the kind of the error.",
            [
                ({"endpoint": name, "kind": kind}, count)
                for name, one in attempts
                for kind, count in one.errors.items()
                if kind != "cancelled"
            ],
        )
        yield gauge(
            "redline_requests_running",
            "Requests in flight.",
            [({"endpoint": name}, one.in_flight) for name, one in attempts],
        )
        yield counter(
            "redline_serve_failovers",
            "How many times calls were sent to another endpoint after one had failed.",
            [({}, self._lineup.failovers)],
        )
        yield from self._about_classes()
        yield from self._about_batching()
        if self._lineup.remembered is not None:
            use = self._lineup.cache_use
            yield counter(
                "redline_cache_lookups",
                "Calls, by the result of their lookup in the answer cache.",
                [
                    ({"kind": "hit"}, use.hits),
                    ({"kind": "shared"}, use.shared),
                    ({"kind": "miss"}, use.misses),
                    ({"kind": "passed"}, use.passed),
                ],
            )


def _by(*labels: str, of: Mapping[Any, float]) -> list[tuple[dict[str, str], float]]:
    """Makes samples from values.

    of: the values, keyed by the label's value, or by a tuple of values for several labels.
    """
    return [
        (dict(zip(labels, (key,) if isinstance(key, str) else key, strict=True)), value)
        for key, value in of.items()
    ]
