"""Holds one run's objects, and makes its totals and its report from them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from redline.clock import SYSTEM
from redline.errors import ConfigError
from redline.job.show import InputCounts, Report, View
from redline.journal import Journal, Manifest
from redline.process import in_thread
from redline.sources import stream_of
from redline.timeline import Ending, Totals

if TYPE_CHECKING:
    from redline.calls.cache import AnswerStore
    from redline.job.batch import BatchRunner, HeldRows, Ledger
    from redline.job.monitor import Webhook
    from redline.job.otel import Telemetry
    from redline.job.outputs import AccountFile
    from redline.timeline import Recorder


class Kept(msgspec.Struct, frozen=True):
    """The open files of a run with an output.

    before: see `View`. account: records the spending; None for a run without a budget. ledger:
    records the batches; None if no run of the output has used the Batch API. held: the rows in
    batches of earlier runs; None for a run that neither sends batches nor ends earlier ones.
    """

    journal: Journal
    manifest: Manifest
    before: InputCounts | None
    account: AccountFile | None
    ledger: Ledger | None
    held: HeldRows | None


class Run(View, frozen=True, kw_only=True):
    """One run: its objects, and what is reported about it.

    check_source: raises ConfigError if the input has changed since it was read. answers: the store
    of the run's cache; None without one. kept: the files of the output; None without one. batches:
    the runner for the Batch API; None if all rows are sent live. recorder: writes the trace; None
    without one. webhook: sends alerts; None if none are sent. telemetry: None if nothing is sent to
    OpenTelemetry.
    """

    check_source: Callable[[], None]
    answers: AnswerStore | None
    kept: Kept | None
    batches: BatchRunner | None
    recorder: Recorder | None
    webhook: Webhook | None
    telemetry: Telemetry | None

    async def go(self) -> None:
        """Processes the rows, live or in batches.

        Then checks that the input has not changed, unless the run is ending early.
        """
        if self.batches is None:
            await self.runner.run()
        else:
            await self.batches.run()
        if not self.runner.is_draining:
            try:
                await in_thread(self.check_source)
            except ConfigError as error:
                self.runner.stop(error)

    @property
    def telemetry_notices(self) -> dict[str, str]:
        """A notice, by its kind, that OpenTelemetry is out of reach, or reachable again.

        Empty if there is no notice.
        """
        return {} if self.telemetry is None else self.telemetry.notices

    def totals(self) -> Totals:
        """Returns the current totals of the whole job, for its timeline."""
        counts, tally, spent = self.counts(), self.tally, self.bill.read()
        return Totals(
            rows=counts.rows,
            is_exact=counts.is_exact,
            done=counts.done,
            failed=counts.failed,
            untried=counts.untried,
            done_here=tally.succeeded,
            attempts=tally.attempts,
            input_tokens=tally.input_tokens,
            output_tokens=tally.output_tokens,
            spent_usd=spent.usd,
            spent_tokens=spent.tokens,
        )

    def ending(self) -> tuple[Ending, str]:
        """Returns how the run has ended, and the message of the error that stopped it, if any."""
        failure = None if self.journal is None else self.journal.failure
        error = self.runner.stopped or failure
        if error is not None:
            return "stopped", error.what
        return "interrupted" if self.runner.is_draining else "finished", ""

    @property
    def waited_s(self) -> float:
        """Seconds that the end of the run spent waiting for the webhook and OpenTelemetry."""
        return sum(one.waited_s for one in (self.webhook, self.telemetry) if one is not None)

    def _not_traced(self) -> str | None:
        """Returns why the trace ends before the end of the run; None if it is complete."""
        recorder = self.recorder
        if recorder is None or recorder.failure is None:
            return None
        return f"{self.job.trace} cannot be written: {recorder.failure.strerror}"

    def report(self, elapsed_s: float) -> Report:
        """Returns the report of the run so far. elapsed_s: its duration in seconds."""
        tally, runner, selection = self.tally, self.runner, self.selection
        before = 0 if self.journal is None else self.journal.answers.total
        return Report(
            offered=runner.offered,
            succeeded=tally.succeeded,
            failed=tally.failed,
            results=tally.succeeded + before,
            flawed=self.flawed(),
            skipped=selection.skipped,
            failed_before=selection.failed_before,
            untried=selection.untried,
            retries=tally.retries,
            failovers=tally.failovers,
            repeated=tally.repeated,
            rate_limited=tally.rate_limited,
            attempts=tally.attempts,
            most_in_flight=tally.most_in_flight,
            input_tokens=tally.input_tokens,
            output_tokens=tally.output_tokens,
            elapsed_s=elapsed_s,
            input=self.counts(),
            is_input_done=self.feed.is_input_done,
            is_of_stream=stream_of(self.job.rows) is not None,
            interrupted=runner.is_draining and runner.stopped is None,
            stopped=runner.stopped,
            errors_by_kind=tally.failures,
            spent=self.bill.read(),
            found_limits=self.found_limits(),
            endpoints=tally.endpoints(SYSTEM.now_s()),
            outages=tally.outages(SYSTEM.now_s()),
            cache=tally.cache,
            batches=tally.batches,
            cache_notes=self.answers.notes if self.answers is not None else [],
            output=self.job.output,
            abandoned=runner.abandoned,
            not_traced=self._not_traced(),
            not_recorded=self.sampler.failure,
            not_notified=None if self.webhook is None else self.webhook.failure,
            not_exported=None if self.telemetry is None else self.telemetry.failure,
        )
