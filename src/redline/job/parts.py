"""Defines the objects that a caller of `execute` may supply, such as the backend of a gateway."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from redline.calls import Backend
from redline.errors import ConfigError
from redline.events import Listener
from redline.job.settings import BATCHING, Job
from redline.job.show import Display
from redline.job.work import OnFailure, OnResult, Results, Runner, Tally
from redline.limits import Limits
from redline.sources import AsyncRows, Source


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    """Parts of a run that the caller supplies.

    A part that is None is built from the job's settings, or left out. The caller closes the parts
    that it supplies, except the source.

    backend: answers the calls of a job that has neither endpoints nor a function. The job's retries
    and budget apply to these calls; of the job's limits, only the concurrency applies. Several jobs
    may share a backend, which must order their calls by `Call.priority` and call `Call.on_write`
    before each write.
    source: read instead of the job's rows. Closed at the end of the run, or when the run drains,
    because only closing it ends a read that blocks.
    results: takes each outcome, for a job without an output. A row counts as done when `append`
    returns.
    tally: counts this run's rows and attempts, and is notified of events. Use it for one run only.
    listeners: notified of the same events, after the tally.
    display: shows the run. on_start: called with the runner, which the caller may drain or abort.
    on_result: called with the result of each row that has ended; if it returns an awaitable, the
    row's worker awaits it. on_saved: called with the number of rows that have just become durable;
    rows become durable in the order of on_result. on_failure: called with the result of each row
    that has failed. before_restart: awaited before a restart renames the files of an earlier run;
    replaced for an output in a store. on_upload: called when the upload of the output begins, with
    a function that abandons the upload. on_metrics: called with the URL of the metrics page.
    """

    backend: Backend | None = None
    source: Source | AsyncRows | None = None
    results: Results | None = None
    tally: Tally | None = None
    listeners: tuple[Listener, ...] = ()
    display: Display | None = None
    on_start: Callable[[Runner], None] | None = None
    on_result: OnResult | None = None
    on_saved: Callable[[int], None] | None = None
    on_failure: OnFailure | None = None
    before_restart: Callable[[], Awaitable[None]] | None = None
    on_upload: Callable[[Callable[[], None]], None] | None = None
    on_metrics: Callable[[str], None] | None = None

    def check(self, job: Job) -> None:
        """Raises ConfigError if a part and a setting conflict, or if nothing answers the calls."""
        if self.results is not None and job.output is not None:
            raise ConfigError(
                "results can go to the job's output or to the caller, but not to both",
                hint="leave out the output, or watch its results with on_result",
            )
        if self.backend is None:
            if not job.endpoints and job.call is None:
                raise ConfigError(
                    "a run needs an endpoint, a function to call, or a backend",
                    hint="pass one of them",
                )
            return
        concurrency = Limits()
        if not job.limits.is_adaptive:
            concurrency = Limits(concurrency=job.limits.concurrency)
        for what, setting in (
            ("an endpoint", job.endpoints),
            ("a function to call", job.call),
            ("a cache of answers", job.cache),
            ("batches", job.via in BATCHING),
            ("limits other than a fixed concurrency", job.limits != concurrency),
        ):
            if setting:
                raise ConfigError(
                    f"a supplied backend and {what} cannot be combined",
                    hint="leave one of them out; the backend may have its own cache and limits",
                )
