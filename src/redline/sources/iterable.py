"""Reads rows from Python objects: any iterable, and any async iterable."""

from __future__ import annotations

import asyncio
import time
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Iterable,
    Iterator,
    Sized,
)
from typing import Generic, TypeVar

from redline.sources.row import BlockingRows, Row, Rows, row_of

_PATIENCE_S = 0.05

Items = TypeVar("Items")


class _ItemRows(Rows, Generic[Items]):
    """Base of the rows of both kinds of iterables. `close` leaves the iterable itself open."""

    def __init__(self, name: str, items: Items) -> None:
        try:
            total_rows = len(items) if isinstance(items, Sized) else None
        except TypeError:
            total_rows = None  # `list` ignores this error, too
        super().__init__(name, total_rows)
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

    Unlike other sources, it runs on the event loop: its `batches` is an async iterator. One task
    reads all rows, because an async generator may yield inside a timeout or a TaskGroup, and both
    must be entered and left in the same task.
    """

    def __init__(self, name: str, items: AsyncIterable[object]) -> None:
        super().__init__(name, items)
        self._wanted, self._changed = asyncio.Event(), asyncio.Event()
        self._read: list[object] = []

    async def batches(self) -> AsyncIterator[list[Row]]:
        """Yields lists of one row.

        Raises ConfigError if there is no row, and any error that the iterable raises.
        """
        reader = asyncio.create_task(self._read_all(), name="redline source")
        reader.add_done_callback(lambda _: self._changed.set())
        while not self._is_closed:
            while not (self._read or reader.done()):
                self._wanted.set()
                self._changed.clear()
                try:
                    await self._changed.wait()
                except asyncio.CancelledError:
                    if self._changed.is_set():
                        raise
                    # The iterable may catch the cancellation, and continue.
                    reader.cancel()
            if self._is_closed or not self._read:
                break
            yield [self._next_row(self._read.pop(0))]
        if reader.done() and (error := reader.result()) is not None:
            raise error
        self._end()

    def close(self) -> None:
        super().close()
        self._wanted.set()

    async def _read_all(self) -> BaseException | None:
        """Reads each item once it is wanted, until `close`.

        Returns the error that the iterable raised; None if it ended or `close` was called.
        """
        try:
            items = aiter(self._items)
            while True:
                try:
                    await self._wanted.wait()
                    if self._is_closed:
                        return None
                    reading: Awaitable[object] = anext(items)
                except asyncio.CancelledError as error:
                    # A timeout or a TaskGroup inside the generator may have cancelled this task.
                    if not isinstance(items, AsyncGenerator):
                        raise
                    reading = items.athrow(error)
                self._wanted.clear()
                self._read.append(await reading)
                self._changed.set()
        except StopAsyncIteration:
            return None
        except BaseException as error:
            return error
