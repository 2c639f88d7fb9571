"""Rows from Python: any iterable, and any async iterable."""

from __future__ import annotations

import time
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Sized
from typing import Generic, TypeVar

from redline.sources.row import (
    BATCH_ROWS,
    MAX_ROW_BYTES,
    NumberedRows,
    Row,
    RowBatch,
    row_of,
)

# A row waits at most this long for the others of its batch.
_PATIENCE_S = 0.05

Items = TypeVar("Items")


class _ItemRows(NumberedRows, Generic[Items]):
    """The common part of both kinds of iterables, which still belong to their owner."""

    def __init__(self, name: str, items: Items, max_row_bytes: int = MAX_ROW_BYTES) -> None:
        super().__init__(name, len(items) if isinstance(items, Sized) else None, max_row_bytes)
        self._items = items

    def _next_row(self, value: object) -> Row:
        """The next row; a string is a prompt."""
        self._number += 1
        item = {"prompt": value} if isinstance(value, str) else value
        return row_of(item, self._number, self._max_row_bytes)


class IterableRows(_ItemRows[Iterable[object]]):
    """The rows of an iterable of dicts, strings, or values that msgspec encodes as an object.

    Exceptions of the iterable pass through `batches` unchanged.
    """

    def batches(self) -> Iterator[list[Row]]:
        """Lists of 1 to 256 rows.

        For a sized container, the batch size begins at one row, doubles while batches are quick,
        and returns to one row when a batch takes longer than 50 ms. Any other iterable may wait for
        the outcome of its last row, so each row is passed on alone.
        """
        batch = RowBatch()
        wanted, since_s = 1, time.monotonic()
        for item in self._items:
            if self._is_closed:
                return
            batch.add(self._next_row(item))
            is_late = time.monotonic() - since_s > _PATIENCE_S
            if is_late or batch.is_full or len(batch.rows) >= wanted:
                may_grow = not is_late and self.total_rows is not None
                wanted = min(2 * wanted, BATCH_ROWS) if may_grow else 1
                yield batch.take()
                since_s = time.monotonic()
        if batch.rows:
            yield batch.take()
        self._end()


class AsyncRows(_ItemRows[AsyncIterable[object]]):
    """The rows of an async iterable, each passed on as it arrives.

    The only source that runs on the event loop: its `batches` is an async iterator.
    """

    async def batches(self) -> AsyncIterator[list[Row]]:
        """Lists of one row. Raises ConfigError if none came, and what the iterable raises."""
        async for item in self._items:
            if self._is_closed:
                return
            yield [self._next_row(item)]
        self._end()
