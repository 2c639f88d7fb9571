"""Feeds rows to the workers: reads ahead in a thread, and skips rows already done."""

from __future__ import annotations

import asyncio
import contextvars
import math
import time
from array import array
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat
from operator import attrgetter
from typing import Protocol

import msgspec

from redline.job.work.backpressure import Backpressure
from redline.journal import Identifier, MessageKeys, marks_of
from redline.process import DaemonThreads, ends_task
from redline.sources import AsyncRows, Row, Source

# A read that skips rows already done returns after this many, so that the progress is updated.
_MOST_SKIPPED = 20_000
_LOW_ROWS = 128
_MOST_LOW_ROWS = 1024
# A read takes no further batch once it has this many bytes; a batch of large rows may have more.
_ENOUGH_BYTES = 768 * 1024
# The same bound once all bytes of the file have been read, and rows only have to be parsed.
_ENOUGH_AT_END_BYTES = 4 * 1024 * 1024
_content_of = attrgetter("content")


class Picked(msgspec.Struct, gc=False):
    """A row to process. key, mark: see `identity`.

    is_duplicate: whether an earlier row has the same custom_id.
    """

    row: Row
    key: int
    is_duplicate: bool
    mark: int = 0
    custom_id: str | None = None


class Supply(Protocol):
    """Hands out rows to workers.

    ready: the next rows to process; take them from the left, and call `next` once there are none.
    rows_read: the number of rows read so far.
    """

    @property
    def ready(self) -> deque[Picked]: ...

    @property
    def rows_read(self) -> int: ...

    async def next(self) -> Picked | None:
        """Returns the next row to process; None if there are no more, or after `close`."""

    def close(self) -> None:
        """Hands out no more rows from now on."""

    def leave(self) -> None:
        """Stops waiting for a read that does not end."""


Keys = Sequence[int]
Places = Sequence[int]
Marks = Mapping[int, int]


class _Batch(msgspec.Struct):
    """The result of one read.

    picked: the rows to process. read, size_bytes: the number and the size of all rows read,
    including those already done. is_end: whether the input's end or the limit was reached.
    """

    picked: list[Picked] = []
    read: int = 0
    size_bytes: int = 0
    is_end: bool = False


@dataclass(eq=False, repr=False)
class Feed:
    """Hands out each row that the run has to process, once. A Supply.

    wanted: gets the keys of a list of rows, the indices of the undone rows, and the marks of the
    undone rows by index; returns the indices of the rows to process. limit: the most rows to read;
    None for all. identifier: makes the rows' keys. load: no row is read while it is full. at_once:
    the most rows in hand at once. keeps_keys: whether the keys of all rows are collected in `keys`.
    """

    source: Source | AsyncRows
    wanted: Callable[[Keys, Places, Marks], Places]
    limit: int | None
    identifier: Identifier | MessageKeys = field(default_factory=Identifier)
    load: Backpressure = field(default_factory=Backpressure)
    at_once: int = 0
    keeps_keys: bool = False

    def __post_init__(self) -> None:
        # More rows are read when fewer than this are left.
        self._low_rows = max(_LOW_ROWS, min(self.at_once, _MOST_LOW_ROWS))
        # Rows to hand out before the next read begins, and those to hand out during that read.
        self.ready: deque[Picked] = deque()
        self._rest: list[Picked] = []
        self._refill: asyncio.Task[None] | None = None
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_end = False
        self._is_closed = False
        self._is_let_go = False  # the source was closed
        # Whether reading is slow: a read has not ended, or the last one took longer than the pause
        # before it. If the event loop is blocked, the pauses are long.
        self._is_slow = True
        self._ended_s = -math.inf  # when the last read ended
        # The error of a read, kept until the rows that were read before it are handed out.
        self._failure: BaseException | None = None
        self._iterator: Iterator[list[Row]] | None = None
        self._aiterator: AsyncIterator[list[Row]] | None = None
        self._thread = DaemonThreads(1, "redline-source")
        # One context for all reads: an iterable may set a context variable in one read and reset it
        # in another.
        self._context = contextvars.copy_context()
        self._left = asyncio.Event()
        # The keys of all rows read, in input order.
        self.keys: array[int] | None = array("Q") if self.keeps_keys else None
        self.rows_read = 0
        self.rows_skipped = 0
        # Whether the input's end or the limit was reached, so that `rows_read` is final.
        self.is_read = False

    @property
    def is_input_done(self) -> bool:
        """Whether the input was read to its end or its limit, and every row was handed out."""
        is_over = self._is_end and not self._is_closed and self._failure is None
        return is_over and not self.has_ready

    @property
    def is_starved(self) -> bool:
        """Whether workers wait for a row that has not been read yet."""
        is_awaited = len(self._waiting) > 0 and not self._is_end
        return is_awaited and (self._is_slow or self.load.is_full)

    @property
    def is_over(self) -> bool:
        """Whether no more rows will be read."""
        return self._is_end or self._is_closed

    @property
    def has_ready(self) -> bool:
        """Whether rows have been read that are not handed out yet."""
        return bool(self.ready or self._rest)

    def read_fraction(self) -> float | None:
        """Returns the share of the input read so far, 0 to 1; None if unknown."""
        if isinstance(self.source, AsyncRows):
            return None
        return self.source.read_fraction()

    async def next(self) -> Picked | None:
        """Returns the next row to process; None if there are no more, or after `close`.

        If reading fails, raises the error once, after the rows that were read before it.
        """
        while not self._is_closed:
            if self._refill is None and not self._is_end and not self.ready:
                self._refill = asyncio.create_task(self._fill())
                self._refill.add_done_callback(self._wake)
                self.ready.extend(self._rest)
                self._rest = []
            if self.ready:
                return self.ready.popleft()
            if self._refill is None:
                break
            await self._turn()
        failure, self._failure = self._failure, None
        if failure is not None:
            self._end_early()
            raise failure
        return None

    def close(self) -> None:
        """Closes the source and hands out no more rows.

        Rows that were read but not handed out are left for the next run.
        """
        if self._is_let_go:
            return
        self._is_let_go = True
        if not self.is_input_done:
            self._end_early()
        self.source.close()
        if self._refill is not None:
            # The read may be waiting for a row that never comes.
            self._refill.cancel()
        # Workers are woken even during a read: if its data arrives in this turn of the event loop,
        # the source's client may lose the cancellation, and the read may go on.
        self._wake_some(len(self._waiting))

    async def aclose(self) -> None:
        """Closes the feed and waits until reading has ended."""
        self.close()
        left = asyncio.create_task(self._left.wait())
        try:
            if self._refill is not None:
                await asyncio.wait((self._refill, left), return_when=asyncio.FIRST_COMPLETED)
        finally:
            left.cancel()
            self._thread.shutdown(wait=False)

    def _end_early(self) -> None:
        """Drops the rows not handed out; no more follow."""
        self._is_closed = True
        self.ready.clear()
        self._rest = []

    def leave(self) -> None:
        """Makes `aclose` return even if the caller's iterable ignores its cancellation."""
        self._left.set()

    async def _turn(self) -> None:
        """Waits until there may be a row for this worker, or until no more rows come."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if not waiter.cancelled():
                # Woken and cancelled in the same turn of the loop: another worker gets the row.
                self._wake_some(1)
            raise

    def _wake(self, refill: asyncio.Task[None]) -> None:
        """Wakes waiting workers after a read: only one for each row, since thousands may wait.

        At the end of the input, and after an error, wakes all of them. If the read found no row,
        wakes one worker, which starts the next read.
        """
        is_broken = refill.cancelled() or refill.exception() is not None
        is_over = is_broken or self._is_end
        rows = len(self.ready) + len(self._rest)
        self._wake_some(len(self._waiting) if is_over else max(1, rows))

    def _wake_some(self, count: int) -> None:
        while count > 0 and self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                count -= 1

    async def _fill(self) -> None:
        batch = _Batch()
        try:
            await self.load.room()
            if isinstance(self.source, AsyncRows):
                await self._read_async(self.source, batch)
            else:
                loop = asyncio.get_running_loop()
                read = partial(self._context.run, self._read, self.source, batch)
                await loop.run_in_executor(self._thread, read)
        except BaseException as error:
            if ends_task(error) and not isinstance(error, SystemExit | KeyboardInterrupt):
                self._is_end = True
                self._end_early()
                raise
            # Kept, because perhaps no worker is waiting: `next` raises it after the last row.
            self._failure = error
            batch.is_end = True
        if not self._is_closed:
            begin = max(0, len(batch.picked) - (0 if batch.is_end else self._low_rows))
            self.ready.extend(batch.picked[:begin])
            self._rest = batch.picked[begin:]
        self.rows_read += batch.read
        self.rows_skipped += batch.read - len(batch.picked)
        self._is_end = batch.is_end
        # A source that was closed has ended early.
        self.is_read = batch.is_end and self._failure is None and not self._is_let_go
        self._refill = None

    def _read(self, source: Source, batch: _Batch) -> None:
        """Reads the next rows to process into `batch`, in the source's thread."""
        begun_s = time.monotonic()
        pause_s = begun_s - self._ended_s
        self._is_slow = True
        if self._iterator is None:
            self._iterator = source.batches()
        while not batch.is_end and batch.read < _MOST_SKIPPED:
            if batch.picked and (self.load.is_full or self._has_enough(batch, source)):
                break
            self._pick(next(self._iterator, None), batch)
        self._ended_s = time.monotonic()
        self._is_slow = self._ended_s - begun_s >= pause_s

    def _has_enough(self, batch: _Batch, source: Source) -> bool:
        """Whether the read ends with the rows in `batch`, instead of waiting for more."""
        share = source.read_fraction()
        if share == 1.0:
            # All bytes have been read: reading on does not wait, and finds the end. But the rest of
            # a compressed file may be long.
            return batch.size_bytes >= _ENOUGH_AT_END_BYTES
        if share is None or not self.rows_read:
            # The next row may never come, or workers are waiting for the first rows.
            return True
        return len(batch.picked) > self._low_rows or batch.size_bytes >= _ENOUGH_BYTES

    async def _read_async(self, source: AsyncRows, batch: _Batch) -> None:
        if self._aiterator is None:
            self._aiterator = source.batches()
        while not batch.picked and not batch.is_end:
            self._pick(await anext(self._aiterator, None), batch)

    def _pick(self, rows: list[Row] | None, batch: _Batch) -> None:
        if rows is None:
            batch.is_end = True
            return
        if self.limit is not None and rows[-1].number >= self.limit:
            # Do not read past the limit: in a pipe, the next row may never come.
            batch.is_end = True
            rows = [row for row in rows if row.number <= self.limit]
        keys, duplicates, undone, names = self.identifier.keys(rows)
        share = self.read_fraction()
        if share:
            self.identifier.foresee(share)
        batch.size_bytes += sum(map(len, map(_content_of, rows)))
        if self.keys is not None:
            self.keys.extend(keys)
        marks = dict(zip(undone, marks_of(map(rows.__getitem__, undone)), strict=True))
        # Duplicates have no mark: they are identified by their content, like rows without a name.
        marks.update(dict.fromkeys(duplicates, 0))
        places = self.wanted(keys, undone, marks)
        batch.read += len(rows)
        batch.picked += map(
            Picked,
            map(rows.__getitem__, places),
            map(keys.__getitem__, places),
            map(frozenset(duplicates).__contains__, places),
            map(marks.get, places, repeat(0)),
            map(names.__getitem__, places),
        )
