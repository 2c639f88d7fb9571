"""A job from its settings to its report."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from redline.job.local import execute_local
from redline.job.parts import Parts
from redline.job.settings import Job
from redline.job.show import Report
from redline.sources import opened
from redline.store import url_of

_ALL_BUILT = Parts()


async def execute(job: Job, parts: Parts = _ALL_BUILT) -> Report:
    """Runs the job to its end and returns its report.

    parts: objects supplied by the caller; the others are built from the job's settings. Raises
    ConfigError or JournalError if the run cannot begin; an error that ends it later is in the
    report's `stopped`.
    """
    async with _served(job) as job:
        if url_of(job.rows) is not None and parts.source is None:
            rows = await asyncio.to_thread(opened, job.rows)
            job = msgspec.structs.replace(job, rows=rows)
        if job.output is None or job.output.url is None:
            return await execute_local(job, parts)
        # Imported here: a run on local files does not pay for what stores need.
        from redline.job.mirrored import execute_mirrored

        return await execute_mirrored(job, parts)


@asynccontextmanager
async def _served(job: Job) -> AsyncIterator[Job]:
    """Yields the job with the URL of its embedded server, which runs meanwhile, if it has one."""
    if job.embedded is None or job.endpoint is None:
        yield job
        return
    async with job.embedded.open() as base_url:
        endpoint = msgspec.structs.replace(job.endpoint, base_url=base_url, proxy="")
        yield msgspec.structs.replace(job, endpoints=(endpoint,))
