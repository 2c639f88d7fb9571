"""Defines what a display may read of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Protocol

import msgspec

from redline.job.settings import Job
from redline.job.show.row_count import InputCounts, RowCount
from redline.job.work import Bill, Feed, Runner, Sampler, Selection, Tally
from redline.journal import Journal
from redline.observe import Alerts


class View(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a run that a display may read while the run is in progress; `Run` has more.

    found_limits: returns the limits found so far, in words. journal: None for a run without an
    output. before: the counts of the rows that earlier runs have done; None for a run without an
    output, or if the output may hold rows of another input.
    """

    job: Job
    tally: Tally
    runner: Runner
    bill: Bill
    sampler: Sampler
    alerts: Alerts
    source_name: str
    found_limits: Callable[[], list[str]]
    feed: Feed
    selection: Selection
    row_count: RowCount
    journal: Journal | None
    before: InputCounts | None

    @property
    def telemetry_notices(self) -> dict[str, str]:
        """A notice, by its kind, that the telemetry receiver is unreachable, or reachable again."""
        return {}

    @property
    def rows_skipped(self) -> int:
        """The number of rows that were read and need not be sent, except those in batches."""
        return self.feed.rows_skipped - self.selection.with_batches

    @property
    def is_begun(self) -> bool:
        """Whether rows have been read, so that at least some of the rows done before are known."""
        return self.feed.rows_read > 0 or self.feed.is_read

    def counts(self) -> InputCounts:
        """Returns the counts of the whole input: rows done, failed and left."""
        feed, tally, total, selection = self.feed, self.tally, self.row_count, self.selection
        rows = feed.rows_read if feed.is_read else max(total.rows, feed.rows_read)
        seen = InputCounts(
            rows=rows,
            done=tally.succeeded + selection.skipped - selection.failed_before,
            failed=tally.failed + selection.failed_before,
            is_exact=feed.is_read or total.is_exact,
            untried=selection.untried,
        )
        before = self.before
        if feed.is_read or before is None:
            return seen
        if total.is_counting:
            # Rows done by earlier runs are shown from the start, before this run has read them.
            return InputCounts(
                rows=max(rows, before.rows),
                done=max(seen.done, tally.succeeded + before.done),
                failed=max(seen.failed, tally.failed + before.failed),
                is_exact=False,
                untried=seen.untried,
            )
        if not total.is_exact or before.rows > rows:
            return seen
        known = InputCounts(
            rows=rows,
            done=tally.succeeded + before.done,
            failed=tally.failed + before.failed,
            untried=rows - before.rows if self.job.retry_failed else 0,
        )
        # If these counts are impossible, some rows of the output are no longer in the input.
        is_possible = known.left >= feed.rows_read - self.rows_skipped - tally.saved
        return known if is_possible else seen

    def flawed(self) -> dict[str, int]:
        """Returns how many answers of all runs are cut, empty, filtered or refused, by reason."""
        before = Counter[str]() if self.journal is None else self.journal.answers.flaws
        return dict((before + self.tally.flawed).most_common())


class Display(Protocol):
    """Shows a run. `show` runs as a task, which is cancelled when the run has ended."""

    async def show(self, view: View) -> None: ...
