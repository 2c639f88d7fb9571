"""Rows for the workers of a run that asks some live: the first, or those left by batches."""

from __future__ import annotations

import asyncio
from array import array
from collections import deque
from itertools import islice
from pathlib import Path

from redline.job.batch.spool import drop, rows_at
from redline.job.work import Picked, Runner, Supply

_ROWS_AT_ONCE = 256


class _Rows:
    """The base of both: they continue with another supply, whose rows they count."""

    def __init__(self, supply: Supply) -> None:
        # Always empty: each row is asked for.
        self.ready: deque[Picked] = deque()
        self._supply = supply

    @property
    def rows_read(self) -> int:
        return self._supply.rows_read

    def close(self) -> None:
        self._supply.close()

    def leave(self) -> None:
        self._supply.leave()


class FirstRows(_Rows):
    """The first `most_rows` rows of another supply; a Supply. handed: rows handed out so far."""

    def __init__(self, supply: Supply, most_rows: int) -> None:
        super().__init__(supply)
        self._most_rows = most_rows
        self.handed = 0

    async def next(self) -> Picked | None:
        if self.handed >= self._most_rows:
            return None
        # Counted before it is waited for: other workers ask meanwhile.
        self.handed += 1
        picked = await self._supply.next()
        if picked is None:
            self.handed -= 1
        return picked


class LeftRows(_Rows):
    """Rows that batches have left without an outcome, then those of another supply; a Supply.

    The run has counted the former as offered when it took them in hand for a batch.
    """

    def __init__(self, supply: Supply, runner: Runner) -> None:
        super().__init__(supply)
        self._runner = runner
        self._left: deque[tuple[Path, array[int]]] = deque()
        self._paths: list[Path] = []
        self._own: deque[Picked] = deque()
        self._turn = asyncio.Lock()
        self._is_closed = False

    def add(self, path: Path, offsets: array[int]) -> None:
        """Adds the rows of a part at these offsets; `remove_files` removes its file."""
        self._paths.append(path)
        if offsets:
            self._left.append((path, offsets))

    def remove_files(self) -> None:
        """Removes the files of the parts. Blocks.

        Their rows have all been handed out, or are left for the next run.
        """
        drop(self._paths)

    async def next(self) -> Picked | None:
        async with self._turn:
            if not self._own and self._left and not self._is_closed:
                self._own.extend(await asyncio.to_thread(self._read))
            if self._own and not self._is_closed:
                return self._hand()
        return None if self._is_closed else await self._supply.next()

    def close(self) -> None:
        self._is_closed = True
        super().close()

    def _hand(self) -> Picked:
        self._runner.offer(-1)
        return self._own.popleft()

    def _read(self) -> list[Picked]:
        path, offsets = self._left[0]
        found = [kept.picked for kept in rows_at(path, islice(offsets, _ROWS_AT_ONCE))]
        del offsets[: len(found)]
        if not offsets:
            self._left.popleft()
        return found
