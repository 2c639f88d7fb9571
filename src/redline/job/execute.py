"""A job from its settings to its report."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from redline.clock import SYSTEM
from redline.errors import JournalError
from redline.job.build import built
from redline.job.parts import Run
from redline.job.settings import Job
from redline.job.show import Display, Report
from redline.job.work import OnResult, Runner


async def execute(
    job: Job,
    *,
    display: Display | None = None,
    on_start: Callable[[Runner], None] | None = None,
    on_result: OnResult | None = None,
) -> Report:
    """Runs `job` to its end and reports.

    on_start: gets the runner, to drain or abort it. on_result: notified of each row that has
    ended; where it is to be awaited, it slows the run down to its own pace.
    Raises ConfigError or JournalError where the run cannot begin; what ends it later stands in
    the report's `stopped`.
    """
    begun_s = SYSTEM.now_s()
    run: Run | None = None
    try:
        async with built(job, on_result) as run:
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
        if run is None or run.runner.offered == 0:
            raise
        run.runner.stop(error)
    return run.report(SYSTEM.now_s() - begun_s)
