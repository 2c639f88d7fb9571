"""Reads rows from Python objects: any iterable, and any async iterable."""

from __future__ import annotations

import time
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Sized
from typing import Generic, TypeVar

from redline.sources.row import BlockingRows, Row, Rows, row_of

_PATIENCE_S = 0.05

Items = TypeVar("Items")


class _ItemRows(Rows, Generic[Items]):
    """Base of the rows of both kinds of iterables. `close` leaves the iterable itself open."""

    def __init__(self, name: str, items: Items) -> None:
        super().__init__(name, len(items) if isinstance(items, Sized) else None)
        self._items = items

    def _next_row(self, value: object) -> Row:
        """Returns the value as the next row; a string is its prompt."""
        self._number += 1
        item = {"prompt": value} if isinstance(value, str) else value
        return row_of(item, self._number, self._max_row_bytes)


class IterableRows(_ItemRows[Iterable[object]], BlockingRows):
    """The rows of an iterable of dicts, strings, or values that msgspec encodes as an object.

    Rows of a sized container are passed on at least every 50 ms. Any other iterable may wait for
    the outcome of its previous row, so each row is passed on alone. Exceptions that the iterable
    raises pass through `batches` unchanged, after the rows before them.
    """

    def _rows(self) -> Iterator[Row | None]:
        since_s = time.monotonic()
        for item in self._items:
            yield self._next_row(item)
            if self.total_rows is None or time.monotonic() - since_s > _PATIENCE_S:
                yield None
                since_s = time.monotonic()


class AsyncRows(_ItemRows[AsyncIterable[object]]):
    """The rows of an async iterable, each passed on as it arrives.

    Unlike other sources, it runs on the event loop: its `batches` is an async iterator.
    """

    async def batches(self) -> AsyncIterator[list[Row]]:
        """Yields lists of one row.

        Raises ConfigError if there is no row, and any error that the iterable raises.
        """
        async for item in self._items:
            if self._is_closed:
                return
            yield [self._next_row(item)]
        self._end()
