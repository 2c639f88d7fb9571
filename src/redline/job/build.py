"""Makes the objects of a run in the order of their dependencies, and closes them in reverse.

input     source, renderer, limiters, trace: invalid settings fail here, before the output is opened
output    lock, the stream's consumer, ledger of batches, journal, account of the budget
run       backend (calls, budget, retry, cache), feed, runner, batches
"""

from __future__ import annotations

import asyncio
import math
import random
from array import array
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from redline.calls import (
    Backend,
    FunctionBackend,
    HttpBackend,
    Retry,
    Shared,
    Stores,
)
from redline.calls.client import Bounded, check_timeout, function_limiter, label_of
from redline.calls.cost import NOTHING, Metered, Spending
from redline.calls.http import limiter_of
from redline.calls.wire import Outbox, do_nothing, proxy_of
from redline.clock import SYSTEM
from redline.errors import JournalError
from redline.events import Listener, Listeners
from redline.job.assembly import Kept, Run
from redline.job.monitor import Monitor, Webhook, alerts_of
from redline.job.outputs import AccountFile, open_journal, remove_account
from redline.job.parts import Parts
from redline.job.recording import recorded, sampler_of, set_timeline_aside
from redline.job.settings import BATCHING, Job
from redline.job.show import InputCounts, RowCount
from redline.job.work import (
    Acknowledge,
    Backpressure,
    Bill,
    Endpoints,
    Feed,
    Renderer,
    Results,
    Runner,
    Selection,
    SuppliedBackend,
    SuppliedResults,
    Tally,
    renderer_of,
)
from redline.journal import (
    Brief,
    Identifier,
    Journal,
    Manifest,
    MessageKeys,
    NotKept,
    Output,
    OutputLock,
    check_place,
    flaws_of,
    put_in_order,
    set_aside,
)
from redline.journal import manifest as manifests
from redline.limits import RateLimiter
from redline.process import in_thread, raise_limit, telling
from redline.route import Pool, intake_of, seat_of, strategy_of
from redline.sources import AsyncRows, Source, open_source, row_counts, sampled, stream_of
from redline.timeline import Gatherer, Recorder, TraceFile
from redline.waist import Attempts

if TYPE_CHECKING:
    from redline.calls.cache import AnswerStore
    from redline.job.batch import HeldRows, Ledger
    from redline.job.exporter import MetricsServer
    from redline.job.otel import Telemetry
    from redline.sources.stream import StreamRows

# The most seconds that a drained run waits at its end for the count of its input's rows. Counting
# reads about 1 GB of JSON Lines per second, so most counts are complete by then.
_LAST_COUNT_S = 0.5


class _Input(msgspec.Struct, frozen=True):
    """The input of a run, and the objects that can be made before the output is opened.

    parts: those supplied by the caller. stream: the source, if it is a stream. limiters: one for
    each endpoint, in their order, or the one for the function; empty with a supplied backend.
    trace: the file in which calls are recorded; None without a trace. gatherer: makes the run's
    windows. telemetry: None until it is open, and without OpenTelemetry.
    """

    parts: Parts
    source: Source | AsyncRows
    stream: StreamRows | None
    row_count: RowCount
    renderer: Renderer
    limiters: tuple[RateLimiter, ...]
    trace: TraceFile | None
    gatherer: Gatherer
    telemetry: Telemetry | None = None


class _Calls(msgspec.Struct, frozen=True):
    """The objects that make calls.

    endpoints: the endpoints as the sampler reads them. found: returns the limits that were found,
    in words. metered: enforces the budget; None without one. backend: the outermost backend, which
    wraps all others. answers: the store of the cache; None without one. recorder: records calls;
    None without a trace.
    """

    endpoints: Endpoints
    found: Callable[[], list[str]]
    metered: Metered | None
    backend: Backend
    answers: AnswerStore | None
    recorder: Recorder | None


@asynccontextmanager
async def built(job: Job, parts: Parts) -> AsyncIterator[Run]:
    """Yields a run that is ready to start; closes its input, output and connections at the end.

    Raises ConfigError or JournalError if the run cannot begin, and JournalError at the end if the
    run's last results cannot be saved.
    """
    parts.check(job)
    given = _open_input(job, parts)
    run: Run | None = None
    monitor: Monitor | None = None
    given.row_count.start()
    try:
        async with AsyncExitStack() as stack:
            server = await _serve_metrics(job, stack)
            given = msgspec.structs.replace(given, telemetry=_open_telemetry(job, stack))
            if job.output is not None:
                await _take(job.output, given.stream, stack)
            try:
                async with AsyncExitStack() as objects:
                    run = await _assemble(job, given, objects)
                    monitor = _monitor(run, parts, server)
                    run.sampler.start(run.totals, monitor.note)
                    yield run
            finally:
                if run is not None:
                    await run.sampler.finish(*run.ending())
                if monitor is not None:
                    await monitor.finish()
                if run is not None and run.kept is not None and job.output is not None:
                    await _finish(run, run.kept, job.output)
    finally:
        # If a drained run has not read all rows, its summary needs their number, and waits for it.
        is_needed = run is not None and run.runner.is_draining and not run.feed.is_read
        try:
            await in_thread(given.row_count.finish, _LAST_COUNT_S if is_needed else 0.0)
        finally:
            given.source.close()
            if given.trace is not None:
                given.trace.close()


async def _serve_metrics(job: Job, stack: AsyncExitStack) -> MetricsServer | None:
    """Starts the server of the job's metrics page, still without metrics; None without a page."""
    if job.metrics_port is None:
        return None
    # Imported here, so that only runs with a metrics page load the module.
    from redline.job.exporter import MetricsServer

    return await stack.enter_async_context(MetricsServer(job.metrics_port))


def _open_telemetry(job: Job, stack: AsyncExitStack) -> Telemetry | None:
    """Returns the job's telemetry, closed by `stack`; None for a job without OpenTelemetry."""
    if job.otel is None:
        return None
    # Imported here, so that only runs with OpenTelemetry load the module.
    from redline.job.otel import open_telemetry

    telemetry = open_telemetry(job)
    if telemetry is not None:
        stack.push_async_callback(telemetry.aclose)
    return telemetry


def _monitor(run: Run, parts: Parts, server: MetricsServer | None) -> Monitor:
    """Returns a monitor of the run; from now on, the server's page shows the monitor's metrics."""
    listener = Listeners(run.tally, *parts.listeners)
    telemetry = run.telemetry
    on_figures = None if telemetry is None else telemetry.note
    monitor = Monitor(run, run.webhook, listener, on_figures)
    if server is not None:
        server.show(monitor.families)
        if parts.on_metrics is not None:
            parts.on_metrics(server.url)
    return monitor


def _open_input(job: Job, parts: Parts) -> _Input:
    is_supplied = parts.source is not None
    stream = None if is_supplied else _stream(job)
    opened = stream or parts.source or open_source(job.rows, is_followed=job.follow)
    source = stream or sampled(opened, job.samples)
    row_count = RowCount(
        opened.total_rows,
        None if job.follow or is_supplied else row_counts(job.rows),
        limit=job.limit,
        samples=job.samples,
    )
    try:
        limiters = () if parts.backend is not None else _limiters(job)
        renderer = renderer_of(job.prompting, opened)
        if job.endpoints:
            raise_limit(job.slots)
        trace = None if job.trace is None else TraceFile(job.trace)
    except BaseException:
        source.close()
        raise
    return _Input(parts, source, stream, row_count, renderer, limiters, trace, Gatherer())


def _limiters(job: Job) -> tuple[RateLimiter, ...]:
    """Returns the limiters of the job's calls. Raises ConfigError if they cannot be made."""
    if job.endpoints:
        for endpoint in job.endpoints:
            proxy_of(endpoint)
        return tuple(limiter_of(endpoint, SYSTEM) for endpoint in job.endpoints)
    assert job.call is not None
    check_timeout(job.timeout_s)
    return (function_limiter(job.limits, label_of(job.call), SYSTEM),)


def _stream(job: Job) -> StreamRows | None:
    """Returns the messages of the stream that the job reads; None if it reads something else."""
    url = stream_of(job.rows)
    if url is None:
        return None
    # Imported here, so that only runs on streams load the module.
    from redline.sources.stream import StreamRows

    assert job.output is not None
    return StreamRows(
        url,
        job.output.state_path / "consumer",
        most=2 * job.slots,
        limit=job.limit,
        until_empty=job.until_empty,
    )


async def _take(output: Output, stream: StreamRows | None, stack: AsyncExitStack) -> None:
    """Takes the output's lock, and joins the consumer group of the stream, if there is one."""
    check_place(output)
    stack.enter_context(OutputLock(output))
    if stream is not None:
        # The stream is closed after the journal, since it acknowledges the journal's last rows.
        stack.push_async_callback(stream.aclose)
        await stream.open()


async def _assemble(job: Job, given: _Input, stack: AsyncExitStack) -> Run:
    tally = given.parts.tally or Tally()
    acknowledge = _acknowledging(tally, given)
    kept = None
    if job.output is not None:
        kept = await _open_output(job, job.output, acknowledge, given.parts, stack)
    journal = None if kept is None else kept.journal
    calls = _calls(job, given, kept, tally)
    if calls.answers is not None:
        await in_thread(calls.answers.open)
    stack.push_async_callback(calls.backend.aclose)
    load = Backpressure(journal)
    held = None if kept is None else kept.held
    feed, selection = _rows(job, given, journal, load, held)
    bill = Bill(job, None if calls.metered is None else calls.metered.spending)
    results = journal or _results(given.parts, acknowledge)
    runner = _runner(job, given, calls, feed, bill, results)
    # The runner is closed after the feed: until then, it may have to abandon the feed's last read.
    stack.callback(runner.close)
    stack.push_async_callback(feed.aclose)
    batches = None
    if kept is not None and kept.ledger is not None and held is not None:
        # Imported here, so that only runs with batches load the module.
        from redline.job.batch import World, batches_of

        world = World(job, runner, feed, kept.journal, load, tally, calls.metered, job.slots, held)
        batches = await in_thread(batches_of, world, kept.ledger)
        stack.push_async_callback(batches.aclose)
        await batches.prepare()
    if kept is not None:
        kept.journal.start(None if kept.account is None else kept.account.sync)
    return Run(
        job=job,
        tally=tally,
        feed=feed,
        selection=selection,
        row_count=given.row_count,
        source_name=given.source.name,
        check_source=given.source.check,
        found_limits=calls.found,
        answers=calls.answers,
        bill=bill,
        kept=kept,
        journal=journal,
        before=None if kept is None else kept.before,
        runner=runner,
        batches=batches,
        recorder=calls.recorder,
        sampler=sampler_of(runner, feed, tally, calls.endpoints, journal, calls.metered),
        alerts=alerts_of(job),
        webhook=Webhook(job.alerts.webhook) if job.alerts.webhook else None,
        telemetry=given.telemetry,
    )


def _runner(
    job: Job, given: _Input, calls: _Calls, feed: Feed, bill: Bill, results: Results
) -> Runner:
    return Runner(
        job=job,
        backend=calls.backend,
        slots=job.slots,
        supply=feed,
        source_name=given.source.name,
        renderer=given.renderer,
        results=results,
        load=feed.load,
        bill=bill if bill.reads_replies else None,
        permit=None if given.stream is None else given.stream.permit,
        on_result=given.parts.on_result,
        on_failure=given.parts.on_failure,
        record=given.gatherer,
    )


def _results(parts: Parts, acknowledge: Acknowledge) -> Results:
    """Returns the receiver of the results of a run without an output."""
    if parts.results is None:
        return NotKept(acknowledge)
    return SuppliedResults(parts.results, acknowledge)


def _acknowledging(tally: Tally, given: _Input) -> Acknowledge:
    """Returns the function to call with rows once they are durable."""
    stream, gatherer, on_saved = given.stream, given.gatherer, given.parts.on_saved

    def acknowledge(rows: list[Brief]) -> None:
        if stream is not None:
            stream.acknowledge([row.key for row in rows])
        succeeded = list(map(attrgetter("status"), rows)).count("succeeded")
        tally.rows_saved(succeeded, len(rows) - succeeded, flaws_of(rows))
        tally.rows_answered(rows)
        gatherer.became_durable(SYSTEM.now_s(), list(map(attrgetter("complete_s"), rows)))
        if on_saved is not None:
            on_saved(len(rows))

    return acknowledge


async def _open_output(
    job: Job,
    output: Output,
    acknowledge: Acknowledge,
    parts: Parts,
    stack: AsyncExitStack,
) -> Kept:
    """Opens the output's files, closed by `stack`; the caller holds the output's lock."""
    is_new = job.restart or not (output.path.exists() or output.failed_path.exists())
    ledger = await in_thread(_ledger, job, output, is_new=is_new)
    is_same_input = await in_thread(_has_same_input, job, output)
    if job.restart and parts.before_restart is not None:
        await parts.before_restart()
    journal, manifest = await _open_journal(job, output, acknowledge)
    if is_new:
        set_timeline_aside(output)
    account = None
    try:
        if job.allowance is not None:
            account = AccountFile(output, is_new=is_new)
        elif is_new:
            remove_account(output)
    except BaseException:
        await journal.close()
        raise
    if account is not None:
        # The account is closed after the journal, which syncs the account before its own last group
        # of results: spending must be durable before the results that it paid for.
        stack.callback(account.close)
    stack.push_async_callback(journal.close)
    held = None
    if ledger is not None:
        stack.callback(ledger.close)
        # Imported here, so that only runs with batches load the module.
        from redline.job.batch import HeldRows, goes_by_batches

        held = HeldRows() if goes_by_batches(job, ledger) else None
    before = _done_before(job, journal) if is_same_input else None
    return Kept(journal, manifest, before, account, ledger, held)


def _done_before(job: Job, journal: Journal) -> InputCounts:
    """Returns the counts of earlier runs, assuming that all the output's rows are in this input."""
    done, failed = len(journal.succeeded), len(journal.failed)
    is_again = job.retry_failed or job.retries_failures
    return InputCounts(rows=done + failed, done=done, failed=0 if is_again else failed)


def _calls(job: Job, given: _Input, kept: Kept | None, tally: Tally) -> _Calls:
    """Returns the objects that make calls: limits first, then budget, retries, trace and cache."""
    # Before a request is sent, the lines of all answers that have arrived are written.
    before_write = do_nothing if kept is None else kept.journal.flush
    supplied, listeners = given.parts.backend, given.parts.listeners
    listener: Listener = Listeners(tally, *listeners) if listeners else tally
    found: Callable[[], list[str]] = list
    calls: Backend
    if supplied is not None:
        calls = Bounded(SuppliedBackend(supplied, before_write, tally), job.slots)
    elif job.endpoints:
        calls, found = _http(job, given, tally, before_write, listener)
    else:
        assert job.call is not None
        calls = FunctionBackend(
            job.call,
            limits=job.limits,
            timeout_s=job.timeout_s,
            shared=Shared(limiter=given.limiters[0], stores=_stores(job)),
            before_write=before_write,
            attempts=tally,
        )
    metered = _metered(job, calls, kept)
    attempts: Backend = calls if metered is None else metered
    telemetry = given.telemetry
    if telemetry is not None:
        attempts = telemetry.measured(attempts)
    whole: Backend = Retry(attempts, job.retry, listener=listener)
    if telemetry is not None:
        whole = telemetry.traced(whole)
    recorder = None
    if given.trace is not None:
        whole = recorder = recorded(job, whole, given.trace, 0 if given.stream else job.slots)
    backend, answers = _cached(job, whole, tally)
    return _Calls(Endpoints(calls), found, metered, backend, answers, recorder)


def _http(
    job: Job, given: _Input, tally: Tally, before_write: Callable[[], None], listener: Listener
) -> tuple[Backend, Callable[[], list[str]]]:
    """Returns the backend of the job's endpoint, or a pool of its endpoints.

    Also returns a function that returns the limits found so far, in words.
    """
    # The stores are read under the output's lock, so that another run's sends are not overwritten.
    stores = _stores(job)
    intake, outbox = intake_of(job.endpoints), Outbox(before_write)

    def parts(limiter: RateLimiter, attempts: Attempts = tally) -> dict[str, Any]:
        return {
            "shared": Shared(limiter=limiter, stores=stores, intake=intake, outbox=outbox),
            "attempts": attempts,
            "listener": listener,
        }

    if job.endpoint is not None:
        backend = HttpBackend(job.endpoint, **parts(given.limiters[0]))
        return backend, backend.found
    tally.expect([endpoint.label for endpoint in job.endpoints])
    # Only metrics and OpenTelemetry need attempts to be counted by endpoint.
    is_shown = job.metrics_port is not None or job.otel is not None
    counted = tally.part if is_shown else lambda name: tally
    seats = []
    for endpoint, limiter in zip(job.endpoints, given.limiters, strict=True):
        # The price of an input token plus an output token, in picodollars; 0 if unknown.
        price = job.price_at(endpoint)
        both = 0.0 if price is None else float(price.input + price.output)
        seats.append(seat_of(endpoint, price=both, **parts(limiter, counted(endpoint.label))))
    strategy = strategy_of(job.balance, random.Random())
    pool = Pool(seats, strategy, most=job.most_together, listener=listener)

    def found() -> list[str]:
        return [
            f"{limit} at {member.name}"
            for member in pool.members
            if isinstance(member.backend, HttpBackend)
            for limit in member.backend.found()
        ]

    return pool, found


def _metered(job: Job, backend: Backend, kept: Kept | None) -> Metered | None:
    """Returns `backend` with the job's budget enforced; None for a job without a budget."""
    if job.allowance is None:
        return None
    account = None if kept is None else kept.account
    spending = Spending(job.allowance, NOTHING if account is None else account.spent)
    metered = Metered(backend, spending, job.price_table(), account=account)
    if kept is not None and kept.ledger is not None:
        metered.recall(kept.ledger.spent, kept.ledger.reserved)
    return metered


def _cached(job: Job, inner: Backend, tally: Tally) -> tuple[Backend, AnswerStore | None]:
    """Returns `inner` behind the job's cache, and the cache's store.

    For a job without a cache, returns `inner` itself and None.
    """
    if job.cache is None or not job.endpoints:
        return inner, None
    # Imported here, so that only runs with a cache load the module, and SQLite.
    from redline.calls.cache import AnswerStore, Cached, identity

    cache = job.cache
    assert cache.folder is not None
    store = AnswerStore(Path(cache.folder), cache.max_bytes)
    embedded = job.embedded.identity() if job.embedded is not None else ""
    whose = identity(*job.endpoints, embedded=embedded)
    sampled, use = cache.includes_sampled, tally.cache_use
    # A retry of failed rows must not repeat cached answers, which may have been invalid.
    ttl_s = 0.0 if job.retry_failed else math.inf
    return Cached(inner, store, whose, includes_sampled=sampled, use=use, ttl_s=ttl_s), store


def _rows(
    job: Job, given: _Input, journal: Journal | None, load: Backpressure, held: HeldRows | None
) -> tuple[Feed, Selection]:
    """Returns the feed of rows that this run has to process, and their selection."""
    stream = given.stream
    identifier: Identifier | MessageKeys = Identifier()
    if journal is not None:
        if stream is None:
            identifier = Identifier(journal.succeeded)
        else:
            identifier = MessageKeys(stream.url.stream, journal.succeeded)
    selection = Selection(
        job,
        journal,
        None if held is None else held.holds,
        None if stream is None else stream.skip,
    )
    feed = Feed(
        given.source,
        selection.wanted,
        job.limit,
        identifier=identifier,
        load=load,
        at_once=job.slots,
        keeps_keys=job.output is not None and job.output.ordered,
    )
    return feed, selection


def _stores(job: Job) -> Stores:
    """Returns the files that keep the state of limits between runs."""
    recent = None if job.output is None else job.output.state_path / "limits"
    return Stores(recent=recent, memory=job.memory)


def _ledger(job: Job, output: Output, *, is_new: bool) -> Ledger | None:
    """Returns the ledger of batches; None if no run of the output uses the Batch API. Blocks."""
    if job.via not in BATCHING and not (output.state_path / "batches.jsonl").exists():
        return None
    # Imported here, so that only runs with batches load the module.
    from redline.job.batch import open_ledger

    return open_ledger(job, output, is_new=is_new)


def _has_same_input(job: Job, output: Output) -> bool:
    """Whether the output's last run had the job's input, judging by the input's path or URL."""
    if job.restart or stream_of(job.rows) is not None:
        return False
    try:
        old = manifests.load(output)
    except JournalError:
        # Opening the journal reports the error, or ignores it with --force.
        return False
    return old is not None and bool(old.input) and old.input == job.manifest().input


async def _open_journal(
    job: Job, output: Output, acknowledge: Acknowledge
) -> tuple[Journal, Manifest]:
    """Opens the journal in a thread, since the whole file is read; returns it and the manifest."""
    opening = in_thread(open_journal, job, output, acknowledge)
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        # The thread cannot be stopped. Even after repeated cancellation, the journal that it opens
        # must be closed before the output's lock is released.
        while not opening.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([opening])
        if not opening.cancelled() and opening.exception() is None:
            journal, _ = opening.result()
            journal.let_go()
        raise


async def _finish(run: Run, kept: Kept, output: Output) -> None:
    """Saves what is known only after a complete run: the number of rows and their order.

    Also sets aside failures of rows that are no longer in the input. Raises JournalError if a file
    cannot be written, and, even for an incomplete run, if the output's state folder was removed.
    """
    job, feed, journal = run.job, run.feed, kept.journal
    if output.path.exists() and not manifests.path_of(output).exists():
        with telling(output.state_path):
            output.state_path.mkdir(exist_ok=True)
        await in_thread(manifests.save, output, kept.manifest)
        raise JournalError(
            f"{output.state_path} was removed while results were written",
            hint="its record of limits, budgets and batches is lost, but the run's settings have "
            "been restored: run the same command again to continue",
        )
    if journal.failure is not None or not run.report(0.0).is_complete:
        return
    if job.limit is None and not job.follow and stream_of(job.rows) is None:
        is_same_input = bool(kept.manifest.input) and not kept.manifest.others
        is_gone = run.selection.is_gone(journal, is_same_input=is_same_input)
        if is_gone is not None and output.failed_path.exists():
            aside = output.state_path / output.failed_path.name
            await in_thread(set_aside, output.failed_path, is_gone, aside)
    if output.ordered:
        await in_thread(put_in_order, output.path, feed.keys or array("Q"))
    finished = msgspec.structs.replace(kept.manifest, rows=feed.rows_read)
    await in_thread(manifests.save, output, finished)
