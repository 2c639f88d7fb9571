"""Turns the answers of batches into results: one per row, even if the process is killed."""

from __future__ import annotations

import asyncio
import copy
import math
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from redline.apis import Batch, ResultLine, read_line
from redline.calls import Outcome, failed
from redline.calls.client import BatchApi
from redline.calls.cost import NOTHING, Amount, may_be_billed
from redline.clock import SYSTEM
from redline.errors import BadReply, CallError, ConfigError, NoEndpoint, Rejected, Retryable
from redline.job.batch.ledger import Ledger, Part
from redline.job.batch.plan import (
    is_answered,
    is_sent_again,
    outcome_of,
    unfinished,
    without_line,
)
from redline.job.batch.spool import Kept, PartReader, chunks_of, count_lines, is_torn
from redline.job.batch.world import World
from redline.job.work import Picked, parse_output_path
from redline.process import in_thread, telling


@dataclass
class Rest:
    """Collects the rows of a part that still have no outcome after its batch has ended.

    offsets: the rows' byte offsets in the part's file. worst: their worst-case cost. spent: the
    cost of the batch. attempts: the most batches that any of the rows was in. is_counted: whether
    the batch counts against the rows' retries. is_cancelled: whether the batch was cancelled.
    stopped: the error of a row, if that error ends the run.
    """

    part: Part
    reader: PartReader
    offsets: array[int] = field(default_factory=lambda: array("Q"))
    worst: Amount = NOTHING
    spent: Amount = NOTHING
    attempts: int = 0
    is_counted: bool = True
    is_cancelled: bool = False
    stopped: CallError | NoEndpoint | None = None

    def add(self, offset: int, kept: Kept) -> None:
        """Adds a row. offset: its byte offset in the part's file."""
        self.offsets.append(offset)
        self.worst = self.worst.plus(kept.worst)
        self.attempts = max(self.attempts, kept.attempts + 1)


@dataclass(eq=False, repr=False)
class Collector:
    """Turns the results of batches into lines of the journal.

    is_leaving: whether rows without an outcome are sent live, instead of in another batch.
    """

    _world: World
    _ledger: Ledger
    _api: BatchApi
    is_leaving: bool = False

    def __post_init__(self) -> None:
        job = self._world.job
        self._output_path = parse_output_path(job.prompting.output_path)
        self._label = "" if job.endpoint is None else job.endpoint.label

    def leave_rest(self) -> None:
        """Makes `collect` leave rows without an outcome to be sent live, from now on."""
        self.is_leaving = True

    def has_result(self, key: int, mark: int) -> bool:
        """Whether the row with this content has succeeded, see `Journal.has_succeeded`.

        A failure does not count: the row may be in a batch because it was retried.
        """
        return self._world.journal.has_succeeded(key, mark)

    async def collect(
        self,
        part: Part,
        batch: Batch,
        reader: PartReader,
        in_time: asyncio.Timeout,
        *,
        may_wait: bool,
    ) -> Rest | None:
        """Saves the answers of the batch, and returns its rows without an outcome.

        in_time: the timeout of the downloads. may_wait: whether to wait for answers that cannot be
        read yet; otherwise they count as missing. Returns None, having saved nothing, if such
        answers are awaited, if the downloads time out, or if the provider does not respond; raises
        the last error instead once the provider has not responded for an hour. If the provider does
        not have one of the batch's two files, and the other one lacks lines, raises ConfigError,
        unless `may_wait` or `is_leaving`.
        """
        paths, lost = [], None
        results_paths = self._ledger.results_paths(part.number)
        try:
            async with in_time:
                for path, file_id in zip(results_paths, batch.files, strict=False):
                    error = await self._fetch(file_id, path)
                    if error is None:
                        paths.append(path)
                    else:
                        lost = error
        except TimeoutError:
            return None
        except (Retryable, NoEndpoint):
            # No line has been read yet, so the downloads can be repeated.
            if part.is_silent(SYSTEM.now_s()):
                raise
            # Once the provider responds again, it has all of MOST_RESULTS_S to return the results.
            part.over_since_s = None
            return None
        expected = len(reader) if batch.status == "completed" else batch.finished
        if await in_thread(count_lines, paths) < (expected or int(lost is not None)):
            if may_wait:
                return None
            if lost is not None and not self.is_leaving:
                raise ConfigError(
                    f"the provider does not return the results of batch {batch.id}: {lost.what}",
                    hint="the same command tries again; --via live sends its rows live",
                ) from lost
        rest, unread = Rest(part, reader, is_cancelled=batch.status == "cancelled"), 0
        for path in paths:
            unread += await self._read(rest, path)
        return await self._without_line(rest, without_line(batch.status, unread))

    async def _fetch(self, file_id: str, path: Path) -> Rejected | None:
        """Downloads the file to `path`; returns the error if the provider does not have it."""
        try:
            with telling(path):
                await self._api.download(file_id, path)
                if await in_thread(is_torn, path):
                    # A connection may end early without an error.
                    await self._api.download(file_id, path)
        except Rejected as error:
            if error.status != 404:
                raise
            return error
        return None

    async def refuse(self, part: Part, reader: PartReader, reasons: Mapping[int, Rejected]) -> Rest:
        """Saves failures for the lines that made a batch fail; returns the other rows.

        reasons: the error of each line, by its number from 1 in the uploaded file.
        """
        rest, count = Rest(part, reader), len(reader)
        for number, error in reasons.items():
            offset = reader.pop_line(number)
            if offset is not None:
                await self._end(rest, reader.read(offset), offset, failed(error), is_done=False)
        if len(reader) == count:
            # The reasons name no row of the part. The batch counts as an attempt, so that the same
            # rows are not refused forever.
            return await self._without_line(rest, unfinished())
        # The other rows were not executed. Their next batch is smaller, so this loop ends.
        rest = await self.leave(part, reader)
        rest.is_counted = False
        return rest

    async def _without_line(self, rest: Rest, error: CallError) -> Rest:
        """Gives each remaining row the error; returns the rows that still have no outcome."""
        is_ended = isinstance(error, BadReply)
        for offset in await in_thread(rest.reader.rest):
            outcome = failed(copy.copy(error))
            await self._end(rest, rest.reader.read(offset), offset, outcome, is_done=is_ended)
        return rest

    async def leave(self, part: Part, reader: PartReader) -> Rest:
        """Returns the remaining rows of the part that have no outcome. Saves nothing."""
        rest = Rest(part, reader)
        for offset in await in_thread(reader.rest):
            kept = reader.read(offset)
            if self._is_open(part, kept.picked):
                rest.add(offset, kept)
        return rest

    async def _read(self, rest: Rest, path: Path) -> int:
        """Saves the outcomes that a results file contains; returns how many lines name no row."""
        unread = 0
        chunks = chunks_of(path)
        while (lines := await in_thread(next, chunks, None)) is not None:
            for raw in lines:
                try:
                    line = read_line(raw)
                except BadReply:
                    unread += 1
                    continue
                offset = rest.reader.pop(line.custom_id)
                if offset is None:
                    # The line belongs to no row of the part, or is its row's second line.
                    continue
                kept = rest.reader.read(offset)
                outcome = self._outcome(rest.part, kept, raw, line)
                await self._end(rest, kept, offset, outcome, is_done=is_answered(line))
            await self._world.load.room()
        return unread

    def _outcome(self, part: Part, kept: Kept, raw: bytes, line: ResultLine) -> Outcome:
        """Returns the outcome of a row, with secrets masked in its error.

        raw: the row's line in the results. line: the same line, parsed.
        """
        asked, wall_s = kept.asked().body, SYSTEM.wall_s()
        outcome = outcome_of(line, part.url, self._output_path, wall_s, asked)
        if outcome.error is None:
            return outcome
        mask = self._api.mask
        masked = mask.body(raw)
        if masked != raw:
            # Messages quote the line truncated, and a mask does not find a truncated key.
            outcome = outcome_of(read_line(masked), part.url, self._output_path, wall_s, asked)
        if outcome.error is not None:
            mask.hide(outcome.error)
        return outcome

    async def _end(
        self, rest: Rest, kept: Kept, offset: int, outcome: Outcome, *, is_done: bool
    ) -> None:
        """Saves the outcome of a row of the batch, or adds the row to the rest.

        offset: the row's byte offset in the part's file. is_done: whether the provider has answered
        the row's request, even if that answer cannot be read.
        """
        world, error = self._world, outcome.error
        if world.metered is not None and outcome.reply is not None:
            cost = world.metered.cost_batched(kept.asked(self._output_path), outcome.reply)
            rest.spent = rest.spent.plus(cost)
        elif is_done and error is not None and may_be_billed(error):
            rest.spent = rest.spent.plus(kept.worst)
        picked = kept.picked
        if not self._is_open(rest.part, picked):
            return
        outcome.attempts = kept.attempts + 1
        outcome.endpoint = self._label
        outcome.is_batched = True
        if error is not None and not self.is_leaving:
            world.tally.batch_failed(error.kind)
        if error is not None and error.stops_run:
            # The error is as old as the batch, so the row is sent again: live, or by the next run.
            if self.is_leaving:
                rest.add(offset, kept)
            else:
                rest.stopped = rest.stopped or error
            return
        # Rows whose batch was cancelled elsewhere are sent by the next run.
        is_left = self.is_leaving or (rest.is_cancelled and not is_done)
        most = math.inf if is_left else world.job.retry.max_retries
        if is_sent_again(error, outcome.attempts, most):
            rest.add(offset, kept)
            return
        world.tally.batch_answered(outcome.reply)
        await world.runner.take(picked, outcome)
        if picked.key in world.held:
            (world.held.succeeded if outcome.is_success else world.held.failed).add(picked.key)

    def _is_open(self, part: Part, picked: Picked) -> bool:
        """Whether the row still needs its outcome from this part."""
        key, held = picked.key, self._world.held
        if part.moved is not None and key in part.moved:
            return False
        if key in held.changed:
            # The input has the row with new content, so an answer to the old content is not saved.
            return not held.holds(key, picked.mark)
        return not self.has_result(key, picked.mark)
