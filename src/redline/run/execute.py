"""A job from its settings to its report: everything is opened, run, and closed again in order."""

from __future__ import annotations

import asyncio
from array import array
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from redline.calls import Backend, FunctionBackend, HttpBackend, Retry, Stores
from redline.calls.metered import Metered
from redline.calls.prices import Prices
from redline.calls.spending import Spending
from redline.clock import SYSTEM
from redline.errors import ConfigError, JournalError
from redline.events import Listener, RowsSaved
from redline.run import manifest as manifests
from redline.run.account import AccountFile
from redline.run.bill import Bill
from redline.run.descriptors import raise_limit
from redline.run.feed import Feed
from redline.run.files import telling
from redline.run.flaws import flaw_of
from redline.run.identity import Identifier, KeySet, MessageKeys
from redline.run.journal import Journal
from redline.run.load import Load, paced
from redline.run.lock import OutputLock
from redline.run.manifest import Manifest
from redline.run.output import Output
from redline.run.place import check_place
from redline.run.record import Result
from redline.run.report import Report
from redline.run.resume import open_journal
from redline.run.rewrite import put_in_order, set_aside
from redline.run.row_count import InputCounts, RowCount
from redline.run.runner import OnResult, Runner
from redline.run.settings import BATCHING, Job
from redline.run.source import open_source, row_counts
from redline.run.source_repeated import sampled
from redline.run.stream_url import stream_of
from redline.run.tally import Tally
from redline.run.view import Display

if TYPE_CHECKING:
    from redline.calls.cache_store import AnswerStore
    from redline.run.batch import BatchRunner
    from redline.run.batch_ledger import Ledger
    from redline.run.source_stream import StreamRows

# A count reads about 1 GB of JSON Lines a second: what is left is known at the end of most runs.
_LAST_COUNT_S = 0.5


class _Run:
    """The parts of one run in progress; a View."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.tally = Tally()
        self.journal: Journal | None = None
        self.manifest: Manifest | None = None
        self.stream = _stream(job)
        opened = self.stream or open_source(job.rows, is_followed=job.follow)
        source = self.stream or sampled(opened, job.samples)
        self.source_name = source.name
        self._check_source = source.check
        self.row_count = RowCount(
            opened.total_rows,
            None if job.follow else row_counts(job.rows),
            limit=job.limit,
            samples=job.samples,
        )
        # What earlier runs have done, of the rows that this one has read.
        self._skipped = 0
        self._failed_before = 0
        self._untried = 0
        # The same of the whole input, by what the output holds; None while that is unknown.
        self._before: InputCounts | None = None
        # Of the rows read: how many have a line in the results, and which had failed before.
        self._with_line = 0
        self._with_failure = KeySet()
        load = Load()
        self.feed = Feed(paced(source, load), self._wanted, job.limit)
        if job.output is not None and job.output.ordered:
            self.feed.keys = array("Q")
        self.inner, self.slots = _backend(job, self.tally)
        self._account: AccountFile | None = None
        self.metered = _metered(job, self.inner)
        metered = self.inner if self.metered is None else self.metered
        retry = Retry(metered, job.retry, listener=self.tally)
        self.backend, self.answers = _cached(job, retry, self.tally)
        self.bill = Bill(job, None if self.metered is None else self.metered.spending)
        self.batches: BatchRunner | None = None
        self.runner = Runner(
            job,
            backend=self.backend,
            slots=self.slots,
            feed=self.feed,
            source_name=source.name,
            listener=self.tally,
        )
        self.runner.load = load
        self.tally.on_wait = self.runner.row_waits
        if self.stream is not None:
            self.stream.most = 2 * self.slots
            self.runner.permit = self.stream.permit
        if self.bill.reads_replies:
            self.runner.bill = self.bill

    def identifier(self, journal: Journal) -> Identifier | MessageKeys:
        """Who tells which row is which, and which of them the journal has."""
        if self.stream is not None:
            return MessageKeys(self.stream.url.stream, journal.succeeded)
        return Identifier(journal.succeeded)

    def _wanted(self, keys: Sequence[int], undone: Sequence[int]) -> Sequence[int]:
        """The places of those of the rows that this run is to do; undone: that are not done yet."""
        journal = self.journal
        if journal is None:
            return undone
        self._skipped += len(keys) - len(undone)
        self._with_line += len(keys) - len(undone)
        has_results = len(journal.succeeded) > 0 or len(journal.failed) > 0
        if not has_results and not self.job.retry_failed and self.batches is None:
            wanted = undone
        else:
            is_to_do, marks = self._is_to_do, self.feed.marks
            wanted = [place for place in undone if is_to_do(journal, keys[place], marks[place])]
        if self.stream is not None:
            for place in sorted(set(range(len(keys))).difference(wanted)):
                self.stream.skip(keys[place])
        return wanted

    def _is_to_do(self, journal: Journal, key: int, mark: int) -> bool:
        """A row of this key and content, which has not succeeded, is to be done by this run."""
        self._with_line += key in journal.succeeded
        if not len(journal.failed) and not self.job.retry_failed and self.batches is None:
            return True
        if key in journal.failed:
            self._with_failure.add(key)
        has_failed = journal.failed.matches(key, mark)
        # A failed row that was corrected since is a row to try again, and a new one.
        is_again = key in journal.failed and (self.job.retries_failures or not has_failed)
        if has_failed != self.job.retry_failed and not is_again:
            self._untried += not has_failed
            self._skipped += has_failed
            self._failed_before += has_failed
            if has_failed and key in journal.succeeded:
                journal.outdate(key)
            return False
        if self.batches is not None and self.batches.holds(key, mark):
            # It is with a batch: not done, and not to be asked again.
            self.feed.rows_skipped -= 1
            return False
        return True

    def is_gone(self, journal: Journal) -> Callable[[int], bool] | None:
        """Whether the failure of a key is of no row any more; None if that is unknown.

        A broken line that was mended is another row than it was. But an input that is another one
        than the output was made from does not have its rows.
        """
        job, manifest = self.job, self.manifest
        if job.limit is not None or job.follow or self.stream is not None or manifest is None:
            return None
        is_same = bool(manifest.input) and not manifest.others
        has_all = 0 < len(journal.succeeded) == self._with_line
        if not (is_same or has_all):
            return None
        failed = journal.failed_before
        return lambda key: key in failed and key not in self._with_failure

    async def go(self) -> None:
        """Does the rows, live or in batches; then looks at the input again."""
        if self.batches is None:
            await self.runner.run()
        else:
            await self.batches.run()
        if not self.runner.is_draining:
            try:
                await asyncio.to_thread(self._check_source)
            except ConfigError as error:
                self.runner.stop(error)

    def keep_account(self, metered: Metered, account: AccountFile, journal: Journal) -> None:
        """What the output's runs have spent goes on from there, and is kept there."""
        self._account = metered.account = account
        metered.spending.spent = account.spent
        journal.before_sync = account.sync
        self.bill.begin()

    def close_account(self) -> None:
        if self._account is not None:
            self._account.close()

    def acknowledge(self, results: list[Result]) -> None:
        if self.stream is not None:
            self.stream.acknowledge([result.key for result in results])
        succeeded = sum([result.outcome.status == "succeeded" for result in results])
        flaws = Counter(filter(None, [flaw_of(result.outcome) for result in results]))
        failed = len(results) - succeeded
        self.tally.on_event(RowsSaved(SYSTEM.now_s(), succeeded, failed, flaws))

    def recall(self, journal: Journal) -> None:
        """What the output holds are rows of this input, done by earlier runs."""
        done, failed = len(journal.succeeded), len(journal.failed)
        is_again = self.job.retry_failed or self.job.retries_failures
        self._before = InputCounts(rows=done + failed, done=done, failed=0 if is_again else failed)

    def counts(self) -> InputCounts:
        """The whole input: what is done of it, and what is left."""
        feed, tally, total = self.feed, self.tally, self.row_count
        rows = feed.rows_read if feed.is_read else max(total.rows, feed.rows_read)
        seen = InputCounts(
            rows=rows,
            done=tally.succeeded + self._skipped - self._failed_before,
            failed=tally.failed + self._failed_before,
            is_exact=feed.is_read or total.is_exact,
            untried=self._untried,
        )
        before = self._before
        if feed.is_read or before is None or not total.is_exact or before.rows > rows:
            return seen
        known = InputCounts(
            rows=rows,
            done=tally.succeeded + before.done,
            failed=tally.failed + before.failed,
            untried=rows - before.rows if self.job.retry_failed else 0,
        )
        # Otherwise rows of the output are no longer in the input.
        is_possible = known.left >= feed.rows_read - feed.rows_skipped - tally.saved
        return known if is_possible else seen

    def flawed(self) -> dict[str, int]:
        """Successes by all runs of the output whose answer is cut, empty or refused."""
        before = Counter[str]() if self.journal is None else self.journal.answers.flaws
        return dict((before + self.tally.flawed).most_common())

    def report(self, elapsed_s: float) -> Report:
        tally, runner = self.tally, self.runner
        kinds = {kind: count for kind, count in tally.errors.most_common() if kind != "cancelled"}
        return Report(
            offered=runner.offered,
            succeeded=tally.succeeded,
            failed=tally.failed,
            results=tally.succeeded + (self.journal.answers.total if self.journal else 0),
            flawed=self.flawed(),
            skipped=self._skipped,
            failed_before=self._failed_before,
            untried=self._untried,
            retries=tally.retries,
            repeated=tally.repeated,
            rate_limited=tally.rate_limited,
            attempts=tally.attempts,
            most_in_flight=tally.most_in_flight,
            input_tokens=tally.input_tokens,
            output_tokens=tally.output_tokens,
            elapsed_s=elapsed_s,
            input=self.counts(),
            is_input_done=self.feed.is_input_done,
            interrupted=runner.is_draining and runner.stopped is None,
            stopped=runner.stopped,
            errors_by_kind=kinds,
            spent=self.bill.read(),
            found_limits=self.inner.found() if isinstance(self.inner, HttpBackend) else [],
            outages=tally.outages(SYSTEM.now_s()),
            cache=tally.cache,
            batches=tally.batches,
            cache_notes=self.answers.notes if self.answers is not None else [],
            output=self.job.output,
            abandoned=runner.abandoned,
        )


async def execute(
    job: Job,
    *,
    display: Display | None = None,
    on_start: Callable[[Runner], None] | None = None,
    on_result: OnResult | None = None,
) -> Report:
    """Runs `job` to its end and reports.

    on_start: gets the runner, to drain or abort it. on_result: hears of each row that has
    ended; where it is to be awaited, it slows the run down to its own pace.
    Raises ConfigError or JournalError where the run cannot begin; what ends it later stands in
    the report's `stopped`.
    """
    begun_s = SYSTEM.now_s()
    run = _Run(job)
    run.runner.on_result = on_result
    try:
        async with _opened(run):
            if on_start is not None:
                on_start(run.runner)
            shown = asyncio.create_task(display.show(run)) if display is not None else None
            try:
                await run.go()
            finally:
                if shown is not None:
                    shown.cancel()
                    await asyncio.wait([shown])
    except JournalError as error:
        # Raised while closing, by the last group: what was acknowledged before is on disk.
        if run.runner.offered == 0:
            raise
        run.runner.stop(error)
    return run.report(SYSTEM.now_s() - begun_s)


@asynccontextmanager
async def _opened(run: _Run) -> AsyncIterator[None]:
    """Backend, feed and journal; closed in the order in which work flows through them."""
    job = run.job
    if job.call is None:
        raise_limit(run.slots)
    async with AsyncExitStack() as stack:
        # The input is open already: it is closed where nothing of the rest comes about, too.
        stack.callback(run.feed.close)
        stack.callback(run.runner.close)
        run.row_count.start()
        stack.push_async_callback(_end_count, run)
        if job.output is not None:
            output = job.output
            check_place(output)
            stack.enter_context(OutputLock(output))
            if run.stream is not None:
                # Closed after the journal, whose last results it acknowledges.
                stack.push_async_callback(run.stream.aclose)
                await run.stream.open()
            stack.push_async_callback(_finish, run, output)
            is_new = job.restart or not (output.path.exists() or output.failed_path.exists())
            # Closed after the journal, whose last results it must be durable before.
            stack.callback(run.close_account)
            ledger = await asyncio.to_thread(_ledger, job, output, is_new=is_new)
            is_same_input = await asyncio.to_thread(_has_same_input, job, output)
            journal, run.manifest = await _open_journal(run, output)
            run.journal = run.runner.journal = journal
            if is_same_input:
                run.recall(journal)
            run.feed.identifier = run.identifier(journal)
            # What was answered before a request goes out is written before it.
            run.tally.on_send = journal.flush
            run.runner.load.journal = journal
            stack.push_async_callback(_close_journal, run, journal)
            if run.metered is not None:
                run.keep_account(run.metered, AccountFile(output, is_new=is_new), journal)
            if ledger is not None:
                await _open_batches(run, journal, ledger, stack)
            journal.start()
        if run.answers is not None:
            await asyncio.to_thread(run.answers.open)
        # Under the lock: the sends of another run's window are not this one's to write.
        run.inner.keep(_stores(job))
        stack.push_async_callback(run.backend.aclose)
        stack.push_async_callback(run.feed.aclose)
        yield


async def _end_count(run: _Run) -> None:
    """Ends the count of rows; the summary of a run that has not read them all waits for it."""
    is_needed = run.runner.is_draining and not run.feed.is_read
    await asyncio.to_thread(run.row_count.finish, _LAST_COUNT_S if is_needed else 0.0)


def _ledger(job: Job, output: Output, *, is_new: bool) -> Ledger | None:
    """What is with the Batch API; None for a run that has nothing to do with it. Blocks."""
    if job.via not in BATCHING and not (output.state_path / "batches.jsonl").exists():
        return None
    # Imported here: a run without batches does not pay for them.
    from redline.run.batch_open import open_ledger

    return open_ledger(job, output, is_new=is_new)


async def _open_batches(run: _Run, journal: Journal, ledger: Ledger, stack: AsyncExitStack) -> None:
    """What the output's batches have cost counts, and the run goes by batches if it is to."""
    from redline.run.batch_collect import World
    from redline.run.batch_open import batches_of

    metered = run.metered
    if metered is not None:
        metered.recall(ledger.spent, ledger.reserved)
        run.bill.begin()
    world = World(run.job, run.runner, run.feed, journal, run.tally, metered, run.slots)
    stack.callback(ledger.close)
    run.batches = await asyncio.to_thread(batches_of, world, ledger)
    if run.batches is not None:
        stack.push_async_callback(run.batches.aclose)
        await run.batches.prepare()


async def _open_journal(run: _Run, output: Output) -> tuple[Journal, Manifest]:
    """The journal of what is there and its manifest; opened in a thread, for it reads it all."""
    opening = asyncio.ensure_future(
        asyncio.to_thread(open_journal, run.job, output, run.acknowledge)
    )
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        # The thread cannot be stopped. What it opens is closed before the output's lock is.
        await asyncio.wait([opening])
        if not opening.cancelled() and opening.exception() is None:
            journal, _ = opening.result()
            journal.let_go()
        raise


def _has_same_input(job: Job, output: Output) -> bool:
    """The output's rows are those of the job's input, as far as its name tells."""
    if job.restart or stream_of(job.rows) is not None:
        return False
    try:
        old = manifests.load(output)
    except JournalError:
        # To be reported, or overruled, when the journal is opened.
        return False
    return old is not None and bool(old.input) and old.input == job.manifest().input


async def _close_journal(run: _Run, journal: Journal) -> None:
    """Closes it; what fails then, the run is stopped by. Raises JournalError."""
    try:
        await journal.close()
    except JournalError as error:
        run.runner.stop(error)
        raise


async def _finish(run: _Run, output: Output) -> None:
    """What only a finished run can say or do: the number of rows, and their order.

    Raises JournalError, also if the output's folder of state was removed meanwhile.
    """
    journal = run.journal
    if journal is None or run.manifest is None:
        return
    if output.path.exists() and not manifests.path_of(output).exists():
        with telling(output.state_path):
            output.state_path.mkdir(exist_ok=True)
        manifests.save(output, run.manifest)
        raise JournalError(
            f"{output.state_path} was removed while results were written",
            hint="the settings of the run are written there again, what it kept of limits, budgets "
            "and batches is lost; run the same command again: it continues",
        )
    if not run.report(0.0).is_complete:
        return
    is_gone = run.is_gone(journal)
    if is_gone is not None and output.failed_path.exists():
        aside = output.state_path / output.failed_path.name
        await asyncio.to_thread(set_aside, output.failed_path, is_gone, aside)
    if output.ordered:
        await asyncio.to_thread(put_in_order, output.path, run.feed.keys or array("Q"))
    run.manifest.rows = run.feed.rows_read
    manifests.save(output, run.manifest)


def _stream(job: Job) -> StreamRows | None:
    """The messages of the stream that the job reads; None where it reads something else."""
    url = stream_of(job.rows)
    if url is None:
        return None
    # Imported here: a run on files does not pay for it.
    from redline.run.source_stream import StreamRows

    assert job.output is not None
    return StreamRows(
        url, job.output.state_path / "consumer", limit=job.limit, until_empty=job.until_empty
    )


def _metered(job: Job, backend: Backend) -> Metered | None:
    """The backend within the job's budget; None where it has none."""
    if job.allowance is None:
        return None
    return Metered(backend, Spending(job.allowance), Prices(job.prices))


def _stores(job: Job) -> Stores:
    """Where limits outlive the run."""
    recent = None if job.output is None else job.output.state_path / "limits"
    return Stores(recent=recent, memory=job.memory)


def _cached(job: Job, inner: Backend, listener: Listener) -> tuple[Backend, AnswerStore | None]:
    """`inner` behind the job's cache, where it has one, and where that keeps its answers."""
    if job.cache is None or job.endpoint is None:
        return inner, None
    # Imported here: a run without a cache does not pay for it, nor for SQLite.
    from redline.calls.cache import Cached
    from redline.calls.cache_key import identity
    from redline.calls.cache_store import AnswerStore

    cache = job.cache
    assert cache.folder is not None
    store = AnswerStore(Path(cache.folder), cache.max_bytes)
    embedded = job.embedded.identity() if job.embedded is not None else ""
    whose = identity(job.endpoint, embedded=embedded)
    sampled = cache.includes_sampled
    return Cached(inner, store, whose, includes_sampled=sampled, listener=listener), store


def _backend(job: Job, listener: Listener) -> tuple[HttpBackend | FunctionBackend, int]:
    """Who makes the job's calls, and how many at once at most."""
    if job.endpoint is not None:
        return HttpBackend(job.endpoint, listener=listener), job.endpoint.limits.slots()
    assert job.call is not None
    made = FunctionBackend(job.call, limits=job.limits, timeout_s=job.timeout_s, listener=listener)
    return made, job.limits.slots()
