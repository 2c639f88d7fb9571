"""Rows become parts, and parts become batches.

Rows are read from the input, put into files by path and model, and noted in the ledger as parts.
Each part becomes one batch: if its creation was not confirmed, it is looked up before it is
created again.
"""

from __future__ import annotations

import asyncio

from redline.apis import Batch
from redline.calls import Outcome, Request, failed
from redline.calls.client import BatchApi
from redline.calls.cost import NOTHING, Amount
from redline.clock import SYSTEM
from redline.errors import BadRow, CallError, Retryable
from redline.job.batch.ledger import Ledger, Note, Part
from redline.job.batch.part_store import PartStore
from redline.job.batch.plan import fits
from redline.job.batch.spool import Kept, PartWriter, upload_of
from redline.job.batch.world import World

# Parts that are not done; more rows are not read until one is.
_MOST_PARTS = 100
# A file of requests has one path and one model, so each pair fills one of its own.
_MOST_ROUTES = 8
# Providers' clocks may be off by some of this.
_CLOCK_SLACK_S = 3600.0
# A search for a batch ends after this many pages of 100, so that no list is endless.
_MOST_PAGES = 1000

Route = tuple[str, str]


class Filler:
    """Fills parts. is_read: the input has no more rows."""

    def __init__(self, world: World, ledger: Ledger, store: PartStore) -> None:
        self.is_read = False
        self._world = world
        self._ledger = ledger
        self._store = store
        self._writers: dict[Route, tuple[int, PartWriter]] = {}
        # A row that the budget has no room for until others are settled.
        self._waiting: tuple[Kept, Route] | None = None

    @property
    def has_room(self) -> bool:
        """Whether more rows may be read now."""
        is_idle = not self.is_read and self._waiting is None
        return is_idle and len(self._ledger.parts) < _MOST_PARTS

    @property
    def rows(self) -> int:
        """The number of rows in parts that are not whole yet."""
        return sum(writer.rows for _, writer in self._writers.values())

    async def fill(self) -> None:
        """Reads rows until a part is whole, or there are no more for now. Raises BudgetSpent."""
        if len(self._ledger.parts) >= _MOST_PARTS:
            return
        metered = self._world.metered
        while not self.is_read:
            self._waiting = self._waiting or await self._next()
            if self._waiting is None:
                continue
            kept, route = self._waiting
            worst = Amount(*kept.worst)
            if metered is not None and not metered.reserve(worst):
                await self.close()
                if not self._ledger.parts:
                    raise metered.spent(worst)
                return
            self._waiting = None
            if await self._add(kept, route):
                return
        await self.close()

    async def close(self) -> None:
        """Makes parts of all rows that were read."""
        for route in list(self._writers):
            await self._close(route)

    async def leave(self) -> None:
        """Makes parts of all rows that were read, also of one that the budget had no room for.

        Nothing is reserved for that one.
        """
        if self._waiting is not None:
            (kept, route), self._waiting = self._waiting, None
            kept.worst = NOTHING
            await self._add(kept, route)
        await self.close()

    def drop(self) -> None:
        """Gives up rows that are in no part yet. Blocks."""
        for _, writer in self._writers.values():
            writer.drop()
        self._writers.clear()

    async def _next(self) -> tuple[Kept, Route] | None:
        """Returns the next row that can be asked.

        None if the row that was read has its outcome, or there is no other one.
        """
        runner, metered = self._world.runner, self._world.metered
        picked = await runner.next_row()
        if picked is None:
            self.is_read = True
            return None
        runner.offer(1)
        request = await runner.request_of(picked)
        if isinstance(request, Request):
            try:
                route = _route(request)
                worst = NOTHING if metered is None else metered.batched(request)
                return Kept.of(picked, request, worst), route
            except CallError as error:
                request = failed(error)
            except (TypeError, ValueError, RecursionError) as error:
                request = failed(BadRow(f"the request is not JSON: {error}"))
            request.attempts = 0
        assert isinstance(request, Outcome)
        await runner.take(picked, request)
        return None

    async def _add(self, kept: Kept, route: Route) -> bool:
        """Puts the row into the part of its route; returns whether that made a part whole."""
        is_whole = False
        if route in self._writers:
            writer = self._writers[route][1]
            if not fits(writer.rows, writer.upload_bytes, len(kept.request) + 1):
                await self._close(route)
                is_whole = True
        elif len(self._writers) >= _MOST_ROUTES:
            fullest = max(self._writers, key=lambda each: self._writers[each][1].rows)
            await self._close(fullest)
            is_whole = True
        if route not in self._writers:
            number = self._ledger.next_number()
            self._writers[route] = number, PartWriter(self._ledger.part_path(number))
        self._writers[route][1].add(kept)
        return is_whole

    async def _close(self, route: Route) -> None:
        # Taken out before: once it is noted, its file must not be dropped, whatever happens here.
        number, writer = self._writers.pop(route)
        await self._store.announce(number, writer, *route)


def _route(request: Request) -> Route:
    """Returns path and model, which all rows of a part share.

    Raises BadRow for a request that no batch takes.
    """
    body = request.body
    if request.method != "POST" or not isinstance(body, dict):
        raise BadRow("the Batch API takes POST requests of a JSON object", hint="use --via live")
    return request.url, str(body.get("model", ""))


class Sender:
    """Uploads parts and makes their batches. max_retries: for a batch that cannot be made."""

    def __init__(self, ledger: Ledger, api: BatchApi, store: PartStore, max_retries: int) -> None:
        self._ledger = ledger
        self._api = api
        self._store = store
        self._max_retries = max_retries

    async def submit(self, part: Part) -> None:
        """Puts the part into a batch, continuing after the last noted step. Raises CallError."""
        number = part.number
        if not part.file:
            data = await asyncio.to_thread(upload_of, self._ledger.part_path(number))
            file_id = await self._api.upload(f"redline-{self._ledger.run}-{number}.jsonl", data)
            del data
            await self._store.note(Note(at="file", part=number, file=file_id))
        batch = None
        if part.state == "making":
            batch = await self.find(part)
        else:
            making = Note(at="making", part=number, wall_s=SYSTEM.wall_s())
            await self._store.note(making)
        if batch is None:
            batch = await self._make(part)
        await self._store.note(Note(at="batch", part=number, batch=batch.id))

    async def find(self, part: Part) -> Batch | None:
        """Returns the batch that was made of the part and not noted; None for none."""
        wanted = _metadata(self._ledger.run, part.number)
        oldest_s = part.making_wall_s - _CLOCK_SLACK_S
        after = None
        # Some servers ignore `after`, and show one page again and again.
        ends = set[str]()
        while True:
            batches, has_more = await self._api.page(after)
            for batch in batches:
                is_its = all(batch.metadata.get(name) == value for name, value in wanted.items())
                if is_its and batch.id not in part.batches:
                    return batch
            if not has_more or not batches or batches[-1].created_at < oldest_s:
                return None
            after = batches[-1].id
            if after in ends or len(ends) >= _MOST_PAGES:
                return None
            ends.add(after)

    async def _make(self, part: Part) -> Batch:
        """Creates a batch of the part; returns it, or one whose creation was not confirmed."""
        metadata = _metadata(self._ledger.run, part.number)
        attempt = 0
        while True:
            try:
                return await self._api.make(part.file, part.url, metadata)
            except Retryable as error:
                if attempt >= self._max_retries:
                    raise
                await asyncio.sleep(self._api.pause_s(attempt, error))
            attempt += 1
            found = await self.find(part)
            if found is not None:
                return found


def _metadata(run: str, number: int) -> dict[str, str]:
    """Returns the metadata by which a batch of this part is recognized."""
    return {"redline_run": run, "redline_part": str(number)}
