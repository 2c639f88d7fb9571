"""What a run holds of rows and of lines; while that is too much, it reads no more rows.

  what                       counts from                    until                  bound
  rows of 64 KiB and more    they are taken from the feed   they have their line   128 MiB
  lines that are not synced  they are taken                 their fsync begins     the journal's

Backpressure: reading stops until rows that were read are done, which lowers the load again.
"""

from __future__ import annotations

from redline.journal import Journal
from redline.process import Changes

# As they are in the input. What is read of a row takes as much again, and so does its request
# until the server has read it. 128 rows of 1 MB are in flight at once, and no more.
MOST_ROW_BYTES = 128 * 1024 * 1024
# Smaller rows are not counted: the 2,000 that 1,000 calls in flight have at hand are 125 MiB.
LARGE_ROW_BYTES = 64 * 1024


class Backpressure:
    """Bytes of the large rows at hand, and the lines of `journal`, None for a run without one."""

    def __init__(self, journal: Journal | None = None) -> None:
        self._row_bytes = 0
        self._journal = journal
        self._changes = Changes() if journal is None else journal.changes

    @property
    def is_full(self) -> bool:
        """Whether no more rows are to be read for now. May be asked in any thread."""
        return self.is_behind or self._row_bytes >= MOST_ROW_BYTES

    @property
    def is_behind(self) -> bool:
        """Too much is not durable yet. May be asked in any thread."""
        return self._journal is not None and self._journal.is_behind

    def add(self, row_bytes: int) -> None:
        """A large row is begun."""
        self._row_bytes += row_bytes

    def remove(self, row_bytes: int) -> None:
        """A large row is done."""
        self._row_bytes -= row_bytes
        self._changes.notify()

    async def room(self) -> None:
        """Returns once more rows may be read."""
        await self._changes.wait_for(lambda: not self.is_full)
