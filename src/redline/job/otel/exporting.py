"""Makes exporters over OTLP/HTTP, and tracks the state of their receiver.

The exporters are the SDK's, which retry for a while and report failures only in a log. Therefore,
the HTTP session that they use records how each of their requests ends.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from redline.clock import SYSTEM
from redline.job.settings import OtelSettings
from redline.sources import extra

PURPOSE = "[otel]"
GROUP = "otel"
# Shorter failures of the receiver are not reported.
LEAST_OUTAGE_S = 1.0
_DEEPEST = 10
_LONGEST_REASON = 200


def module(name: str) -> Any:
    """Returns a module of OpenTelemetry. Raises ConfigError with the command that installs it."""
    return extra(f"opentelemetry.{name}", GROUP, PURPOSE)


class Reach:
    """Tracks the state of the receiver; exporter threads write it, and the event loop reads it.

    host: the host of the last request. reason: why the last failed request failed. outages: the
    number of outages so far. outage: the reason for the current outage; None if there is none.
    outage_host: the host when the last outage began. back_s: the monotonic time when the last
    outage ended; -inf if none has.
    """

    def __init__(self) -> None:
        self.host = ""
        self.reason = ""
        self.outages = 0
        self._lock = threading.Lock()
        # When each signal's requests began to fail, by their URL's path; monotonic times.
        self._failing: dict[str, float] = {}
        self.outage: str | None = None
        self.outage_host = ""
        self.back_s = -math.inf

    def begin(self, url: str) -> None:
        """Records that a request to `url` is being sent."""
        self.host = urlsplit(url).netloc.rpartition("@")[2]

    def end(self, url: str, reason: str | None) -> None:
        """Records that a request to `url` has ended. reason: why it failed; None if it did not."""
        path = urlsplit(url).path
        with self._lock:
            if reason is None:
                self._failing.pop(path, None)
                return
            self.reason = reason
            self._failing.setdefault(path, SYSTEM.now_s())

    def look(self, now_s: float) -> None:
        """Updates the fields about outages, from the requests that have ended by now."""
        with self._lock:
            since_s = min(self._failing.values(), default=math.inf)
            if self.outage is None and now_s - since_s >= LEAST_OUTAGE_S:
                self.outage, self.outage_host = self.reason, self.host
                self.outages += 1
            elif self.outage is not None and not self._failing:
                self.outage, self.back_s = None, now_s


def session_of(reach: Reach) -> Any:
    """Returns a `requests.Session` that records in `reach` how each of its requests ends."""
    requests = extra("requests", GROUP, PURPOSE)
    sessions, errors = requests.Session, requests.exceptions

    def request(self: Any, method: str, url: str, **options: Any) -> Any:
        reach.begin(url)
        try:
            response = sessions.request(self, method, url, **options)
        except OSError as error:
            # Exceptions of `requests` are OSErrors, too.
            reach.end(url, _reason(error, errors))
            raise
        is_taken = 200 <= response.status_code < 400
        reach.end(url, None if is_taken else f"HTTP {response.status_code}")
        return response

    # Defined here, because the library is imported only when it is needed.
    return type("ReachSession", (sessions,), {"request": request})()


@dataclass(eq=False, repr=False)
class CountedSpans:
    """Exports spans through another span exporter, and counts the spans that were delivered."""

    _inner: Any
    _success: Any
    _is_shut: bool = False
    delivered: int = 0

    def export(self, spans: Sequence[Any]) -> Any:
        result = self._inner.export(spans)
        if result is self._success:
            self.delivered += len(spans)
        return result

    def shutdown(self) -> None:
        # Called twice: by SpanExport.give_up, and at the end of the provider's shutdown.
        if not self._is_shut:
            self._is_shut = True
            self._inner.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Returns True: no spans are kept here."""
        return True


def span_exporter(settings: OtelSettings, reach: Reach) -> CountedSpans:
    """Returns an exporter of spans to the endpoint in the settings, or in the environment."""
    exporters = module("exporter.otlp.proto.http.trace_exporter")
    made = exporters.OTLPSpanExporter(**_options(settings, "v1/traces", reach))
    return CountedSpans(made, module("sdk.trace.export").SpanExportResult.SUCCESS)


def metric_exporter(settings: OtelSettings, reach: Reach) -> Any:
    """Returns an exporter of metrics to the endpoint in the settings, or in the environment."""
    exporters = module("exporter.otlp.proto.http.metric_exporter")
    return exporters.OTLPMetricExporter(**_options(settings, "v1/metrics", reach))


def _options(settings: OtelSettings, path: str, reach: Reach) -> dict[str, Any]:
    return {
        "endpoint": f"{settings.endpoint}/{path}" if settings.endpoint else None,
        "headers": dict(settings.headers) or None,
        "session": session_of(reach),
    }


def _reason(error: BaseException, errors: Any) -> str:
    """Returns why a request failed. errors: the module `requests.exceptions`."""
    if isinstance(error, errors.SSLError):
        return "TLS failed, for example because its certificate is not accepted"
    if isinstance(error, errors.Timeout):
        return "no response in time"
    found = _os_error(error)
    if isinstance(found, ConnectionRefusedError):
        return "connection refused"
    if found is not None:
        return str(found.strerror)
    # The messages of `requests` quote the URL, whose path may contain a secret.
    is_own = isinstance(error, errors.RequestException)
    return type(error).__name__ if is_own else str(error)[:_LONGEST_REASON]


def _os_error(error: BaseException | None) -> OSError | None:
    """Returns the operating system's error inside an error of urllib3 or requests, or None."""
    for _ in range(_DEEPEST):
        if error is None:
            return None
        if isinstance(error, OSError) and error.strerror:
            return error
        inner = [error.__cause__, error.__context__, getattr(error, "reason", None), *error.args]
        error = next((one for one in inner if isinstance(one, BaseException)), None)
    return None
