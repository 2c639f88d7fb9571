"""The page that Prometheus reads of a job, on a port of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from redline.httpserver import PROMETHEUS, TEXT, Exchange, HttpBounds, HttpServer, header_lines
from redline.job.monitor import BOUNDS_S, Family, Histogram
from redline.sources import extra

PATH = "/metrics"
_BOUNDS = HttpBounds(most_connections=64, most_body_bytes=64 * 1024)
_WRONG_METHOD = TEXT + header_lines({"allow": "GET, HEAD"})


class MetricsServer(HttpServer):
    """Serves the metrics of a job while it is entered.

    address: host and port, 0 for a free one. Raises ConfigError without prometheus-client, and from
    `start` for an address it cannot listen on.
    """

    def __init__(self, address: tuple[str, int]) -> None:
        super().__init__("the metrics page", address, bounds=_BOUNDS)
        self._library = extra("prometheus_client", "metrics", "--metrics-port")
        self._core = extra("prometheus_client.core", "metrics", "--metrics-port")
        self._read: Callable[[], Iterable[Family]] | None = None

    @property
    def url(self) -> str:
        """`http://HOST:PORT/metrics`. Raises RedlineError before `start`."""
        return self.base_url.removesuffix("/v1") + PATH

    def show(self, read: Callable[[], Iterable[Family]]) -> None:
        """From now on the page has what `read` returns; before, it is answered with 503."""
        self._read = read

    def _handle(self, exchange: Exchange) -> None:
        if exchange.path != PATH:
            text = f"There is nothing at {exchange.path}; the metrics are at {PATH}.\n"
            exchange.respond(404, text.encode("utf-8", "replace"), TEXT)
        elif exchange.method not in ("GET", "HEAD"):
            exchange.respond(405, f"{PATH} takes GET and HEAD.\n".encode(), _WRONG_METHOD)
        elif self._read is None:
            exchange.respond(503, b"The job has not begun yet.\n", TEXT)
        else:
            exchange.respond(200, self._page(self._read()), PROMETHEUS)

    def _page(self, found: Iterable[Family]) -> bytes:
        """The families in Prometheus' text format."""
        registry = self._core.CollectorRegistry()
        registry.register(_Collector([self._metric(family) for family in found]))
        page: bytes = self._library.generate_latest(registry)
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

    async def _drain(self) -> None:
        """A page is answered at once: nothing is in flight."""


class _Collector:
    """What the library asks for its metrics."""

    def __init__(self, found: list[Any]) -> None:
        self._found = found

    def collect(self) -> list[Any]:
        return self._found
