"""Defines the run that batches belong to, and the rows that parts from earlier runs hold."""

from __future__ import annotations

from dataclasses import dataclass

from redline.calls.cost import Metered
from redline.job.settings import Job
from redline.job.work import Backpressure, Feed, Picked, Runner, Tally
from redline.journal import Journal, KeySet


class HeldRows:
    """Keeps the keys of the rows in parts from earlier runs; the input need not have these rows.

    changed: rows that the input has with other content. ended: rows that had a result when the run
    began, or that batches left and this run sends live. succeeded, failed: rows with an outcome
    from their batch in this run.
    """

    def __init__(self) -> None:
        self.changed: set[int] = set()
        self.ended = KeySet()
        self.succeeded = KeySet()
        self.failed = KeySet()
        self._keys = KeySet()

    def __contains__(self, key: int) -> bool:
        return key in self._keys

    def add(self, key: int, mark: int) -> bool:
        """Records that a part holds the row; returns False if another part already holds it."""
        if not self._keys.add(key):
            return False
        self._keys.mark((key,), (mark,))
        return True

    def holds(self, key: int, mark: int) -> bool:
        """Whether a part from an earlier run holds the row with this content. Thread-safe."""
        return self._keys.matches(key, mark)


@dataclass(frozen=True)
class World:
    """The run that batches belong to.

    metered: enforces the budget; None without one. slots: the most concurrent calls.
    held: the rows in parts from earlier runs.
    """

    job: Job
    runner: Runner
    feed: Feed
    journal: Journal
    load: Backpressure
    tally: Tally
    metered: Metered | None
    slots: int
    held: HeldRows

    def begin(self, picked: Picked) -> None:
        """Begins a row of the input.

        If a part from an earlier run holds the row with other content, the answer in that part's
        batch no longer counts. The row was counted with the part, so it is not counted again.
        """
        key, held = picked.key, self.held
        if key not in held or held.holds(key, picked.mark):
            return
        held.changed.add(key)
        self.journal.outdate(key, has_failed=key in held.failed)
        if key not in held.ended:
            self.runner.offer(-1)
        if key in held.succeeded:
            # From here on, the row's line counts as a line of an earlier run.
            self.tally.rows_saved(-1, 0, {})
            self.journal.answers.adopt()
        elif key in held.failed:
            self.tally.rows_saved(0, -1, {})
