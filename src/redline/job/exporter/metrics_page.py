"""Formats metrics as a page for Prometheus."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

from redline.job.monitor import BOUNDS_S, Family, Histogram
from redline.sources import extra


class MetricsPage:
    """Writes metrics in Prometheus' text format.

    asked_for: the setting that requires the page, for the error's message. Raises ConfigError if
    prometheus-client is not installed.
    """

    def __init__(self, asked_for: str) -> None:
        self._library = extra("prometheus_client", "metrics", asked_for)
        self._core = extra("prometheus_client.core", "metrics", asked_for)

    def of(self, found: Iterable[Family]) -> bytes:
        """Returns the page with these metrics."""
        collector = SimpleNamespace(collect=lambda: map(self._metric, found))
        page: bytes = self._library.generate_latest(collector)
        return page

    def _metric(self, family: Family) -> Any:
        name, core = family.name, self._core
        kinds = {
            "counter": core.CounterMetricFamily,
            "gauge": core.GaugeMetricFamily,
            "histogram": core.HistogramMetricFamily,
        }
        labels = list(family.samples[0][0])
        metric = kinds[family.kind](name, family.about, labels=labels)
        for labelled, value in family.samples:
            values = list(labelled.values())
            if isinstance(value, Histogram):
                bounds = (*(f"{bound:g}" for bound in BOUNDS_S), "+Inf")
                metric.add_metric(values, list(zip(bounds, value.counts, strict=True)), value.sum_s)
            else:
                metric.add_metric(values, value)
        return metric
