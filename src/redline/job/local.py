"""A run on local files and a server that exists, from its settings to its report."""

from __future__ import annotations

import asyncio

from redline.clock import SYSTEM
from redline.errors import JournalError
from redline.job.assembly import Run
from redline.job.build import built
from redline.job.parts import Parts
from redline.job.settings import Job
from redline.job.show import Report


async def execute_local(job: Job, parts: Parts) -> Report:
    """Executes a job that has no embedded server and no output in a store; see `execute`."""
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
        # Raised while closing, for the last group: everything acknowledged earlier is on disk.
        if run is None or run.runner.offered == 0:
            raise
        run.runner.stop(error)
    finally:
        # The last display shows what is on disk.
        if shown is not None:
            shown.cancel()
            await asyncio.wait([shown])
    waited_s = 0.0 if run.telemetry is None else run.telemetry.waited_s
    return run.report(SYSTEM.now_s() - begun_s - waited_s)
