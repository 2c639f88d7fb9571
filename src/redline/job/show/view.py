"""The parts of a run that a display may read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from redline.job.settings import Job
from redline.job.show.row_count import InputCounts
from redline.job.work import Bill, Runner, Sampler, Tally
from redline.observe import Alerts


class View(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a run that a display may read while it continues; `Run` has all of them.

    found_limits: those that were found, in words. telemetry_notices: see `Telemetry.notices`.
    """

    job: Job
    tally: Tally
    runner: Runner
    bill: Bill
    sampler: Sampler
    alerts: Alerts
    source_name: str
    found_limits: Callable[[], list[str]]

    @property
    def telemetry_notices(self) -> dict[str, str]:
        raise NotImplementedError

    @property
    def rows_skipped(self) -> int:
        raise NotImplementedError

    def counts(self) -> InputCounts:
        raise NotImplementedError

    def flawed(self) -> dict[str, int]:
        raise NotImplementedError


class Display(Protocol):
    """Shows a run; `show` is a task that is cancelled at the run's end."""

    async def show(self, view: View) -> None: ...
