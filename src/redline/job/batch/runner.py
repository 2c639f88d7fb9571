"""Runs a job through the provider's Batch API: uploads rows in parts, and collects the results.

  via    rows are sent
  batch  in batches
  auto   the first ones live, unless an earlier run did that, and the others in batches; when the
         deadline is near, unfinished batches are cancelled and their rows are sent live
  live   live, after the open batches of earlier runs are cancelled and their answers saved

A single task takes all steps, one at a time, so the ledger holds the whole state. A drain cancels
that task; the next run repeats the interrupted step, or finds it done.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from redline.apis import Batch
from redline.calls.client import BatchApi
from redline.calls.cost import NOTHING
from redline.clock import SYSTEM
from redline.errors import (
    ConfigError,
    NoEndpoint,
    RateLimited,
    RedlineError,
    Rejected,
    Retryable,
)
from redline.job.batch.collect import Collector, Rest
from redline.job.batch.fill import Filler, Route
from redline.job.batch.ledger import DamagedLedger, Ledger, Note, Part
from redline.job.batch.live import FirstRows, LeftRows
from redline.job.batch.part_store import PartStore
from redline.job.batch.plan import (
    MOST_LOOK_S,
    MOST_LOST_S,
    MOST_RESULTS_S,
    PROBE_ROWS,
    assumed_pace,
    bad_lines,
    is_full,
    live_s,
    margin_s,
    next_look_s,
    reasons_of,
)
from redline.job.batch.spool import PartReader, marked_keys_of
from redline.job.batch.world import World
from redline.job.settings import BATCHING, Job
from redline.journal import Output
from redline.journal import manifest as manifests
from redline.process import counted, end_tasks, in_thread, telling

_LONGEST_PAUSE_S = 1.0

T = TypeVar("T")


@dataclass(eq=False, repr=False)
class BatchRunner:
    """Sends the rows of one run in batches. Call `prepare`, `run` and `aclose`, each once."""

    _world: World
    _ledger: Ledger
    _api: BatchApi

    def __post_init__(self) -> None:
        world, ledger, api = self._world, self._ledger, self._api
        self._use = world.tally.begin_batches()
        self._store = PartStore(ledger, world.journal, api, self._use, world.job.retry.max_retries)
        self._collector = Collector(world, ledger, api)
        self._filler = Filler(world, ledger, self._store)
        self._left = LeftRows(world)
        # Whether the provider accepts no further batch until a running one is over.
        self._is_full = False
        # Why the provider refuses batches, by path and model.
        self._refused: dict[Route, RedlineError] = {}

    async def prepare(self) -> None:
        """Takes over the batches of earlier runs. Raises JournalError if a part cannot be read."""
        self._world.runner.offer(await in_thread(self._survey))
        self._count()

    async def run(self) -> None:
        """Works until every row has its outcome, or the run ends early."""
        runner = self._world.runner
        if self._world.job.via == "auto" and self._ledger.pace is None:
            await self._probe()
        if not runner.is_draining:
            await self._by_batches()
        if not runner.is_draining and self._collector.is_leaving:
            await runner.run(self._left)
        await in_thread(self._left.remove_files)
        # A failure of the input ends the run only now: the answers to earlier rows are paid for,
        # and the next run may fail at the same row.
        runner.stop_if_input_failed()

    async def aclose(self) -> None:
        """Closes connections, and drops rows that are in no part yet: the next run reads them."""
        await in_thread(self._filler.drop)
        await self._api.aclose()

    def _survey(self) -> int:
        """Records the rows of open parts; returns the number that have not succeeded. Blocks."""
        unfinished = 0
        for number, part in sorted(self._ledger.parts.items(), reverse=True):
            path = self._ledger.part_path(number)
            part.moved = moved = set[int]()
            with telling(path):
                for key, mark in marked_keys_of(path):
                    if not self._world.held.add(key, mark):
                        moved.add(key)
                        continue
                    if self._collector.has_result(key, mark):
                        self._world.held.ended.add(key)
                    else:
                        unfinished += 1
        return unfinished

    async def _probe(self) -> None:
        """Sends the first rows live, and notes their pace in the ledger."""
        runner, tally = self._world.runner, self._world.tally
        first = FirstRows(self._world, PROBE_ROWS)
        begun_s = SYSTEM.now_s()
        await runner.run(first)
        if runner.is_draining or not first.handed:
            return
        waves = -(-first.handed // self._world.slots)
        row_s = (SYSTEM.now_s() - begun_s) / waves
        pace = Note(at="pace", row_s=row_s, row_tokens=tally.tokens / first.handed)
        await self._store.note(pace)

    async def _by_batches(self) -> None:
        """Runs `_work` until it ends or the run is drained. A RedlineError in it stops the run."""
        runner = self._world.runner
        work = asyncio.create_task(self._work(), name="redline batches")
        try:
            async with runner.watched(on_drain=work.cancel):
                await asyncio.wait([work])
        finally:
            await end_tasks(work)
        error = None if work.cancelled() else work.exception()
        if isinstance(error, RedlineError):
            runner.stop(error)
        elif error is not None:
            raise error

    async def _work(self) -> None:
        if self._world.job.via not in BATCHING:
            await self._end_batches()
            return
        while not self._is_late():
            if not self._is_full:
                await self._filler.fill()
            # Polled before anything is sent: sending may end the run, and answers may be ready.
            await self._look()
            await self._send()
            if self._filler.is_read and not self._ledger.parts:
                return
            if self._ledger.parts and not self._open():
                if self._world.job.via == "auto":
                    break
                raise next(iter(self._refused.values()))
            can_fill = self._filler.has_room and not self._is_full
            await asyncio.sleep(0.0 if can_fill else self._pause_s())
            await self._look()
        await self._end_batches()

    async def _send(self) -> None:
        for part in self._open():
            is_due = part.state != "running" and part.due_s <= SYSTEM.now_s()
            if is_due and self._has_room(part) and not self._is_late():
                part.is_alone = not self._running()
                try:
                    async with self._in_time():
                        await self._store.submit(part)
                except TimeoutError:
                    return
                except (Retryable, NoEndpoint) as error:
                    self._send_later(part, error)
                    return
                except Rejected as error:
                    self._refuse(part, error)
                    return
                part.begin_polls(SYSTEM.now_s())
                self._use.made += 1
                self._count()

    def _refuse(self, part: Part, error: RedlineError) -> None:
        """Stops making batches with the part's path and model; other batches continue."""
        error.hint = (
            "fix the cause, then run the same command again; --via live sends the rows live"
        )
        self._refused.setdefault(part.route, error)
        self._count()

    def _send_later(self, part: Part, error: Retryable | NoEndpoint) -> None:
        """Postpones the part, unless the error ends the run.

        Raises the error if the provider has never accepted a file, or has not responded for an
        hour. Later, the part continues after the last noted step, as it would after a crash: if a
        batch may exist, it is looked up first.
        """
        now_s = SYSTEM.now_s()
        if not self._is_known:
            raise error
        if not isinstance(error, RateLimited):
            if part.is_silent(now_s):
                raise error
        elif self._running():
            self._wait_for_others()
            return
        else:
            # The provider does respond; other runs may use up its quota for a long time.
            part.silent_since_s = None
        part.due_s = now_s + MOST_LOOK_S

    def _wait_for_others(self) -> None:
        """Pauses making batches until a running one is over."""
        self._is_full = True
        for waiting in self._ledger.parts.values():
            if waiting.state != "running":
                # Nothing is sent until then, so the provider does not count as silent.
                waiting.silent_since_s = None

    def _has_room(self, part: Part) -> bool:
        """Whether the part may be put into a batch now.

        A part that found no room in this run waits while a newer batch is being checked: for each
        batch that ends, at most one is then refused for lack of room, not one per waiting part.
        """
        if self._is_full or part.seen != "failed":
            return not self._is_full
        return all(other.seen not in ("sent", "validating") for other in self._running())

    @property
    def _is_known(self) -> bool:
        """Whether the provider is known to have a Batch API: it has accepted a file before."""
        return self._use.made > 0 or any(part.file for part in self._ledger.parts.values())

    def _open(self) -> list[Part]:
        """Returns the parts that are in a batch, or may be put into one."""
        parts = self._ledger.parts.values()
        return [
            part for part in parts if part.state == "running" or part.route not in self._refused
        ]

    def _running(self) -> list[Part]:
        return [part for part in self._ledger.parts.values() if part.state == "running"]

    def _pause_s(self) -> float:
        """Returns the seconds until a batch is made or polled, or until `_late_s`; at most 1."""
        now_s = SYSTEM.now_s()
        dues = [
            part.due_s for part in self._open() if part.state == "running" or self._has_room(part)
        ]
        return max(0.0, min([now_s + _LONGEST_PAUSE_S, self._late_s(), *dues]) - now_s)

    async def _look(self) -> None:
        """Polls the batches that are due, and finishes the parts whose batches are over."""
        for part in self._running():
            if SYSTEM.now_s() < part.due_s:
                continue
            batch = await self._seen(part)
            if batch is not None:
                part.seen, part.finished = batch.status, batch.finished
                is_going_on = not batch.is_over and batch.status != "cancelling"
                if self._collector.is_leaving and is_going_on:
                    # The first cancellation may have been refused for a reason that has passed.
                    await self._cancel(part)
            part.wait_s = next_look_s(part.wait_s)
            part.due_s = SYSTEM.now_s() + part.wait_s
            if batch is not None and batch.is_over:
                now_s = SYSTEM.now_s()
                part.over_since_s = part.over_since_s or now_s
                may_wait = now_s - part.over_since_s < MOST_RESULTS_S
                await self._end(part, batch, may_wait=may_wait)
            self._count()

    async def _seen(self, part: Part) -> Batch | None:
        """Returns the current state of the part's batch; None if the provider does not return it.

        Raises the last error if the provider has not responded for an hour. Raises ConfigError if
        it has not known the batch for MOST_LOST_S; while batches are being ended, such a batch
        counts as cancelled instead.
        """
        batch_id = part.batches[-1]
        try:
            async with self._in_time():
                batch = await self._api.look(batch_id)
        except TimeoutError:
            return None
        except (Retryable, NoEndpoint):
            if part.is_silent(SYSTEM.now_s()):
                raise
            return None
        except Rejected as error:
            if error.status != 404:
                raise
            now_s = SYSTEM.now_s()
            part.lost_since_s = part.lost_since_s or now_s
            if now_s - part.lost_since_s < MOST_LOST_S:
                return None
            if self._collector.is_leaving:
                # The results are lost, so the rows are sent live. The batch may be billed as well.
                part.is_gone = True
                return Batch(id=batch_id, status="cancelled")
            raise ConfigError(
                f"the provider no longer knows the batch {batch_id}: {error.what}",
                hint="use the API key that created it; --via live sends its rows again, live",
            ) from error
        part.lost_since_s = None
        if not batch.is_over:
            part.silent_since_s = None
        return batch

    async def _end(self, part: Part, batch: Batch, *, may_wait: bool) -> None:
        """Ends a batch that is over: saves its answers, and passes its other rows on.

        may_wait: whether to postpone that if some of the results cannot be read yet. Raises the
        RedlineError that ends the run, if any.
        """
        is_leaving = self._collector.is_leaving
        if batch.status == "failed" and not is_leaving and is_full(batch.problems):
            await self._wait_for_room(part, batch)
            return
        self._is_full = False
        async with self._opened(part) as reader:
            if batch.status != "failed":
                may_wait = may_wait and not part.is_gone
                found = await self._collector.collect(
                    part, batch, reader, self._in_time(), may_wait=may_wait
                )
                if found is None:
                    return
                rest = found
            elif lines := bad_lines(batch.problems):
                rest = await self._collector.refuse(part, reader, lines)
            elif is_leaving:
                rest = await self._collector.leave(part, reader)
            else:
                await self._store.note(Note(at="refused", part=part.number))
                why = reasons_of(batch.problems)
                self._refuse(part, ConfigError(f"the provider refused the batch {batch.id}: {why}"))
                return
            is_foreign = batch.status == "cancelled" and not is_leaving
            over = await self._pass_on(part, rest, reader, is_sent=not is_foreign)
        await self._store.tidy(part, batch)
        if over is not None:
            raise over
        if is_foreign and rest.offsets:
            raise ConfigError(
                f"the batch {batch.id} was cancelled at the provider",
                hint="its finished rows are saved; the same command sends the others again",
            )

    async def _pass_on(
        self, part: Part, rest: Rest, reader: PartReader, *, is_sent: bool = False
    ) -> RedlineError | None:
        """Puts the rest of a part into a new part, or leaves it to be sent live; ends the part.

        is_sent: whether the rest may go into a new part. Returns the error that ends the run, or
        None.
        """
        metered, is_leaving = self._world.metered, self._collector.is_leaving
        if metered is not None:
            if part.is_gone:
                rest.spent = part.worst
            metered.settle(part.worst, rest.spent)
        over: RedlineError | None = None
        if rest.offsets and is_sent and not is_leaving:
            if metered is None or metered.reserve(rest.worst):
                most_rows = 0 if rest.is_counted else len(rest.offsets)
                number = await self._store.send_again(reader, part, rest.offsets, most_rows)
                wait_s = self._world.job.retry.pause_s(rest.attempts - 1)
                self._ledger.parts[number].due_s = SYSTEM.now_s() + wait_s
            else:
                over = metered.spent(rest.worst)
        if is_leaving:
            self._left.add(self._ledger.part_path(part.number), rest.offsets)
        await self._store.finish(part, rest.spent, keeps_rows=is_leaving)
        self._count()
        return rest.stopped or over

    async def _wait_for_room(self, part: Part, batch: Batch) -> None:
        """Makes a part wait for other batches, or makes its batch again if no other is running.

        Called when the part's batch failed because the account's batches hold too many tokens. If
        there was no other batch when it was made, the part is split in half. Raises ConfigError if
        it then has one row.
        """
        if len(self._running()) > 1:
            await self._store.note(Note(at="refused", part=part.number))
            part.due_s = 0.0
            self._wait_for_others()
            self._count()
            return
        self._is_full = False
        async with self._opened(part) as reader:
            rest = await self._collector.leave(part, reader)
            if len(rest.offsets) == 1 and part.is_alone:
                await self._store.note(Note(at="refused", part=part.number))
                why = reasons_of(batch.problems)
                raise ConfigError(
                    f"the provider has no room even for a batch of one row: {why}",
                    hint="wait until other batches of the account end; --via live sends rows live",
                )
            if self._world.metered is not None:
                self._world.metered.settle(part.worst.minus(rest.worst), NOTHING)
            if rest.offsets:
                most_rows = -(-len(rest.offsets) // (2 if part.is_alone else 1))
                await self._store.send_again(reader, part, rest.offsets, most_rows=most_rows)
            await self._store.finish(part, NOTHING)
        self._count()
        await self._store.tidy(part, None)

    @asynccontextmanager
    async def _opened(self, part: Part) -> AsyncIterator[PartReader]:
        reader = await in_thread(PartReader, self._ledger.part_path(part.number))
        try:
            yield reader
        finally:
            reader.close()

    def _in_time(self) -> asyncio.Timeout:
        """Returns a timeout that expires at `_late_s`; it never expires if that is inf."""
        left_s = self._late_s() - SYSTEM.now_s()
        return asyncio.timeout(None if left_s == math.inf else left_s)

    def _is_late(self) -> bool:
        """Whether unfinished rows must now be sent live to meet the deadline."""
        return SYSTEM.now_s() >= self._late_s()

    def _late_s(self) -> float:
        """Returns the monotonic time when rows must be sent live to meet the deadline.

        Returns inf without --via auto or a deadline. Once batches are cancelled, only the rows that
        they did not finish count; inf if there are none.
        """
        runner, job, slots = self._world.runner, self._world.job, self._world.slots
        is_leaving, rows = self._collector.is_leaving, self._left.rows
        if job.via != "auto" or job.deadline_s is None or (is_leaving and not rows):
            return math.inf
        if not is_leaving:
            rows = sum(part.rows for part in self._ledger.parts.values()) + self._filler.rows
        pace = self._ledger.pace or assumed_pace(rows, slots, job.deadline_s)
        rest_s = live_s(rows, pace, job.call_limits[0], slots)
        assert runner.ends_s is not None
        return runner.ends_s - margin_s(rest_s, 0.0 if is_leaving else job.deadline_s)

    async def _end_batches(self) -> None:
        """Cancels all batches, saves their answers, and leaves the other rows to be sent live."""
        self._collector.leave_rest()
        await self._filler.leave()
        for part in list(self._ledger.parts.values()):
            if part.state == "making":
                batch = await self._answered(part, partial(self._store.made, part))
                if batch is not None:
                    await self._store.note(Note(at="batch", part=part.number, batch=batch.id))
            if part.state != "running":
                async with self._opened(part) as reader:
                    rest = await self._collector.leave(part, reader)
                    await self._pass_on(part, rest, reader)
                await self._store.tidy(part, None)
                continue
            await self._cancel(part)
            part.begin_polls(SYSTEM.now_s())
        while self._ledger.parts and not self._is_late():
            await asyncio.sleep(self._pause_s())
            await self._look()

    async def _cancel(self, part: Part) -> None:
        """Asks the provider to cancel the part's batch; the next poll shows whether it did."""
        with suppress(Rejected):
            await self._answered(part, partial(self._api.cancel, part.batches[-1]))

    async def _answered(self, part: Part, ask: Callable[[], Awaitable[T]]) -> T:
        """Returns the result of `ask`, repeating it while the provider does not respond.

        Raises the last error if the provider has not responded for an hour.
        """
        wait_s = None
        while True:
            try:
                answer = await ask()
            except (Retryable, NoEndpoint):
                if part.is_silent(SYSTEM.now_s()):
                    raise
                wait_s = next_look_s(wait_s)
                await asyncio.sleep(wait_s)
            else:
                part.silent_since_s = None
                return answer

    def _count(self) -> None:
        """Updates the counts of batches and of their rows that the progress shows."""
        running = self._running()
        self._use.running, self._use.rows = len(running), sum(part.rows for part in running)
        states = Counter(part.seen for part in running)
        states["refused"] = len(self._ledger.parts) - len(self._open())
        self._use.states = dict(+states)
        self._use.finished = sum(part.finished for part in running)
        self._world.tally.look_at(min((part.due_s for part in running), default=None))


def open_ledger(job: Job, output: Output, *, is_new: bool) -> Ledger:
    """Returns the ledger of the batches that earlier runs of the output have made. Blocks.

    is_new: whether the output has no results yet. Raises ConfigError if batches are open and this
    run can neither continue nor cancel them, JournalError if the ledger cannot be read.
    """
    try:
        ledger = Ledger(output)
        ledger.check_parts()
    except DamagedLedger:
        # The error's hint is to look up the batches at the provider, then to use --restart.
        if not job.restart:
            raise
        Ledger.put_aside(output)
        ledger = Ledger(output)
    is_anew = job.restart or is_new
    if not ledger.parts:
        if is_anew:
            ledger.forget()
        with telling(ledger.folder):
            # These are files of a run that died before it noted their parts.
            ledger.remove_strays()
        return ledger
    path = output.path
    are = counted(len(ledger.parts), f"batch of {path} is", f"batches of {path} are")
    what = f"{are} still at the provider"
    if is_anew:
        raise ConfigError(
            f"{what}, and would be lost",
            hint="cancel them first: run with --via live and without --restart; if the results "
            "file was removed, first restore it or create an empty one",
        )
    if not job.via:
        raise ConfigError(
            what,
            hint="--via batch waits for the answers; --via live cancels the batches and sends "
            "their remaining rows live",
        )
    if ledger.place != place_of(job):
        raise ConfigError(
            f"{what} {ledger.place}, not at this run's endpoint",
            hint="pass the --endpoint or --base-url of the run that made the batches",
        )
    old = None if job.force else manifests.load(output)
    if old is not None:
        manifests.check(old, job.manifest(), output)
    return ledger


def goes_by_batches(job: Job, ledger: Ledger) -> bool:
    """Whether the run sends batches, or must end batches that earlier runs have left.

    Raises ConfigError if earlier runs have left batches and this run has several endpoints.
    """
    if ledger.parts and len(job.endpoints) > 1:
        raise ConfigError(
            "batches of this output are still at a provider, but a run with several endpoints "
            "cannot end them",
            hint="first run with only the endpoint that has the batches: --via batch finishes "
            "them, --via live cancels them",
        )
    return job.endpoint is not None and (job.via in BATCHING or bool(ledger.parts))


def batches_of(world: World, ledger: Ledger) -> BatchRunner:
    """Returns the runner of a job that sends batches, or ends those of earlier runs. Blocks."""
    job = world.job
    assert job.endpoint is not None
    ledger.begin(place_of(job))
    return BatchRunner(world, ledger, BatchApi(job.endpoint, job.retry))


def place_of(job: Job) -> str:
    """Returns the name that the ledger records for the job's provider, such as its base URL.

    The name prevents batches from being looked up at another provider.
    """
    assert job.endpoint is not None
    return job.embedded.place if job.embedded is not None else job.endpoint.base_url
