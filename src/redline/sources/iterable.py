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
_END = object()

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

    Unlike other sources, it runs on the event loop: its `batches` is an async iterator. One task
    reads all rows, because an async generator may hold a timeout or a TaskGroup of its task open.
    """

    def __init__(self, name: str, items: AsyncIterable[object]) -> None:
        super().__init__(name, items)
        self._reader: asyncio.Task[None] | None = None
        self._wanted = asyncio.Event()
        # The next item, or the error in its place; None until it has been read.
        self._read: tuple[object, BaseException | None] | None = None
        self._waiting: asyncio.Future[None] | None = None

    async def batches(self) -> AsyncIterator[list[Row]]:
        """Yields lists of one row.

        Raises ConfigError if there is no row, and any error that the iterable raises.
        """
        while (item := await self._next()) is not _END and not self._is_closed:
            yield [self._next_row(item)]
        self._end()

    def close(self) -> None:
        super().close()
        self._wanted.set()

    async def _next(self) -> object:
        """Returns the next item; _END after the last one, or after `close`."""
        if self._is_closed:
            return _END
        if self._reader is None:
            self._reader = asyncio.create_task(self._read_all(), name="redline source")
        self._wanted.set()
        while self._read is None:
            self._waiting = asyncio.get_running_loop().create_future()
            try:
                await self._waiting
            except asyncio.CancelledError:
                if self._read is not None or self._reader.done():
                    raise
                # The iterable decides whether this ends it.
                self._reader.cancel()
        (item, error), self._read = self._read, None
        if error is not None:
            raise error
        return item

    def _pass_on(self, item: object, error: BaseException | None = None) -> None:
        self._read = (item, error)
        waiting = self._waiting
        # The loop is closed if an abandoned reader ends as it is garbage-collected.
        if waiting is not None and not (waiting.done() or waiting.get_loop().is_closed()):
            waiting.set_result(None)

    async def _read_all(self) -> None:
        """Reads each item once it is wanted; passes on _END after the last one or `close`."""
        try:
            items = aiter(self._items)
            reading: Awaitable[object] = anext(items)
            while True:
                self._pass_on(await reading)
                self._wanted.clear()
                try:
                    if not self._is_closed:
                        await self._wanted.wait()
                except asyncio.CancelledError as error:
                    # By a timeout or a TaskGroup that the generator holds open.
                    if not isinstance(items, AsyncGenerator):
                        raise
                    reading = items.athrow(error)
                else:
                    if self._is_closed:
                        break
                    reading = anext(items)
        except StopAsyncIteration:
            pass
        except BaseException as error:
            self._pass_on(_END, error)
            return
        self._pass_on(_END)
