"""Fills parts: writes rows to one file per path and model, and notes each filled part."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from redline.apis import api_of, embeddings
from redline.calls import Outcome, Request, failed
from redline.calls.cost import NOTHING
from redline.errors import BadRow, CallError
from redline.job.batch.ledger import Ledger
from redline.job.batch.part_store import PartStore
from redline.job.batch.plan import fits
from redline.job.batch.spool import Kept, PartWriter
from redline.job.batch.world import World

# The most parts that are not done; at this number, no more rows are read.
_MOST_PARTS = 100
# A file of requests has one path and one model, so each such pair fills a file of its own. At most
# this many files are open at a time: for one more, the fullest is closed, even if it has few rows.
_MOST_ROUTES = 100
_LONGEST_WAIT_S = 1.0

Route = tuple[str, str]
# A row, its path and model, and its number of inputs.
_Filling = tuple[Kept, Route, int]


@dataclass(eq=False, repr=False)
class Filler:
    """Fills parts with rows of the input. is_read: whether no more rows follow."""

    _world: World
    _ledger: Ledger
    _store: PartStore
    _writers: dict[Route, tuple[int, PartWriter]] = field(default_factory=dict)
    # A row for which the budget has no room until other rows are settled.
    _waiting: _Filling | None = None
    is_read: bool = False

    @property
    def has_room(self) -> bool:
        """Whether more rows may be read now."""
        is_idle = not self.is_read and self._waiting is None
        return is_idle and len(self._ledger.parts) < _MOST_PARTS

    @property
    def rows(self) -> int:
        """The number of rows in parts that are still being filled."""
        return sum(writer.rows for _, writer in self._writers.values())

    async def fill(self) -> None:
        """Reads rows until a part is full, no more rows follow, or the budget has no room for one.

        Returns earlier if the input is slow to deliver a row, since batches must be polled.
        Raises BudgetSpent if the budget has no room and there is no open part to wait for.
        """
        if len(self._ledger.parts) >= _MOST_PARTS:
            return
        metered = self._world.metered
        while not self.is_read:
            try:
                self._waiting = self._waiting or await self._next()
            except TimeoutError:
                return
            if self._waiting is None:
                continue
            worst = self._waiting[0].worst
            if metered is not None and not metered.reserve(worst):
                await self.close()
                if not self._ledger.parts:
                    raise metered.spent(worst)
                return
            waiting, self._waiting = self._waiting, None
            if await self._add(*waiting):
                return
        await self.close()

    async def close(self) -> None:
        """Turns all rows that were read into parts, whether full or not."""
        for route in list(self._writers):
            await self._close(route)

    async def leave(self) -> None:
        """Turns all rows that were read into parts, even a row for which the budget has no room.

        Nothing is reserved for that row.
        """
        if self._waiting is not None:
            waiting, self._waiting = self._waiting, None
            waiting[0].worst = NOTHING
            await self._add(*waiting)
        await self.close()

    def drop(self) -> None:
        """Removes the files of rows that are in no part yet. Blocks."""
        for _, writer in self._writers.values():
            writer.drop()
        self._writers.clear()

    async def _next(self) -> _Filling | None:
        """Reads a row and returns it with its path, model and number of inputs, or returns None.

        The result is None if no more rows follow, which sets `is_read`, or if no request can be
        made from the row, whose outcome is then saved. Raises TimeoutError if the input delivers no
        row for a second; the next call returns that row.
        """
        runner, metered = self._world.runner, self._world.metered
        async with asyncio.timeout(_LONGEST_WAIT_S):
            picked = await runner.next_row()
        if picked is None:
            self.is_read = True
            return None
        runner.offer(1)
        self._world.begin(picked)
        request = await runner.request_of(picked)
        if isinstance(request, Request):
            try:
                route = _route(request)
                worst = NOTHING if metered is None else metered.batched(request)
                return Kept.of(picked, request, worst), route, _inputs(request)
            except CallError as error:
                request = failed(error)
            except (TypeError, ValueError, RecursionError) as error:
                request = failed(BadRow(f"the request cannot be encoded as JSON: {error}"))
            request.attempts = 0
        assert isinstance(request, Outcome)
        await runner.take(picked, request)
        return None

    async def _add(self, kept: Kept, route: Route, inputs: int) -> bool:
        """Puts the row into the part of its path and model; returns whether that closed a part."""
        is_whole = False
        if route in self._writers:
            writer = self._writers[route][1]
            if not fits(writer.inputs, writer.upload_bytes, inputs, len(kept.request) + 1):
                await self._close(route)
                is_whole = True
        elif len(self._writers) >= _MOST_ROUTES:
            fullest = max(self._writers, key=lambda each: self._writers[each][1].rows)
            await self._close(fullest)
            is_whole = True
        if route not in self._writers:
            number = self._ledger.next_number()
            self._writers[route] = number, PartWriter(self._ledger.part_path(number))
        self._writers[route][1].add(kept, inputs)
        return is_whole

    async def _close(self, route: Route) -> None:
        # Removed first: once the part is noted, `drop` must not remove its file.
        number, writer = self._writers.pop(route)
        await self._store.announce(number, writer, *route)


def _route(request: Request) -> Route:
    """Returns the path and the model of a request, which all rows of a part share.

    Raises BadRow for a request that the Batch API does not take.
    """
    body = request.body
    if request.method != "POST" or not isinstance(body, dict):
        raise BadRow(
            "the Batch API takes only POST requests with a JSON object as the body",
            hint="use --via live",
        )
    return request.url, str(body.get("model", ""))


def _inputs(request: Request) -> int:
    """Returns the number of inputs in a request for embeddings; 1 for any other request."""
    if api_of(request.url) is not embeddings.API:
        return 1
    return embeddings.inputs(request.body) or 1
