"""Turns measurements of calls and figures of the job into OpenTelemetry metrics.

The histograms here record a value in a tenth of the time that the SDK's histograms need, which take
a lock and look up the series by its attributes for each value. That matters, because a call records
several values. For export, the histograms are converted to the SDK's types. If the job uses a
MeterProvider of the program (see `telemetry`), its instruments record every value instead.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Protocol

import msgspec

from redline._version import __version__
from redline.job.monitor import Family
from redline.job.otel.names import HISTOGRAMS, SCOPE, HistogramName, exported_name
from redline.sources import extra

Attributes = Mapping[str, str | int]

# Identifies a counter: its name and labels.
_Counter = tuple[str, frozenset[tuple[str, str]]]


# Records a value of one series.
Measure = Callable[[float], None]


class Meter(Protocol):
    """Receives measurements of calls and figures of the job."""

    def measure(self, name: HistogramName, attributes: Attributes) -> Measure:
        """Returns a function that records values of a new series; the caller keeps the function."""
        ...

    def note(self, families: Iterable[Family]) -> None:
        """Records the current figures of the job."""
        ...


class Histogram:
    """Counts the values of one series by bucket, since the job began."""

    def __init__(self, name: HistogramName, attributes: Attributes) -> None:
        self.name = name
        self.attributes = attributes
        self._bounds = name.bounds
        self.counts = [0] * (len(name.bounds) + 1)
        self.sum = 0.0
        self.least, self.most = math.inf, -math.inf

    def add(self, value: float) -> None:
        self.counts[bisect_left(self._bounds, value)] += 1
        self.sum += value
        if value < self.least:
            self.least = value
        if value > self.most:
            self.most = value


class _State(msgspec.Struct, frozen=True):
    """The values at one moment.

    histograms: the bucket counts and the sum of each histogram, by its `id`. counters: the value of
    each counter, by name and labels.
    """

    at_ns: int
    histograms: dict[int, tuple[list[int], float]] = {}
    counters: dict[_Counter, float] = {}


class Aggregated:
    """Collects values until an exporter reads them. A Meter.

    resource: the SDK's Resource that describes the sender. is_delta: whether an export has only the
    values since the last successful export, instead of all values since the job began.
    """

    def __init__(self, resource: Any, now_ns: int, *, is_delta: bool) -> None:
        self._resource = resource
        self._is_delta = is_delta
        self._sdk = extra("opentelemetry.sdk.metrics.export", "otel", "[otel]")
        scopes = extra("opentelemetry.sdk.util.instrumentation", "otel", "[otel]")
        self._scope = scopes.InstrumentationScope(SCOPE, __version__)
        self._histograms: list[Histogram] = []
        self._families: list[Family] = []
        self._base = self._read = _State(now_ns)

    def measure(self, name: HistogramName, attributes: Attributes) -> Measure:
        histogram = Histogram(name, attributes)
        self._histograms.append(histogram)
        return histogram.add

    def note(self, families: Iterable[Family]) -> None:
        self._families = _exported(families)

    def read(self, now_ns: int) -> Any:
        """Returns the current state as the SDK's MetricsData."""
        sdk = self._sdk
        self._read = _State(now_ns)
        metrics = [*self._of_histograms(now_ns), *self._of_families(now_ns)]
        scoped = sdk.ScopeMetrics(scope=self._scope, metrics=metrics, schema_url="")
        whole = sdk.ResourceMetrics(
            resource=self._resource, scope_metrics=[scoped], schema_url=self._resource.schema_url
        )
        return sdk.MetricsData(resource_metrics=[whole])

    def exported(self) -> None:
        """Records that the last state from `read` was exported."""
        if self._is_delta:
            self._base = self._read

    @property
    def _temporality(self) -> Any:
        kinds = self._sdk.AggregationTemporality
        return kinds.DELTA if self._is_delta else kinds.CUMULATIVE

    def _of_histograms(self, now_ns: int) -> list[Any]:
        sdk, found = self._sdk, []
        for name in HISTOGRAMS:
            points = [
                point
                for one in self._histograms
                if one.name is name and (point := self._histogram_point(one, now_ns)).count
            ]
            if points:
                data = sdk.Histogram(points, self._temporality)
                found.append(sdk.Metric(name.name, name.about, name.unit, data))
        return found

    def _histogram_point(self, one: Histogram, now_ns: int) -> Any:
        counts, total = list(one.counts), one.sum
        self._read.histograms[id(one)] = counts, total
        before = self._base.histograms.get(id(one))
        if before is not None:
            counts = [new - old for new, old in zip(counts, before[0], strict=True)]
            total -= before[1]
        # The minimum and the maximum are known for all values, but not for those since an export.
        is_whole = before is None
        return self._sdk.HistogramDataPoint(
            attributes=one.attributes,
            start_time_unix_nano=self._base.at_ns,
            time_unix_nano=now_ns,
            count=sum(counts),
            sum=total,
            bucket_counts=counts,
            explicit_bounds=one.name.bounds,
            min=one.least if is_whole else None,
            max=one.most if is_whole else None,
        )

    def _of_families(self, now_ns: int) -> list[Any]:
        sdk, found = self._sdk, []
        for family in self._families:
            points = [
                self._number_point(family, labels, value, now_ns)
                for labels, value in family.samples
                if isinstance(value, (int, float))
            ]
            data = sdk.Gauge(points)
            if family.kind == "counter":
                data = sdk.Sum(points, self._temporality, is_monotonic=True)
            found.append(sdk.Metric(exported_name(family), family.about, family.unit, data))
        return found

    def _number_point(
        self, family: Family, labels: Mapping[str, str], value: float, now_ns: int
    ) -> Any:
        if family.kind == "counter":
            key = family.name, frozenset(labels.items())
            self._read.counters[key] = value
            value -= self._base.counters.get(key, 0)
        return self._sdk.NumberDataPoint(
            attributes=labels,
            start_time_unix_nano=self._base.at_ns if family.kind == "counter" else 0,
            time_unix_nano=now_ns,
            value=value,
        )


class Passed:
    """Passes all values to a MeterProvider that the program has set. A Meter.

    Counters grow by each job's increments, so that the jobs of one process add up.
    """

    def __init__(self, provider: Any) -> None:
        self._meter = provider.get_meter(SCOPE, __version__)
        self._histograms = {
            name.name: self._meter.create_histogram(
                name.name,
                unit=name.unit,
                description=name.about,
                explicit_bucket_boundaries_advisory=list(name.bounds),
            )
            for name in HISTOGRAMS
        }
        self._numbers: dict[str, Any] = {}
        self._counted: dict[_Counter, float] = {}

    def measure(self, name: HistogramName, attributes: Attributes) -> Measure:
        return partial(self._histograms[name.name].record, attributes=attributes)

    def note(self, families: Iterable[Family]) -> None:
        for family in _exported(families):
            instrument = self._instrument(family)
            for labels, value in family.samples:
                if not isinstance(value, (int, float)):
                    continue
                if family.kind == "gauge":
                    instrument.set(value, labels)
                    continue
                key = family.name, frozenset(labels.items())
                instrument.add(max(0, value - self._counted.get(key, 0)), labels)
                self._counted[key] = value

    def _instrument(self, family: Family) -> Any:
        if family.name not in self._numbers:
            is_counter = family.kind == "counter"
            create = self._meter.create_counter if is_counter else self._meter.create_gauge
            self._numbers[family.name] = create(
                exported_name(family), unit=family.unit, description=family.about
            )
        return self._numbers[family.name]


def _exported(families: Iterable[Family]) -> list[Family]:
    return [family for family in families if family.unit is not None]
