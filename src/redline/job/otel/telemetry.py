"""Sends the measurements of one job to OpenTelemetry.

If the settings contain an endpoint, the job's own exporters send to it. Otherwise, spans and
metrics each go to the provider that the program has set for them, or, if there is none, to an
exporter that the SDK's environment variables configure. The program flushes and shuts down its own
providers.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from redline._version import __version__
from redline.calls import Backend
from redline.clock import SYSTEM, Clock
from redline.errors import ConfigError
from redline.job.monitor import Family
from redline.job.otel import names
from redline.job.otel.calls import Measured, Origin, Spans, Traced
from redline.job.otel.exporting import (
    CountedSpans,
    Reach,
    metric_exporter,
    module,
    span_exporter,
)
from redline.job.otel.measures import Aggregated, Meter, Passed
from redline.job.settings import Job, OtelSettings
from redline.job.show import TELEMETRY
from redline.process import DaemonThreads, counted

# How many seconds the end of a job waits at most until the last data has been sent.
LAST_S = 3.0
# The seconds for which the progress shows that an outage is over, and the most outages it reports.
_BACK_S = 30.0
_MOST_TOLD = 10
_NS = 1e9
_DELTA = ("delta", "lowmemory")
# The SDK logs its errors, and without a handler Python would print them.
_NO_PRINT = logging.NullHandler()


def open_telemetry(job: Job) -> Telemetry | None:
    """Returns the job's telemetry; None without settings for it, or if the environment disables it.

    Raises ConfigError if the library is missing, or cannot use the environment variables.
    """
    if job.otel is None or os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    try:
        return Telemetry(job, job.otel)
    except ValueError as error:
        raise ConfigError(
            f"OpenTelemetry cannot be set up: {error}",
            where="the OTEL_* environment variables",
            hint="correct or unset them",
        ) from error


class SpanExport:
    """Exports spans through a provider that belongs to the job."""

    def __init__(self, exporter: CountedSpans, resource: Any) -> None:
        tracing, exports = module("sdk.trace"), module("sdk.trace.export")
        # No shutdown on exit, which could take half a minute: `finish` shuts down, in bounded time.
        self._provider = tracing.TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(exports.BatchSpanProcessor(exporter))
        self.exporter = exporter
        self.tracer = self._provider.get_tracer(names.SCOPE, __version__)

    async def finish(self, until_s: float) -> bool:
        """Sends the remaining spans; returns whether that ended by the monotonic time `until_s`."""
        # In a thread, because the provider's shutdown may block for half a minute.
        thread = DaemonThreads(1, "redline-otel-spans")
        has_ended = await _ended(thread.submit(self._provider.shutdown), until_s)
        thread.shutdown(wait=False)
        return has_ended

    def give_up(self) -> None:
        """Ends a `finish` that is still in progress."""
        self.exporter.shutdown()


@dataclass(eq=False, repr=False)
class MetricExport:
    """Exports metrics every `every_s` seconds, in a thread. Only the newest state is sent.

    is_lost: after `finish`, whether the last metrics were lost.
    """

    _exporter: Any
    _meter: Aggregated
    _every_s: float
    _clock: Clock
    _exporting: Future[bool] | None = None
    is_lost: bool = False

    def __post_init__(self) -> None:
        self._success = module("sdk.metrics.export").MetricExportResult.SUCCESS
        self._due_s = self._clock.now_s() + self._every_s
        self._threads = DaemonThreads(1, "redline-otel")

    def look(self, now_s: float) -> None:
        """Starts an export if it is due, unless one is in progress."""
        if now_s >= self._due_s and self._is_free():
            self._due_s = now_s + self._every_s
            self._export()

    async def finish(self, until_s: float) -> bool:
        """Exports the last metrics; they are lost unless delivered by the monotonic time `until_s`.

        Returns whether the export ended in time, even with an error.
        """
        self.is_lost = True
        if self._exporting is not None:
            await _ended(self._exporting, until_s)
        if not self._is_free():
            return False
        last = self._export()
        has_ended = await _ended(last, until_s)
        # A defect of the library must not reach the job.
        self.is_lost = not (last.done() and last.exception() is None and last.result())
        return has_ended

    def give_up(self) -> None:
        """Ends an export that is still in progress."""
        self._threads.shutdown(wait=False)
        self._exporter.shutdown()

    def _export(self) -> Future[bool]:
        data = self._meter.read(int(self._clock.wall_s() * _NS))
        self._exporting = self._threads.submit(self._send, data)
        return self._exporting

    def _send(self, data: Any) -> bool:
        is_taken = self._exporter.export(data) is self._success
        if is_taken:
            self._meter.exported()
        return is_taken

    def _is_free(self) -> bool:
        """Whether no export is in progress."""
        return self._exporting is None or self._exporting.done()


class Telemetry:
    """Measures a job's calls, and sends the measurements and the job's figures.

    `note` neither waits nor fails; the caller ends with `aclose`, after which `failure` reports the
    data that was not delivered. waited_s: the seconds that `aclose` took, which are not part of the
    job's time.
    """

    def __init__(self, job: Job, settings: OtelSettings, clock: Clock = SYSTEM) -> None:
        logging.getLogger("opentelemetry").addHandler(_NO_PRINT)
        self._settings = settings
        self._clock = clock
        self._reach = Reach()
        self._is_late = self._has_begun = False
        self.waited_s = 0.0
        places = {endpoint.label: names.place_of(endpoint.base_url) for endpoint in job.endpoints}
        self._origin = Origin(model=job.prompting.model or "", places=places)
        resource = _resource(settings, clock)
        self._span_export: SpanExport | None = None
        self._spans = self._opened_spans(resource) if settings.sample else None
        self._metric_export: MetricExport | None = None
        self._meter = self._opened_meter(resource)

    def measured(self, inner: Backend) -> Backend:
        """Returns a backend that measures attempts; each `send` of `inner` must be one attempt."""
        return Measured(inner, self._meter, self._origin)

    def traced(self, inner: Backend) -> Backend:
        """Returns a backend that makes spans of some calls of `inner`.

        Returns `inner` if the sample is 0.
        """
        if self._spans is None:
            return inner
        return Traced(inner, self._spans, self._settings.sample)

    @property
    def notices(self) -> dict[str, str]:
        """A notice that the receiver is out of reach, or is reachable again; otherwise empty."""
        reach = self._reach
        kind, who = f"{TELEMETRY}{reach.outages}", f"OpenTelemetry{_at(reach.outage_host)}"
        if reach.outages > _MOST_TOLD:
            return {}
        if reach.outage is not None:
            return {kind: f"{who} is out of reach: {reach.outage}; the job continues without it"}
        if self._clock.now_s() < reach.back_s + _BACK_S:
            return {f"{kind} is over": f"{who} accepts data again"}
        return {}

    @property
    def failure(self) -> str | None:
        """After `aclose`: which data was not delivered, and why; None if all was delivered."""
        lost = []
        if self._span_export is not None and self._spans is not None:
            missing = self._spans.ended - self._span_export.exporter.delivered
            if missing > 0:
                lost.append(f"{missing:,} of {counted(self._spans.ended, 'span')}")
        if self._metric_export is not None and self._metric_export.is_lost:
            lost.append("the last metrics")
        if not lost:
            return None
        why = self._reach.reason or (
            f"no response within {LAST_S:g} s of the job's end"
            if self._is_late
            else "there was too much to send"
        )
        return f"{' and '.join(lost)} did not reach OpenTelemetry{_at(self._reach.host)}: {why}"

    def note(self, families: Iterable[Family]) -> None:
        """Records the job's current figures, and exports when due; called once a second."""
        self._has_begun = True
        self._meter.note(families)
        now_s = self._clock.now_s()
        if self._metric_export is not None:
            self._metric_export.look(now_s)
        self._reach.look(now_s)

    async def aclose(self) -> None:
        """Sends the remaining spans and metrics for at most LAST_S seconds; abandons the rest."""
        exports = [one for one in (self._span_export, self._metric_export) if one is not None]
        begun_s = self._clock.now_s()
        until_s = begun_s + LAST_S
        try:
            # A job that could not begin has nothing to send.
            if self._has_begun:
                ended = await asyncio.gather(*(export.finish(until_s) for export in exports))
                self._is_late = not all(ended)
        finally:
            self.waited_s = self._clock.now_s() - begun_s
            for export in exports:
                export.give_up()

    def _opened_spans(self, resource: Any) -> Spans:
        tracing = module("trace")
        provider = None if self._settings.endpoint else _set_by_program(tracing, "tracer")
        if provider is not None:
            # The spans join the program's spans: their parent is the span that is open now, when
            # the job begins.
            tracer = provider.get_tracer(names.SCOPE, __version__)
            parent = module("context").get_current()
        else:
            exporter = span_exporter(self._settings, self._reach)
            self._span_export = SpanExport(exporter, resource)
            tracer, parent = self._span_export.tracer, module("context").Context()
        return Spans(tracing, tracer, parent, self._origin, self._clock)

    def _opened_meter(self, resource: Any) -> Meter:
        metrics = module("metrics")
        provider = None if self._settings.endpoint else _set_by_program(metrics, "meter")
        if provider is not None:
            return Passed(provider)
        exporter = metric_exporter(self._settings, self._reach)
        preference = os.environ.get("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "")
        is_delta = preference.strip().lower() in _DELTA
        meter = Aggregated(resource, int(self._clock.wall_s() * _NS), is_delta=is_delta)
        self._metric_export = MetricExport(exporter, meter, self._settings.every_s, self._clock)
        return meter


def _at(host: str) -> str:
    return f" at {host}" if host else ""


async def _ended(work: Future[Any], until_s: float) -> bool:
    """Waits for a thread's work until the monotonic time `until_s`; returns whether it is done."""
    waiting = asyncio.wrap_future(work)
    done, _ = await asyncio.wait([waiting], timeout=max(0.0, until_s - SYSTEM.now_s()))
    # An export that ends later must not use the event loop, which may be closed by then.
    waiting.cancel()
    return bool(done)


def _set_by_program(api: Any, kind: str) -> Any:
    """Returns the provider that the program has set; None if it has not set any."""
    provider = getattr(api, f"get_{kind}_provider")()
    # Until a provider is set, the API returns a proxy.
    return None if "Proxy" in type(provider).__name__ else provider


def _resource(settings: OtelSettings, clock: Clock) -> Any:
    """Returns a description of the sender: the service and this run.

    Because it names the run, the counters of different runs stay separate.
    """
    resources = module("sdk.resources")
    run = f"{socket.gethostname()}-{os.getpid()}-{clock.wall_s():.3f}"
    stated = {names.SERVICE_VERSION: __version__, names.SERVICE_INSTANCE: run}
    if settings.service_name:
        stated[names.SERVICE_NAME] = settings.service_name
    found = resources.Resource.create(stated)
    if str(found.attributes.get(names.SERVICE_NAME, "")).startswith("unknown_service"):
        usual = resources.Resource({names.SERVICE_NAME: names.DEFAULT_SERVICE})
        return found.merge(usual)
    return found
