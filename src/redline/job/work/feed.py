"""Rows for the workers: read ahead by one batch in a thread, without those already done."""

from __future__ import annotations

import asyncio
from array import array
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from operator import attrgetter
from typing import Protocol

import msgspec

from redline.job.work.backpressure import Backpressure
from redline.journal import Identifier, MessageKeys, marks_of
from redline.process import DaemonThreads, ends_task
from redline.sources import AsyncRows, Row, Source

# A thread that reads past rows already done returns after this many, so that progress is shown.
_MOST_SKIPPED = 20_000
_LOW_ROWS = 128
_MOST_LOW_ROWS = 1024
# After this many bytes, a read takes no further batch; a batch of large rows may have more.
_ENOUGH_BYTES = 768 * 1024
# The same bound once all bytes of the file are read and only rows are left to parse.
_ENOUGH_AT_END_BYTES = 4 * 1024 * 1024
_content_of = attrgetter("content")


class Picked(msgspec.Struct, gc=False):
    """A row to run. is_duplicate: an earlier row has its custom_id. key, mark: see `identity`."""

    row: Row
    key: int
    is_duplicate: bool
    mark: int = 0
    custom_id: str | None = None


class Supply(Protocol):
    """The source of rows for workers.

    ready: the next rows to do, to be taken from the left; `next` returns those after them.
    rows_read: the number of rows read so far.
    """

    @property
    def ready(self) -> deque[Picked]: ...

    @property
    def rows_read(self) -> int: ...

    async def next(self) -> Picked | None:
        """Returns the next row to do; None if there are no more, or after `close`."""

    def close(self) -> None:
        """Ends the rows."""

    def leave(self) -> None:
        """Stops waiting for a read that does not end."""


Keys = Sequence[int]
Places = Sequence[int]
Marks = Mapping[int, int]


class _Batch(msgspec.Struct):
    """The rows of one read. read, size_bytes: of all its rows, including those already done."""

    picked: list[Picked] = []
    read: int = 0
    size_bytes: int = 0
    is_end: bool = False


@dataclass(eq=False, repr=False)
class Feed:
    """The supply of a run: hands out each row that is to be done, once.

    wanted: returns the places of the rows to do, from the keys of some rows, the places of those
    that are undone, and the marks of these by place. limit: rows after the first N are not read.
    identifier: distinguishes rows. load: nothing is read while it is full. at_once: the number of
    rows that may be in hand at the same time. keeps_keys: whether `keys` is kept.
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
        # Rows handed out before the next read begins; then the rest, while more are read.
        self.ready: deque[Picked] = deque()
        self._rest: list[Picked] = []
        self._refill: asyncio.Task[None] | None = None
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_end = False
        self._is_closed = False
        self._is_let_go = False  # the source was closed
        # The error of a read, until it is raised: after the rows that were read before it.
        self._failure: BaseException | None = None
        self._iterator: Iterator[list[Row]] | None = None
        self._aiterator: AsyncIterator[list[Row]] | None = None
        self._thread = DaemonThreads(1, "redline-source")
        self._left = asyncio.Event()
        # The keys of all rows read, in input order.
        self.keys: array[int] | None = array("Q") if self.keeps_keys else None
        self.rows_read = 0
        self.rows_skipped = 0
        # The input's end or the limit was reached: `rows_read` is the number of its rows.
        self.is_read = False

    @property
    def is_input_done(self) -> bool:
        """Whether the input was read to its end or its limit, and every row handed out."""
        is_over = self._is_end and not self._is_closed and self._failure is None
        return is_over and not self.has_ready

    @property
    def is_starved(self) -> bool:
        """Whether workers wait for a row that has not been read yet."""
        return len(self._waiting) > 0 and not self._is_end

    @property
    def is_over(self) -> bool:
        """Whether no more rows will be read."""
        return self._is_end or self._is_closed

    @property
    def has_ready(self) -> bool:
        """Whether some rows are read and not handed out."""
        return bool(self.ready or self._rest)

    def read_fraction(self) -> float | None:
        """Returns the share of the input that is read, 0 to 1; None if unknown."""
        if isinstance(self.source, AsyncRows):
            return None
        return self.source.read_fraction()

    async def next(self) -> Picked | None:
        """Returns the next row to do; None if there are no more, or after `close`.

        Raises the error with which reading the input has failed, once, after the rows before it.
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
        """Ends the rows; those read and not handed out are left for the next run."""
        if self._is_let_go:
            return
        self._is_let_go = True
        if not self.is_input_done:
            self._end_early()
        self.source.close()
        if self._refill is not None:
            # It may wait for a row that never comes.
            self._refill.cancel()
        # Also during a read: its data may come in the same turn of the loop, and the client that it
        # reads with may then lose the cancellation.
        self._wake_some(len(self._waiting))

    async def aclose(self) -> None:
        """Closes the feed and waits until reading has ended."""
        self.close()
        if self._refill is not None:
            self._refill.cancel()
            left = asyncio.create_task(self._left.wait())
            await asyncio.wait((self._refill, left), return_when=asyncio.FIRST_COMPLETED)
            left.cancel()
        self._thread.shutdown(wait=False)

    def _end_early(self) -> None:
        """Drops the rows not handed out; no more follow."""
        self._is_closed = True
        self.ready.clear()
        self._rest = []

    def leave(self) -> None:
        """Makes `aclose` return although an iterable ignores its cancellation."""
        self._left.set()

    async def _turn(self) -> None:
        """Waits until there may be a row for this worker, or none for any."""
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
        """Wakes waiting workers after a read: one for each row, since thousands may wait.

        At the end of the input, or after an error, all are woken. If the read found no row, one is
        woken to start the next read.
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
                await loop.run_in_executor(self._thread, self._read, self.source, batch)
        except BaseException as error:
            if ends_task(error) and not isinstance(error, SystemExit):
                self._is_end = True
                self._end_early()
                raise
            # A worker that asks for a row after the last one raises it; none may be waiting now.
            self._failure = error
            batch.is_end = True
        if not self._is_closed:
            begin = max(0, len(batch.picked) - (0 if batch.is_end else self._low_rows))
            self.ready.extend(batch.picked[:begin])
            self._rest = batch.picked[begin:]
        self.rows_read += batch.read
        self.rows_skipped += batch.read - len(batch.picked)
        self._is_end = batch.is_end
        # A source that is closed ends early.
        self.is_read = batch.is_end and self._failure is None and not self._is_let_go
        self._refill = None

    def _read(self, source: Source, batch: _Batch) -> None:
        """Reads the next rows to do into `batch`, in the source's thread."""
        if self._iterator is None:
            self._iterator = source.batches()
        while not batch.is_end and batch.read < _MOST_SKIPPED:
            if batch.picked and (self.load.is_full or self._has_enough(batch, source)):
                break
            self._pick(next(self._iterator, None), batch)

    def _has_enough(self, batch: _Batch, source: Source) -> bool:
        """Whether the read ends with the rows that the batch has, and does not wait for more."""
        share = source.read_fraction()
        if share == 1.0:
            # All bytes are read: reading to the end waits for nothing, and makes the end known. But
            # the rest of a compressed file may be long.
            return batch.size_bytes >= _ENOUGH_AT_END_BYTES
        if share is None or not self.rows_read:
            # The next row may never come, or workers wait for the first rows.
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
            # Do not read the row after it, which a pipe may never bring.
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
        # Duplicates are identified by their content, like rows without a name.
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
