"""The run that batches belong to, and the rows that batches of earlier runs hold."""

from __future__ import annotations

from dataclasses import dataclass

from redline.calls.cost import Metered
from redline.job.settings import Job
from redline.job.work import Backpressure, Feed, Picked, Runner, Tally
from redline.journal import Journal, KeySet


class HeldRows:
    """Rows in parts from earlier runs, which need not be in the input.

    changed: those that the input has with other content. ended: those that had their line at the
    start, or that batches left and the run sends live. succeeded, failed: those with an outcome
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
        """Records that a part holds the row; False if another part holds it already."""
        if not self._keys.add(key):
            return False
        self._keys.mark((key,), (mark,))
        return True

    def holds(self, key: int, mark: int) -> bool:
        """Whether a part from an earlier run holds the row with this content. Thread-safe."""
        return self._keys.matches(key, mark)


@dataclass(frozen=True)
class World:
    """The run that batches belong to. held: rows in parts from earlier runs."""

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

        If a part holds the row with other content, the answer of its batch no longer counts. The
        row was already counted with the part.
        """
        key, held = picked.key, self.held
        if key not in held or held.holds(key, picked.mark):
            return
        held.changed.add(key)
        self.journal.outdate(key, has_failed=key in held.failed)
        if key not in held.ended:
            self.runner.offer(-1)
        if key in held.succeeded:
            # From here on, its line counts as one of an earlier run.
            self.tally.rows_saved(-1, 0, {})
            self.journal.answers.adopt()
        elif key in held.failed:
            self.tally.rows_saved(0, -1, {})
