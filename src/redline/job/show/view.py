"""The parts of a run that a display may read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from redline.job.settings import Job
from redline.job.show.row_count import InputCounts
from redline.job.work import Bill, Runner, Sampler, Tally
from redline.observe import Alerts


class View(Protocol):
    """The parts of a run that a display may read while it continues."""

    @property
    def job(self) -> Job: ...

    @property
    def tally(self) -> Tally: ...

    @property
    def runner(self) -> Runner: ...

    @property
    def bill(self) -> Bill: ...

    @property
    def sampler(self) -> Sampler: ...

    @property
    def alerts(self) -> Alerts: ...

    @property
    def telemetry_notices(self) -> dict[str, str]: ...

    @property
    def source_name(self) -> str: ...

    @property
    def rows_skipped(self) -> int: ...

    @property
    def found_limits(self) -> Callable[[], list[str]]: ...

    def counts(self) -> InputCounts: ...

    def flawed(self) -> dict[str, int]: ...


class Display(Protocol):
    """Shows a run; `show` is a task that is cancelled at the run's end."""

    async def show(self, view: View) -> None: ...
