"""A run whose output is an object in a store: files before, a run on them, objects after."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import msgspec

from redline.errors import RedlineError
from redline.job.local import execute_local
from redline.job.outputs import Mirror
from redline.job.parts import Parts
from redline.job.settings import Job
from redline.job.show import Report
from redline.journal import ResultsLost


async def execute_mirrored(job: Job, parts: Parts) -> Report:
    """Executes a job whose output is an object in a store; see `execute_local`.

    If the object was not written, the report states why. Raises as `execute_local` does, and
    ConfigError if the store refuses before the run.
    """
    assert job.output is not None
    # In a thread, because it imports a driver.
    mirror = await asyncio.to_thread(Mirror, job.output)
    await _in_thread(mirror, partial(mirror.prepare, restart=job.restart, force=job.force))
    job = msgspec.structs.replace(job, output=mirror.output)
    report = await execute_local(job, parts)
    if isinstance(report.stopped, ResultsLost):
        # The files with these names are not those that the run has written.
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
    """Does the work in a thread.

    A cancellation ends a transfer at its next block of data, and waits for that: until then the
    output is locked.
    """
    thread = asyncio.create_task(asyncio.to_thread(work))
    try:
        await asyncio.shield(thread)
    except asyncio.CancelledError:
        mirror.stop()
        # Its error says no more than that it was interrupted.
        await asyncio.gather(thread, return_exceptions=True)
        raise
