"""Results to stdout, for a run without an output file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TextIO

from redline.run import Report, run_job
from redline.run.execute import Display
from redline.run.record import Result, result_line
from redline.run.settings import Job, Output

_FORMAT = Output(path=Path("-"))


def run_to_stdout(job: Job, stream: TextIO, *, display: Display | None = None) -> Report:
    """Runs `job`, writing each success to `stream` as it comes and each failure to stderr.

    Raises BrokenPipeError where the reader has gone.
    """

    async def write(result: Result) -> None:
        outcome = result.outcome
        if outcome.is_success:
            stream.write(result_line(result, _FORMAT).decode())
            stream.flush()
        elif outcome.error is not None:
            sys.stderr.write(f"failed: {outcome.error}\n")

    return run_job(job, display=display, on_result=write)
