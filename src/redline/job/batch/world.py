"""The run that batches belong to, and the rows that batches of earlier runs hold."""

from __future__ import annotations

from dataclasses import dataclass

from redline.calls.cost import Metered
from redline.job.settings import Job
from redline.job.work import Backpressure, Feed, Runner, Tally
from redline.journal import Journal, KeySet


class HeldRows:
    """Rows in parts from earlier runs, which need not be in the input.

    changed: those whose content is another one now. ended: those that had their line at the start.
    """

    def __init__(self, journal: Journal) -> None:
        self.changed: set[int] = set()
        self.ended: set[int] = set()
        self._keys = KeySet()
        self._journal = journal

    def add(self, key: int, mark: int) -> bool:
        """Records that a part holds the row; False if another part holds it already."""
        if not self._keys.add(key):
            return False
        self._keys.mark((key,), (mark,))
        return True

    def holds(self, key: int, mark: int) -> bool:
        """Whether a part holds the row with this content.

        A row that has changed since is not held: the batch's answer for it is ignored.
        """
        if self._keys.matches(key, mark):
            return True
        if key in self._keys:
            self.changed.add(key)
            self._journal.outdate(key)
        return False


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
