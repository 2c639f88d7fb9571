"""Selects the rows that a run processes: those that earlier runs of the output have not done."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from redline.job.settings import Job
from redline.journal import Journal, KeySet

Holds = Callable[[int, int], bool]
Skip = Callable[[int], None]


def fate(job: Job, failed: KeySet, key: int, mark: int) -> Literal["to do", "done", "untried"]:
    """Decides what a run does with a row that has not succeeded. key, mark: see `identity`.

    failed: the rows that failed in earlier runs; they count as done unless the run retries them.
    If the run only retries rows, all others are left untried.
    """
    has_failed = failed.matches(key, mark)
    # A failed row that has been corrected since is both a row to retry and a new row.
    is_again = key in failed and (job.retries_failures or not has_failed)
    if has_failed == job.retry_failed or is_again:
        return "to do"
    return "done" if has_failed else "untried"


@dataclass(eq=False, repr=False)
class Selection:
    """Chooses the rows to process from those read, and counts what earlier runs have done.

    journal: the output's journal; None without an output: the run then processes all rows. holds:
    returns whether the row with this key and mark is in a batch; None for a run without batches.
    skip: called with the key of each row that is left out; None for no callback.
    skipped: rows left out because they have an outcome. failed_before: how many of these failed.
    untried: rows without an outcome that `retry_failed` leaves out. with_batches: rows that are in
    batches; they do not count as skipped.
    """

    _job: Job
    _journal: Journal | None
    _holds: Holds | None
    _skip: Skip | None
    skipped: int = 0
    failed_before: int = 0
    untried: int = 0
    with_batches: int = 0
    # How many of the rows read have a line in the results, and the keys of those with a failure.
    _with_line: int = 0
    _with_failure: KeySet = field(default_factory=KeySet)

    def wanted(
        self, keys: Sequence[int], undone: Sequence[int], marks: Mapping[int, int]
    ) -> Sequence[int]:
        """Returns the indices of the rows to process.

        keys: the keys of the rows read. undone: the indices of the rows that have not succeeded.
        marks: their marks, by index.
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
        """Returns a function of a key: whether the failed row with that key is gone from the input.

        Call this once the whole input has been read. For example, when a broken line has been
        fixed, it is a new row, and the old row is gone. Returns None if the output may have rows of
        another input, which are missing from this one without being gone.
        """
        has_all = 0 < len(journal.succeeded) == self._with_line
        if not (is_same_input or has_all):
            return None
        failed = journal.failed_before
        return lambda key: key in failed and key not in self._with_failure

    def _is_to_do(self, journal: Journal, key: int, mark: int) -> bool:
        """Whether this run processes the row with this key and mark, which has not succeeded."""
        self._with_line += key in journal.succeeded
        if not len(journal.failed) and not self._job.retry_failed and self._holds is None:
            return True
        if key in journal.failed:
            self._with_failure.add(key)
        if self._holds is not None and self._holds(key, mark):
            # The row is in a batch, perhaps for a retry: it is not done, and is not sent again.
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
