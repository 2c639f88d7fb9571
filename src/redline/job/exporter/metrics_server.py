"""Serves the metrics page of a job for Prometheus, on a port of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from redline.httpserver import PROMETHEUS, TEXT, Exchange, HttpBounds, HttpServer, header_lines
from redline.job.exporter.metrics_page import MetricsPage
from redline.job.monitor import Family

PATH = "/metrics"
_BOUNDS = HttpBounds(most_connections=64, most_body_bytes=64 * 1024)
_WRONG_METHOD = TEXT + header_lines({"allow": "GET, HEAD"})


class MetricsServer(HttpServer):
    """Serves the metrics of a job as long as the server is running.

    address: host and port; 0 for any free port. Raises ConfigError if prometheus-client is not
    installed; `start` raises ConfigError if the server cannot listen on the address.
    """

    def __init__(self, address: tuple[str, int]) -> None:
        super().__init__("the metrics page", address, bounds=_BOUNDS)
        self._page = MetricsPage("--metrics-port")
        self._read: Callable[[], Iterable[Family]] | None = None

    @property
    def url(self) -> str:
        """The page's URL, `http://HOST:PORT/metrics`. Raises RedlineError before `start`."""
        return self.base_url.removesuffix("/v1") + PATH

    def show(self, read: Callable[[], Iterable[Family]]) -> None:
        """Makes the page show the metrics that `read` returns; until then, it responds 503."""
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
            exchange.respond(200, self._page.of(self._read()), PROMETHEUS)

    async def _drain(self) -> None:
        """Does nothing: every request is answered at once, so none is in flight."""
