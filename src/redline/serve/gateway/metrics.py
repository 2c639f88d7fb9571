"""The metrics of a gateway at /metrics: names, labels and values.

As on a job's page: base units, `_total` for counters that only grow, and few values for each label.
Label values for models are the names in the settings, and `other`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from redline._version import __version__
from redline.clock import SYSTEM
from redline.errors import ConfigError
from redline.job.exporter import MetricsPage
from redline.job.monitor import Family, counter, gauge
from redline.serve.gateway.lineup import FunctionLineup, Lineup
from redline.serve.gateway.totals import Totals
from redline.serve.http import Refusal
from redline.serve.workers import Fellows
from redline.waist import Health


class GatewayMetrics:
    """The metrics page of a gateway, built only when requested: most gateways are not monitored."""

    def __init__(self, lineup: Lineup, totals: Totals, fellows: Fellows | None) -> None:
        self._fellows = fellows
        self._lineup = lineup
        self._totals = totals
        self._page: MetricsPage | None = None

    def page(self) -> bytes:
        """The page in Prometheus' text format. Raises Refusal without prometheus-client."""
        if self._page is None:
            try:
                self._page = MetricsPage("the page /metrics")
            except ConfigError as error:
                message = f"{error.what}: {error.hint}"
                raise Refusal(message, status=501, code="not_installed") from error
        found = self.families()
        if self._fellows is not None:
            found = self._fellows.added_to(found)
        return self._page.of(found)

    def families(self) -> list[Family]:
        """The metric families of this process."""
        found = (*self._about_calls(), *self._about_endpoints())
        return [family for family in found if family.samples]

    def _about_calls(self) -> Iterator[Family]:
        totals = self._totals
        yield counter(
            "redline_serve_requests",
            "Finished calls, by the status of the answer.",
            [
                ({"model": model, "class": klass, "kind": status}, count)
                for (model, klass, status), count in totals.answers.items()
            ],
        )
        yield counter(
            "redline_serve_tokens",
            "Tokens that answers report, by direction.",
            [
                ({"model": model, "kind": kind}, count)
                for (model, kind), count in totals.tokens.items()
            ],
        )
        yield Family(
            name="redline_serve_duration_seconds",
            kind="histogram",
            about="From the arrival of a call to the end of its answer.",
            samples=[
                ({"class": klass}, durations.histogram())
                for klass, durations in totals.durations.items()
            ],
        )

    def _about_classes(self) -> Iterator[Family]:
        classes = [one for way in self._lineup.ways for one in way.gate.classes()]
        for name, about in (
            ("waiting", "Calls that wait for admission."),
            ("in_flight", "Admitted calls in flight."),
        ):
            counts = Counter[str]()
            for one in classes:
                counts[one.name] += getattr(one, name)
            yield gauge(
                f"redline_serve_{name}",
                about,
                [({"class": klass}, count) for klass, count in counts.items()],
            )
        refused = Counter[tuple[str, str]]()
        for one in classes:
            for reason, count in one.refused.items():
                refused[one.name, reason] += count
        yield counter(
            "redline_serve_refused",
            "Calls refused admission, by reason.",
            [({"class": k, "kind": reason}, n) for (k, reason), n in refused.items()],
        )

    def _about_batching(self) -> Iterator[Family]:
        if not isinstance(self._lineup, FunctionLineup):
            return
        figures = self._lineup.function.figures()
        name = {"model": self._lineup.function.name}
        about = "Batches that the function was called with."
        yield counter("redline_batches", about, [(name, figures.batches)])
        yield counter("redline_batch_items", "Items in them.", [(name, figures.items)])
        efficiency = figures.batch_efficiency
        yield gauge(
            "redline_batch_efficiency_ratio",
            "Share of the places in batches that were used.",
            [] if efficiency is None else [(name, efficiency)],
        )

    def _about_endpoints(self) -> Iterator[Family]:
        now_s = SYSTEM.now_s()
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
            ],
        )
        yield gauge(
            "redline_requests_running",
            "Requests in flight.",
            [({"endpoint": name}, one.in_flight) for name, one in attempts],
        )
        yield gauge(
            "redline_endpoint_state",
            "1 for the state of each endpoint, 0 for the others.",
            [
                ({"endpoint": member.name, "kind": state.value}, float(found is state))
                for member in self._lineup.members
                for found in (member.health(now_s),)
                for state in Health
            ],
        )
        yield counter(
            "redline_serve_failovers",
            "Calls that went to another endpoint after one had failed.",
            [({}, sum(way.failover.failovers for way in self._lineup.ways))],
        )
        yield from self._about_classes()
        yield from self._about_batching()
        if (answers := self._lineup.answers) is not None:
            found = ("hits", "hit"), ("shared", "shared"), ("misses", "miss"), ("passed", "passed")
            yield counter(
                "redline_cache_lookups",
                "Calls looked up in the answer cache.",
                [({"kind": kind}, getattr(answers.use, name)) for name, kind in found],
            )
        yield gauge(
            "redline_build_info",
            "1, with the version.",
            [({"version": __version__}, 1)],
        )
