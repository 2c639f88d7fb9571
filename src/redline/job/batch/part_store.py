"""The life of a part, each of whose steps is durable before the next begins.

A part ends in this order: rows that are sent again are put into a new part, lines of the others are
in the journal and synced, the ledger notes that the part is done, its own file is removed, the
provider's are. After a death the part is read again from the beginning: rows that have a line, or
are in a later part, are passed over.
"""

from __future__ import annotations

import asyncio
from array import array
from pathlib import Path

from redline.apis import Batch
from redline.calls.client import BatchApi
from redline.calls.cost import Amount
from redline.errors import CallError, NoEndpoint
from redline.job.batch.ledger import Ledger, Note, Part
from redline.job.batch.spool import Kept, PartReader, PartWriter, drop
from redline.job.work import BatchUse
from redline.journal import Journal


class PartStore:
    """The parts of one output: on disk, in the ledger, and as files of the provider.

    use: counts rows that are sent again.
    """

    def __init__(self, ledger: Ledger, journal: Journal, api: BatchApi, use: BatchUse) -> None:
        self._ledger = ledger
        self._journal = journal
        self._api = api
        self._use = use

    async def note(self, note: Note) -> None:
        """Writes a note to the ledger; returns once it is durable."""
        writing = asyncio.ensure_future(asyncio.to_thread(self._ledger.write, note))
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            # The ledger must not be closed under the thread.
            await asyncio.wait([writing])
            raise

    async def announce(self, number: int, writer: PartWriter, url: str, model: str) -> None:
        """Makes a part's rows durable, then notes the part in the ledger."""
        await asyncio.to_thread(writer.finish)
        part = Note(at="part", part=number, rows=writer.rows, url=url, model=model)
        part.worst = writer.worst
        await self.note(part)

    async def send_again(
        self, reader: PartReader, part: Part, offsets: array[int], most_rows: int = 0
    ) -> int:
        """Puts these rows into new parts; returns the number of the last one.

        most_rows: of each new part; the batch that the rows were in then does not count against
        their retries. 0 puts all into one.
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

    async def finish(self, part: Part, spent: Amount, *, keeps_rows: bool = False) -> None:
        """Notes that a part is done, once the journal is synced, and removes its files.

        Every row of the part must have its outcome in the journal, or be elsewhere. keeps_rows:
        keeps the file of its rows.
        """
        await self._journal.saved()
        await self.note(Note(at="done", part=part.number, spent=spent))
        paths = [self._ledger.results_path(part.number, kind) for kind in ("output", "errors")]
        if not keeps_rows:
            paths.append(self._ledger.part_path(part.number))
        await asyncio.to_thread(drop, paths)

    async def tidy(self, part: Part, batch: Batch | None) -> None:
        """Deletes the provider's files. They cost nothing, and the provider would delete them."""
        files = [part.file, *(batch.files if batch is not None else ())]
        for file_id in filter(None, files):
            try:
                await self._api.delete(file_id)
            except (CallError, NoEndpoint):
                return


def _copied(reader: PartReader, offsets: array[int], path: Path, more: int) -> PartWriter:
    """Writes a new file of these rows, each with `more` attempts added. Blocks."""
    writer = PartWriter(path)
    for offset in offsets:
        kept: Kept = reader.read(offset)
        kept.attempts += more
        writer.add(kept)
    return writer
