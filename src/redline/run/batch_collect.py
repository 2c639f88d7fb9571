"""What batches have answered becomes results: each row once, whenever the process dies.

A part ends in this order: rows that are sent again stand in a new part, lines of the others in the
journal and synced, the ledger says that it is done, its own file is removed, the provider's are.
After a death it is read again from the beginning: rows that have a line, or stand in a later part,
are passed over.
"""

from __future__ import annotations

import asyncio
import math
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from redline.calls import Outcome, failed
from redline.calls.batch_api import Batch, BatchApi
from redline.calls.metered import Metered
from redline.calls.spending import NOTHING, Amount
from redline.clock import SYSTEM
from redline.errors import CallError, NoEndpoint, Rejected
from redline.run.batch_ledger import Ledger, Note, Part
from redline.run.batch_plan import ResultLine, is_sent_again, outcome_of, read_line, unfinished
from redline.run.batch_spool import Kept, PartReader, PartWriter, chunks_of, drop
from redline.run.feed import Feed, Picked
from redline.run.journal import Journal
from redline.run.results_file import telling
from redline.run.runner import Runner
from redline.run.settings import Job
from redline.run.tally import BatchUse, Tally
from redline.run.template import parse_output_path

_LOOK_S = 0.01


@dataclass(frozen=True)
class World:
    """The run that batches belong to."""

    job: Job
    runner: Runner
    feed: Feed
    journal: Journal
    tally: Tally
    metered: Metered | None
    slots: int


@dataclass
class Rest:
    """Rows of a part that have no outcome.

    offsets: in its file. worst: what they may cost. spent: what the others have cost. attempts: the
    most batches that one of them was in.
    """

    offsets: array[int] = field(default_factory=lambda: array("Q"))
    worst: Amount = NOTHING
    spent: Amount = NOTHING
    attempts: int = 0

    def add(self, offset: int, kept: Kept) -> None:
        """One row more."""
        self.offsets.append(offset)
        self.worst = self.worst.plus(Amount(*kept.worst))
        self.attempts = max(self.attempts, kept.attempts + 1)


class Collector:
    """Turns the results of batches into lines of the journal.

    moved: by part from an earlier run, the rows that a later part holds. changed: rows of these
    parts whose content is another one now. use: counts. is_leaving: rows without an outcome are not
    sent again.
    """

    def __init__(self, world: World, ledger: Ledger, api: BatchApi, use: BatchUse) -> None:
        self.moved: dict[int, set[int]] = {}
        self.changed: set[int] = set()
        self.is_leaving = False
        self._world = world
        self._ledger = ledger
        self._api = api
        self._use = use
        self._output_path = parse_output_path(world.job.prompting.output_path)
        endpoint = world.job.endpoint
        self._label = "" if endpoint is None else endpoint.label

    async def note(self, note: Note) -> None:
        """Returns once the note is durable."""
        writing = asyncio.ensure_future(asyncio.to_thread(self._ledger.write, note))
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            # The ledger must not be closed under the thread.
            await asyncio.wait([writing])
            raise

    def has_line(self, key: int, mark: int) -> bool:
        """The row of this content has its result or failure in the journal from an earlier run."""
        journal = self._world.journal
        if journal.has_succeeded(key, mark):
            return True
        return not self._world.job.retry_failed and journal.failed.matches(key, mark)

    async def collect(self, part: Part, batch: Batch, reader: PartReader) -> Rest:
        """Saves what the batch has answered."""
        rest = Rest()
        found = {"output": batch.output_file_id, "errors": batch.error_file_id}
        for kind, file_id in found.items():
            if not file_id:
                continue
            path = self._ledger.results_path(part.number, kind)
            with telling(path):
                await self._api.download(file_id, path)
            await self._read(part, path, reader, rest)
        for offset in await asyncio.to_thread(reader.rest):
            await self._end(part, reader, offset, failed(unfinished()), rest)
        return rest

    async def refuse(self, part: Part, reader: PartReader, reasons: Mapping[int, Rejected]) -> Rest:
        """Saves the failures of the lines that made a batch fail."""
        rest = Rest()
        for number, error in reasons.items():
            offset = await asyncio.to_thread(reader.pop_line, number)
            if offset is not None:
                await self._end(part, reader, offset, failed(error), rest)
        for offset in reader.rest():
            await self._end(part, reader, offset, failed(unfinished()), rest)
        return rest

    async def leave(self, part: Part, reader: PartReader) -> Rest:
        """All of its rows that have no outcome, as they are."""
        rest = Rest()
        for offset in await asyncio.to_thread(reader.rest):
            kept = reader.read(offset)
            if self._is_open(part, kept.picked):
                rest.add(offset, kept)
        return rest

    async def send_again(
        self, reader: PartReader, part: Part, offsets: array[int], most_rows: int = 0
    ) -> int:
        """New parts of these rows, of at most so many each; 0 puts them into one.

        Returns the last one's number. With most_rows, the batch that they were in does not count
        against their retries.
        """
        size, number = most_rows or len(offsets), 0
        for begin in range(0, len(offsets), max(1, size)):
            number = self._ledger.next_number()
            chosen = offsets[begin : begin + size]
            more = 0 if most_rows else 1
            path = self._ledger.part_path(number)
            writer = await asyncio.to_thread(_copied, reader, chosen, path, more)
            await self.announce(number, writer, part.url, part.model)
        self._use.again += 0 if most_rows else len(offsets)
        return number

    async def announce(self, number: int, writer: PartWriter, url: str, model: str) -> None:
        """The part is there: its rows are durable, and the ledger says so."""
        await asyncio.to_thread(writer.finish)
        part = Note(at="part", part=number, rows=writer.rows, url=url, model=model)
        part.worst = writer.worst
        await self.note(part)

    async def finish(self, part: Part, spent: Amount, *, keeps_rows: bool = False) -> None:
        """Every row of the part has its outcome in the journal, or is elsewhere."""
        await self._saved()
        await self.note(Note(at="done", part=part.number, spent=spent))
        paths = [self._ledger.results_path(part.number, kind) for kind in ("output", "errors")]
        if not keeps_rows:
            paths.append(self._ledger.part_path(part.number))
        await asyncio.to_thread(drop, paths)

    async def tidy(self, part: Part, batch: Batch | None) -> None:
        """Deletes the provider's files. They cost nothing, and would go by themselves."""
        files = [part.file]
        if batch is not None:
            files += [batch.output_file_id or "", batch.error_file_id or ""]
        for file_id in filter(None, files):
            try:
                await self._api.delete(file_id)
            except (CallError, NoEndpoint):
                return

    async def _read(self, part: Part, path: Path, reader: PartReader, rest: Rest) -> None:
        chunks = chunks_of(path)
        while (lines := await asyncio.to_thread(next, chunks, None)) is not None:
            for raw in lines:
                line = read_line(raw)
                offset = reader.pop(line.custom_id)
                if offset is None:
                    # Not one of ours, or its second line.
                    continue
                outcome = self._outcome(line, raw, part.url)
                await self._end(part, reader, offset, outcome, rest)
            while self._world.journal.is_behind:  # noqa: ASYNC110, the journal tells nobody
                await asyncio.sleep(_LOOK_S)

    def _outcome(self, line: ResultLine, raw: bytes, url: str) -> Outcome:
        """What became of the row whose line is `raw`. Its error holds no secret."""
        outcome = outcome_of(line, url, self._output_path, SYSTEM.wall_s())
        if outcome.error is None:
            return outcome
        mask = self._api.mask
        masked = mask.body(raw)
        if masked != raw:
            # Messages quote the line cut, which could leave a part of a key in them.
            outcome = outcome_of(read_line(masked), url, self._output_path, SYSTEM.wall_s())
        if outcome.error is not None:
            mask.hide(outcome.error)
        return outcome

    async def _end(
        self, part: Part, reader: PartReader, offset: int, outcome: Outcome, rest: Rest
    ) -> None:
        """One row has come out of a batch: it is saved, or goes to the rest."""
        kept = reader.read(offset)
        world = self._world
        if world.metered is not None and outcome.reply is not None:
            cost = world.metered.cost_batched(kept.asked(self._output_path), outcome.reply)
            rest.spent = rest.spent.plus(cost)
        picked = kept.picked
        if not self._is_open(part, picked):
            return
        outcome.attempts = kept.attempts + 1
        outcome.endpoint = self._label
        outcome.is_batched = True
        if outcome.error is not None and not self.is_leaving:
            world.tally.errors[outcome.error.kind] += 1
        most = math.inf if self.is_leaving else world.job.retry.max_retries
        if is_sent_again(outcome.error, outcome.attempts, most):
            rest.add(offset, kept)
            return
        self._count(outcome)
        await world.runner.take(picked, outcome)

    def _is_open(self, part: Part, picked: Picked) -> bool:
        """The row of this part is to have its outcome from it."""
        moved = self.moved.get(part.number)
        if moved is not None and picked.key in moved:
            return False
        if self.has_line(picked.key, picked.mark):
            return False
        if moved is not None and picked.key in self.changed:
            # The input has offered it anew.
            self._world.runner.offered -= 1
            return False
        return True

    def _count(self, outcome: Outcome) -> None:
        self._use.answered += 1
        reply = outcome.reply
        if reply is not None:
            self._world.tally.input_tokens += reply.input_tokens or 0
            self._world.tally.output_tokens += reply.output_tokens or 0

    async def _saved(self) -> None:
        """Returns once all lines that were taken are durable. Raises JournalError."""
        journal, tally, runner = self._world.journal, self._world.tally, self._world.runner
        while tally.saved < runner.ended:
            if journal.failure is not None:
                raise journal.failure
            await asyncio.sleep(_LOOK_S)


def _copied(reader: PartReader, offsets: array[int], path: Path, more: int) -> PartWriter:
    """A new file of these rows, each with so many attempts more. Blocks."""
    writer = PartWriter(path)
    for offset in offsets:
        kept: Kept = reader.read(offset)
        kept.attempts += more
        writer.add(kept)
    return writer
