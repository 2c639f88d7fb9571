"""Bounds the rows and lines that a run holds: while a bound is reached, no rows are read.

  what                        counted from           until              bound
  row of 64 KiB or more       a worker takes it      the row is done    128 MiB in total
  line that is not synced     the journal takes it   its fsync begins   set by the journal

Backpressure: reading stops until enough of the rows that have been read are done.
"""

from __future__ import annotations

from redline.journal import Journal
from redline.process import Changes

# Bytes as in the input. A row's values take as many bytes again, and so does its request until the
# server has read it. So at most about 128 rows of 1 MiB are in flight.
MOST_ROW_BYTES = 128 * 1024 * 1024
# Smaller rows are not counted: with 1,000 calls in flight, a run holds about 2,000 of them, at most
# 125 MiB.
LARGE_ROW_BYTES = 64 * 1024


class Backpressure:
    """Counts the bytes of large rows, and reports whether reading must pause.

    journal: its unsynced lines count as well; None for a run without a journal.
    """

    def __init__(self, journal: Journal | None = None) -> None:
        self._row_bytes = 0
        self._journal = journal
        self._changes = Changes() if journal is None else journal.changes

    @property
    def is_full(self) -> bool:
        """Whether reading must pause. May be read in any thread."""
        return self.is_behind or self._row_bytes >= MOST_ROW_BYTES

    @property
    def is_behind(self) -> bool:
        """Whether too many lines are not synced yet. May be read in any thread."""
        return self._journal is not None and self._journal.is_behind

    def add(self, row_bytes: int) -> None:
        """Counts a large row that a worker has taken."""
        self._row_bytes += row_bytes

    def remove(self, row_bytes: int) -> None:
        """Stops counting a large row, which is done."""
        self._row_bytes -= row_bytes
        self._changes.notify()

    async def room(self) -> None:
        """Waits until more rows may be read."""
        await self._changes.wait_for(lambda: not self.is_full)
