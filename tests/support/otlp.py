"""A receiver of OTLP over HTTP on loopback, which decodes what it is sent."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Receiver:
    """What has arrived. status: of its answers. is_held: requests are taken and not answered."""

    def __init__(self) -> None:
        self.port = 0
        self.status = 200
        self.is_held = False
        self.released = threading.Event()
        self.headers: list[dict[str, str]] = []
        self.bodies: list[bytes] = []
        self.traces: list[ExportTraceServiceRequest] = []
        self.exports: list[ExportMetricsServiceRequest] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def spans(self) -> list[Any]:
        return [
            span
            for trace in self.traces
            for resource in trace.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    @property
    def resource(self) -> dict[str, Any]:
        """The attributes of what sends metrics."""
        return attributes(self.exports[-1].resource_metrics[0].resource)

    def points(self, name: str, at: int = -1) -> list[Any]:
        """The data points of a metric, as the last export has them."""
        return [
            point
            for resource in self.exports[at].resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in getattr(metric, metric.WhichOneof("data")).data_points
        ]

    def counts(self, name: str, by: str) -> Counter[Any]:
        """Of a histogram: how many values, by an attribute; None stands for a series without it."""
        found: Counter[Any] = Counter()
        for point in self.points(name):
            found[attributes(point).get(by)] += point.count
        return found

    def sums(self, name: str, by: str) -> dict[Any, float]:
        """Of a histogram: the sum of the values, by an attribute."""
        found: Counter[Any] = Counter()
        for point in self.points(name):
            found[attributes(point).get(by)] += point.sum
        return dict(found)

    def values(self, name: str, by: str, at: int = -1) -> dict[Any, float]:
        """Of a counter or gauge, by an attribute."""
        found: Counter[Any] = Counter()
        for point in self.points(name, at):
            found[attributes(point).get(by)] += getattr(point, point.WhichOneof("value"))
        return dict(found)


def attributes(of: Any) -> dict[str, Any]:
    """Those of a span, an event, a data point or a resource, as values of Python."""
    return {one.key: _value(one.value) for one in of.attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(one) for one in value.array_value.values]
    return getattr(value, kind)


@contextmanager
def receiver(port: int = 0) -> Iterator[Receiver]:
    """A receiver that serves while it is entered; what it holds is released at the end."""
    seen = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if seen.is_held:
                seen.released.wait(60)
                return
            seen.headers.append({name.lower(): value for name, value in self.headers.items()})
            if seen.status == 200:
                seen.bodies.append(body)
                if self.path == "/v1/traces":
                    seen.traces.append(ExportTraceServiceRequest.FromString(body))
                elif self.path == "/v1/metrics":
                    seen.exports.append(ExportMetricsServiceRequest.FromString(body))
            self.send_response(seen.status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        # A client that has gone is nothing to report.
        def handle_error(self, *_: object) -> None:
            pass

    with Server(("127.0.0.1", port), Handler) as server:
        seen.port = server.server_port
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield seen
        finally:
            seen.released.set()
            server.shutdown()
            thread.join()
