"""The bounds on the rows and lines that a run holds; while one is reached, no rows are read.

  what                       counts from                    until                  bound
  rows of 64 KiB and more    they are taken from the feed   they have their line   128 MiB
  lines that are not synced  they are taken                 their fsync begins     the journal's

Backpressure: reading stops until enough of the rows that were read are done.
"""

from __future__ import annotations

from redline.journal import Journal
from redline.process import Changes

# Bytes as in the input. A row's values take as many bytes again, and so does its request until the
# server has read it. At most 128 rows of 1 MB are in flight at once.
MOST_ROW_BYTES = 128 * 1024 * 1024
# Smaller rows are not counted: 1,000 calls in flight hold 2,000 of them, which are 125 MiB.
LARGE_ROW_BYTES = 64 * 1024


class Backpressure:
    """The bytes of large rows at hand, and the lines of `journal`; None for a run without one."""

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
        """Whether too much is not durable yet. May be read in any thread."""
        return self._journal is not None and self._journal.is_behind

    def add(self, row_bytes: int) -> None:
        """Adds a large row that begins."""
        self._row_bytes += row_bytes

    def remove(self, row_bytes: int) -> None:
        """Removes a large row that is done."""
        self._row_bytes -= row_bytes
        self._changes.notify()

    async def room(self) -> None:
        """Waits until more rows may be read."""
        await self._changes.wait_for(lambda: not self.is_full)
