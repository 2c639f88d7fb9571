"""Executes a job, from its settings to its report."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

import msgspec

from redline.clock import SYSTEM
from redline.errors import JournalError, RedlineError
from redline.job.assembly import Run
from redline.job.build import built
from redline.job.outputs import Mirror
from redline.job.parts import Parts
from redline.job.settings import Job
from redline.job.show import Report
from redline.journal import Output, ResultsLost
from redline.process import end_tasks, in_thread
from redline.sources import opened
from redline.store import url_of

_ALL_BUILT = Parts()


async def execute(job: Job, parts: Parts = _ALL_BUILT) -> Report:
    """Runs the job to its end and returns its report.

    parts: objects supplied by the caller; the others are built from the job's settings. Raises
    ConfigError or JournalError if the run cannot begin; an error that ends the run later is in the
    report's `stopped`.
    """
    async with _served(job) as job:
        if url_of(job.rows) is not None and parts.source is None:
            rows = await in_thread(opened, job.rows)
            job = msgspec.structs.replace(job, rows=rows)
        if job.output is None or job.output.url is None:
            return await execute_local(job, parts)
        return await _execute_mirrored(job, job.output, parts)


@asynccontextmanager
async def _served(job: Job) -> AsyncIterator[Job]:
    """Yields the job; if it has an embedded server, runs it and sets the endpoint to its URL."""
    if job.embedded is None or job.endpoint is None:
        yield job
        return
    async with job.embedded.open() as base_url:
        use = job.embedded.use()
        if use is not None and not use.gpu_reads:
            job.alerts.refuse_without_figures(("gpu_utilization",))
        endpoint = msgspec.structs.replace(job.endpoint, base_url=base_url, proxy="")
        yield msgspec.structs.replace(job, endpoints=(endpoint,))


async def execute_local(job: Job, parts: Parts) -> Report:
    """Executes a job whose server is running and whose output, if any, is on this machine."""
    begun_s = SYSTEM.now_s()
    run: Run | None = None
    shown: asyncio.Task[None] | None = None
    try:
        async with built(job, parts) as run:
            if parts.on_start is not None:
                parts.on_start(run.runner)
            if parts.display is not None:
                shown = asyncio.create_task(parts.display.show(run))
            await run.go()
    except JournalError as error:
        # Raised when the journal is closed, for its last group; earlier groups are on disk.
        if run is None or run.runner.offered == 0:
            raise
        run.runner.stop(error)
    finally:
        # Ended only now, so that the last state displayed is what is on disk.
        await end_tasks(shown)
    return run.report(SYSTEM.now_s() - begun_s - run.waited_s)


async def _execute_mirrored(job: Job, output: Output, parts: Parts) -> Report:
    """Executes a job whose output is an object in a store: fetches its files, runs, uploads them.

    If the upload fails, the report's `not_uploaded` is the error. Raises what `execute_local`
    raises, and ConfigError if the store cannot be used, before the run.
    """
    # In a thread, because it imports the store's driver.
    mirror = await in_thread(Mirror, output)
    await _in_thread(mirror, partial(mirror.prepare, restart=job.restart, force=job.force))
    job = msgspec.structs.replace(job, output=mirror.output)
    # Objects are renamed only when the files are, so a refused run leaves both unchanged.
    parts = msgspec.structs.replace(
        parts, before_restart=partial(_in_thread, mirror, mirror.put_aside)
    )
    report = await execute_local(job, parts)
    if isinstance(report.stopped, ResultsLost):
        # The files that now have these names are not those that the run wrote.
        report.not_uploaded = report.stopped
        return report
    if parts.on_upload is not None:
        parts.on_upload(mirror.stop)
    try:
        await _in_thread(mirror, mirror.upload)
    except RedlineError as error:
        report.not_uploaded = error
        report.stopped = report.stopped or error
        report.interrupted = report.interrupted or mirror.is_stopped
    return report


async def _in_thread(mirror: Mirror, work: Callable[[], None]) -> None:
    """Runs `work`, which uses the mirror, in a thread.

    If cancelled, stops the mirror's transfer at its next block of data and waits for its end, since
    the output is locked until then.
    """
    thread = in_thread(work)
    try:
        await asyncio.shield(thread)
    except asyncio.CancelledError:
        mirror.stop()
        # The thread's error says only that the transfer was interrupted.
        await asyncio.gather(thread, return_exceptions=True)
        raise
