"""What a run holds of rows and of lines; while that is too much, it reads no more rows.

  what                       counts from                    until                  bound
  rows of 64 KiB and more    they are taken from the feed   they have their line   128 MiB
  lines that are not synced  they are taken                 their fsync begins     the journal's

The input waits, and what was read goes on, so the load comes down again whatever it is.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator

from redline.run.journal import Journal
from redline.run.source import AsyncRows, Row, Source

# As they stand in the input. What is read of a row takes as much again, and so does its request
# until the server has read it. 128 rows of 1 MB are in flight at once, and no more.
MOST_ROW_BYTES = 128 * 1024 * 1024
# Smaller rows are not counted: the 2,000 that 1,000 calls in flight have at hand are 125 MiB.
LARGE_ROW_BYTES = 64 * 1024
_LOOK_S = 0.02


class Load:
    """row_bytes: of the large rows at hand."""

    def __init__(self) -> None:
        self.row_bytes = 0
        self.journal: Journal | None = None

    @property
    def is_full(self) -> bool:
        """No more rows are to be read for now. May be asked in any thread."""
        is_behind = self.journal is not None and self.journal.is_behind
        return is_behind or self.row_bytes >= MOST_ROW_BYTES


def paced(source: Source | AsyncRows, load: Load) -> Source | AsyncRows:
    """The same rows, read on only while the load allows."""
    if isinstance(source, AsyncRows):
        return _PacedAsyncRows(source, load)
    return _PacedRows(source, load)


class _PacedRows:
    def __init__(self, source: Source, load: Load) -> None:
        self.name = source.name
        self.total_rows = source.total_rows
        self.read_fraction = source.read_fraction
        self.check = source.check
        self._source = source
        self._load = load
        self._is_closed = threading.Event()

    def batches(self) -> Iterator[list[Row]]:
        for batch in self._source.batches():
            yield batch
            while self._load.is_full and not self._is_closed.wait(_LOOK_S):
                pass

    def close(self) -> None:
        self._source.close()
        self._is_closed.set()


class _PacedAsyncRows(AsyncRows):
    def __init__(self, source: AsyncRows, load: Load) -> None:
        self.name = source.name
        self.total_rows = source.total_rows
        self.read_fraction = source.read_fraction  # type: ignore[method-assign]
        self.close = source.close  # type: ignore[method-assign]
        self._source = source
        self._load = load

    async def batches(self) -> AsyncIterator[list[Row]]:
        async for batch in self._source.batches():
            yield batch
            # Whoever closes it cancels this wait.
            while self._load.is_full:  # noqa: ASYNC110, the load changes with each row
                await asyncio.sleep(_LOOK_S)
