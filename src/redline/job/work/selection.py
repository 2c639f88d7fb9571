"""Selects the rows that a run does: those that earlier runs of the output have not done."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from redline.job.settings import Job
from redline.journal import Journal, KeySet

Holds = Callable[[int, int], bool]
Skip = Callable[[int], None]


def fate(job: Job, failed: KeySet, key: int, mark: int) -> Literal["to do", "done", "untried"]:
    """Returns what a run does with a row that has not succeeded, by its key and content.

    failed: the rows that failed in earlier runs. They count as done unless the run retries them;
    if it does nothing but retry, other rows stay untried.
    """
    has_failed = failed.matches(key, mark)
    # A failed row that was corrected since is both a row to retry and a new row.
    is_again = key in failed and (job.retries_failures or not has_failed)
    if has_failed == job.retry_failed or is_again:
        return "to do"
    return "done" if has_failed else "untried"


@dataclass(eq=False, repr=False)
class Selection:
    """The choice of rows to do from those read, with counts of what earlier runs have done.

    journal: the output's, None for a run without one, which does all rows. holds: returns whether
    the row of this key and content is with a batch, None for a run without batches. skip: called
    with the key of each row that is left out.
    skipped: rows with an outcome; failed_before: those that failed. untried: rows without an
    outcome, which `retry_failed` leaves out. with_batches: rows that are with batches, which do not
    count as skipped.
    """

    _job: Job
    _journal: Journal | None
    _holds: Holds | None
    _skip: Skip | None
    skipped: int = 0
    failed_before: int = 0
    untried: int = 0
    with_batches: int = 0
    # The number of rows read with a line in the results, and the rows that had failed before.
    _with_line: int = 0
    _with_failure: KeySet = field(default_factory=KeySet)

    def wanted(
        self, keys: Sequence[int], undone: Sequence[int], marks: Mapping[int, int]
    ) -> Sequence[int]:
        """Returns the places of the rows to do.

        undone: places of the rows that have not succeeded. marks: theirs, by place.
        """
        journal = self._journal
        if journal is None:
            return undone
        self.skipped += len(keys) - len(undone)
        self._with_line += len(keys) - len(undone)
        has_results = len(journal.succeeded) > 0 or len(journal.failed) > 0
        if not has_results and not self._job.retry_failed and self._holds is None:
            wanted = undone
        else:
            wanted = [
                place for place in undone if self._is_to_do(journal, keys[place], marks[place])
            ]
        if self._skip is not None:
            for place in sorted(set(range(len(keys))).difference(wanted)):
                self._skip(keys[place])
        return wanted

    def is_gone(self, journal: Journal, *, is_same_input: bool) -> Callable[[int], bool] | None:
        """Returns a predicate of keys: whether the failed row is gone; None if that is unknown.

        Call it once the whole input is read. A broken line that was fixed is a new row, and the old
        one is gone. But rows of another input cannot be expected in this one.
        """
        has_all = 0 < len(journal.succeeded) == self._with_line
        if not (is_same_input or has_all):
            return None
        failed = journal.failed_before
        return lambda key: key in failed and key not in self._with_failure

    def _is_to_do(self, journal: Journal, key: int, mark: int) -> bool:
        """Whether this run is to do a row of this key and content, which has not succeeded."""
        self._with_line += key in journal.succeeded
        if not len(journal.failed) and not self._job.retry_failed and self._holds is None:
            return True
        if key in journal.failed:
            self._with_failure.add(key)
        if self._holds is not None and self._holds(key, mark):
            # It is with a batch, perhaps to be retried: not done, and not to be sent again.
            self.with_batches += 1
            return False
        found = fate(self._job, journal.failed, key, mark)
        if found == "untried":
            self.untried += 1
            return False
        if found == "done":
            self.skipped += 1
            self.failed_before += 1
            if key in journal.succeeded:
                journal.outdate(key)
        return found == "to do"
