"""Parts become batches, each once: whatever was not heard of is looked for before it is made."""

from __future__ import annotations

import asyncio

from redline.calls.batch_api import Batch, BatchApi
from redline.clock import SYSTEM
from redline.errors import Retryable
from redline.run.batch_collect import Collector
from redline.run.batch_ledger import Ledger, Note, Part
from redline.run.batch_spool import upload_of

# Providers' clocks may be off by some of this.
_CLOCK_SLACK_S = 3600.0


class Sender:
    """Uploads parts and makes their batches. max_retries: for a batch that cannot be made."""

    def __init__(
        self, ledger: Ledger, api: BatchApi, collector: Collector, max_retries: int
    ) -> None:
        self._ledger = ledger
        self._api = api
        self._collector = collector
        self._max_retries = max_retries

    async def submit(self, part: Part) -> None:
        """Puts the part into a batch, whatever of that was done before. Raises CallError."""
        number = part.number
        if not part.file:
            data = await asyncio.to_thread(upload_of, self._ledger.part_path(number))
            file_id = await self._api.upload(f"redline-{self._ledger.run}-{number}.jsonl", data)
            del data
            await self._collector.note(Note(at="file", part=number, file=file_id))
        batch = None
        if part.state == "making":
            batch = await self.find(part)
        else:
            making = Note(at="making", part=number, wall_s=SYSTEM.wall_s())
            await self._collector.note(making)
        if batch is None:
            batch = await self._make(part)
        await self._collector.note(Note(at="batch", part=number, batch=batch.id))

    async def find(self, part: Part) -> Batch | None:
        """The batch that was made of the part and not noted; None for none."""
        wanted = _metadata(self._ledger.run, part.number)
        oldest_s = part.making_wall_s - _CLOCK_SLACK_S
        after = None
        while True:
            batches, has_more = await self._api.page(after)
            for batch in batches:
                is_its = all(batch.metadata.get(name) == value for name, value in wanted.items())
                if is_its and batch.id not in part.batches:
                    return batch
            if not has_more or not batches or batches[-1].created_at < oldest_s:
                return None
            after = batches[-1].id

    async def _make(self, part: Part) -> Batch:
        """A new batch of the part, or one whose making was not heard of."""
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
    """By which a batch of this part is known."""
    return {"redline_run": run, "redline_part": str(number)}
