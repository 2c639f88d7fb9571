"""Supplies the rows that a run with batches sends live: its first rows, or its remaining rows."""

from __future__ import annotations

import asyncio
from array import array
from collections import deque
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from redline.job.batch.spool import drop, rows_at
from redline.job.batch.world import World
from redline.job.work import Picked, Supply
from redline.process import in_thread

_ROWS_AT_ONCE = 256


@dataclass(eq=False, repr=False)
class _Rows:
    """The base class of both supplies: hands out rows of the input, and counts the rows read."""

    _world: World

    def __post_init__(self) -> None:
        # Always empty: workers call `next` for each row.
        self.ready: deque[Picked] = deque()
        self._supply: Supply = self._world.feed

    @property
    def rows_read(self) -> int:
        return self._supply.rows_read

    def close(self) -> None:
        self._supply.close()

    def leave(self) -> None:
        self._supply.leave()

    async def _next(self) -> Picked | None:
        picked = await self._supply.next()
        if picked is not None:
            self._world.begin(picked)
        return picked


@dataclass(eq=False, repr=False)
class FirstRows(_Rows):
    """Supplies the first `most_rows` rows of the input. handed: the number handed out so far."""

    _most_rows: int
    handed: int = 0

    async def next(self) -> Picked | None:
        if self.handed >= self._most_rows:
            return None
        # Counted before the wait, because other workers call this meanwhile.
        self.handed += 1
        picked = await self._next()
        if picked is None:
            self.handed -= 1
        return picked


class LeftRows(_Rows):
    """Supplies the rows of the input, and the rows that batches have left without an outcome.

    The input comes first, because a row of a batch is skipped if the input now has it with other
    content; but an input of unknown length comes last, because it might never end. The rows of
    batches already count as offered, so handing one out does not count it again.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self._is_first = self._world.feed.read_fraction() is None
        self._left: deque[tuple[Path, array[int]]] = deque()
        self._paths: list[Path] = []
        self._own: deque[Picked] = deque()
        self._turn = asyncio.Lock()
        self._is_closed = False

    def add(self, path: Path, offsets: array[int]) -> None:
        """Adds the rows of a part. path: the part's file. offsets: of the rows, in bytes.

        `remove_files` removes the file.
        """
        self._paths.append(path)
        if offsets:
            self._left.append((path, offsets))

    @property
    def rows(self) -> int:
        """The number of rows left by batches, except those already read from their file."""
        return sum(len(offsets) for _, offsets in self._left)

    def remove_files(self) -> None:
        """Removes the files of the parts that were added. Blocks.

        Call it last: rows that were not handed out are then left for the next run.
        """
        drop(self._paths)

    async def next(self) -> Picked | None:
        first, then = self._next, self._next_left
        if self._is_first:
            first, then = then, first
        return await first() or (None if self._is_closed else await then())

    def close(self) -> None:
        self._is_closed = True
        super().close()

    async def _next_left(self) -> Picked | None:
        async with self._turn:
            while not self._own and self._left and not self._is_closed:
                self._own.extend(await in_thread(self._read))
            if not self._own or self._is_closed:
                return None
            picked = self._own.popleft()
            self._world.runner.offer(-1)
            # From here on, the row stays counted, even if the input has it with other content.
            self._world.held.ended.add(picked.key)
            return picked

    def _read(self) -> list[Picked]:
        path, offsets = self._left[0]
        found = [kept.picked for kept in rows_at(path, islice(offsets, _ROWS_AT_ONCE))]
        del offsets[: len(found)]
        if not offsets:
            self._left.popleft()
        held = self._world.held
        return [
            picked
            for picked in found
            if picked.key not in held.changed or not held.holds(picked.key, picked.mark)
        ]
