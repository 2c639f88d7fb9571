"""Takes each part through its steps, each of which is durable before the next begins.

A part ends in this order: rows to send again in a batch are put into a new part; the journal, which
has the lines of the others, is synced; the ledger notes that the part is done; the part's local
files are removed, then its files at the provider. If the process dies before the note, the next run
reads the part from the beginning and skips rows that have succeeded or are in a later part. If the
creation of a batch was not confirmed, the batch is looked up before another is created.
"""

from __future__ import annotations

import asyncio
from array import array
from dataclasses import dataclass
from pathlib import Path

from redline.apis import Batch
from redline.calls.client import BatchApi
from redline.calls.cost import Amount
from redline.clock import SYSTEM
from redline.errors import CallError, Final, NoEndpoint, Rejected, Retryable
from redline.job.batch.ledger import Ledger, Note, Part
from redline.job.batch.plan import MOST_PROCESSING_S, appears_s, next_look_s
from redline.job.batch.spool import Kept, PartReader, PartWriter, drop, upload_of
from redline.job.work import BatchUse
from redline.journal import Journal
from redline.process import in_thread

# A provider's clock may be wrong by up to this many seconds.
_CLOCK_SLACK_S = 3600.0
# HTTP statuses after which a batch may exist: the provider did not respond (None), or a proxy in
# front of it gave up.
_UNCONFIRMED = (None, 502, 504)
# A search for a batch ends after this many pages of 100 batches, even if the list has no end.
_MOST_PAGES = 1000


@dataclass(eq=False, repr=False)
class PartStore:
    """Keeps the parts of one output: on disk, in the ledger, and as files at the provider.

    use: counts the rows that are sent again. max_retries: the most retries when a batch is created.
    """

    _ledger: Ledger
    _journal: Journal
    _api: BatchApi
    _use: BatchUse
    _max_retries: int

    async def note(self, note: Note) -> None:
        """Writes a note to the ledger; returns once the note is durable."""
        writing = in_thread(self._ledger.write, note)
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            # The ledger must not be closed while the thread writes to it.
            await asyncio.wait([writing])
            raise

    async def announce(self, number: int, writer: PartWriter, url: str, model: str) -> None:
        """Makes a part's rows durable, then notes the part in the ledger."""
        await in_thread(writer.finish)
        part = Note(at="part", part=number, rows=writer.rows, url=url, model=model)
        part.worst = writer.worst
        await self.note(part)

    async def submit(self, part: Part) -> None:
        """Puts the part into a batch, continuing after the last noted step.

        Raises CallError or NoEndpoint, and JournalError if the ledger cannot be written.
        """
        number = part.number
        was_uploaded = bool(part.file)
        if not was_uploaded:
            await self._upload(part)
        batch = await self.made(part) if part.state == "making" else None
        if batch is None:
            try:
                batch = await self._make(part)
            except Rejected:
                if not was_uploaded:
                    raise
                # The provider may have deleted the file since its upload.
                await self.tidy(part, None)
                await self._upload(part)
                batch = await self._make(part)
        await self.note(Note(at="batch", part=number, batch=batch.id))

    async def _upload(self, part: Part) -> None:
        """Uploads the part's requests; an earlier upload no longer counts.

        Returns once the provider has processed the file, or has taken MOST_PROCESSING_S for it.
        """
        data = await in_thread(upload_of, self._ledger.part_path(part.number))
        file = await self._api.upload(f"redline-{self._ledger.run}-{part.number}.jsonl", data)
        await self.note(Note(at="file", part=part.number, file=file.id))
        ends_s, wait_s = SYSTEM.now_s() + MOST_PROCESSING_S, None
        while file.is_pending and SYSTEM.now_s() < ends_s:
            wait_s = next_look_s(wait_s)
            await asyncio.sleep(wait_s)
            file = await self._api.file(file.id)

    async def made(self, part: Part) -> Batch | None:
        """Returns the batch that was made from the part but not noted; None if there is none.

        Looks for it repeatedly for as long as it may still appear.
        """
        wait_s = None
        while True:
            left_s = appears_s(part.making_wall_s, SYSTEM.wall_s())
            batch = await self.find(part)
            if batch is not None or not left_s:
                return batch
            wait_s = next_look_s(wait_s)
            await asyncio.sleep(min(wait_s, left_s))

    async def find(self, part: Part) -> Batch | None:
        """Returns a batch of the part that is in the provider's list but not noted.

        Returns None if there is none.
        """
        wanted = _metadata(self._ledger.run, part.number)
        oldest_s = part.making_wall_s - _CLOCK_SLACK_S
        after = None
        # Some servers ignore `after` and return the same page each time.
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
        """Creates a batch of the part, and returns it.

        If an attempt fails, the batch may exist all the same; if so, that batch is returned.
        """
        metadata = _metadata(self._ledger.run, part.number)
        attempt = 0
        while True:
            await self.note(Note(at="making", part=part.number, wall_s=SYSTEM.wall_s()))
            try:
                return await self._api.make(part.file, part.url, metadata)
            except Retryable as error:
                if attempt >= self._max_retries:
                    raise
                await asyncio.sleep(self._api.pause_s(attempt, error))
                look = self.made if error.status in _UNCONFIRMED else self.find
            except Final:
                # Refused for good: no batch will appear.
                await self.note(Note(at="refused", part=part.number))
                raise
            attempt += 1
            found = await look(part)
            if found is not None:
                return found

    async def send_again(
        self, reader: PartReader, part: Part, offsets: array[int], most_rows: int = 0
    ) -> int:
        """Puts the rows at these offsets into new parts; returns the number of the last new part.

        most_rows: the most rows in each new part; the batch that the rows were in then does not
        count against their retries. 0: all rows go into one new part, and that batch counts.
        """
        size, number = most_rows or len(offsets), 0
        for begin in range(0, len(offsets), max(1, size)):
            number = self._ledger.next_number()
            chosen = offsets[begin : begin + size]
            more = 0 if most_rows else 1
            path = self._ledger.part_path(number)
            writer = await in_thread(_copied, reader, chosen, path, more)
            await self.announce(number, writer, part.url, part.model)
        self._use.again += 0 if most_rows else len(offsets)
        return number

    async def finish(self, part: Part, spent: Amount, *, keeps_rows: bool = False) -> None:
        """Notes that a part is done, once the journal is synced, and removes the part's files.

        Rows that are neither in the journal nor in a later part are left for the next run, or are
        sent live. keeps_rows: whether to keep the file of the part's rows, for sending them live.
        """
        await self._journal.saved()
        await self.note(Note(at="done", part=part.number, spent=spent))
        paths = self._ledger.results_paths(part.number)
        if not keeps_rows:
            paths.append(self._ledger.part_path(part.number))
        await in_thread(drop, paths)

    async def tidy(self, part: Part, batch: Batch | None) -> None:
        """Deletes the part's files at the provider. A file that cannot be deleted stays there."""
        files = [part.file, *(batch.files if batch is not None else ())]
        for file_id in filter(None, files):
            try:
                await self._api.delete(file_id)
            except Rejected:
                # This file is gone, but the others may exist.
                continue
            except (CallError, NoEndpoint):
                return


def _copied(reader: PartReader, offsets: array[int], path: Path, more: int) -> PartWriter:
    """Writes the rows at these offsets to a new file, each with `more` attempts added. Blocks."""
    writer = PartWriter(path)
    for offset in offsets:
        kept: Kept = reader.read(offset)
        kept.attempts += more
        writer.add(kept)
    return writer


def _metadata(run: str, number: int) -> dict[str, str]:
    """Returns the metadata by which a part's batch is recognized in the provider's list."""
    return {"redline_run": run, "redline_part": str(number)}
