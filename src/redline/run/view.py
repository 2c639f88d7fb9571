"""What a display of a run may look at."""

from __future__ import annotations

from typing import Protocol

from redline.run.bill import Bill
from redline.run.feed import Feed
from redline.run.row_count import InputCounts
from redline.run.runner import Runner
from redline.run.settings import Job
from redline.run.tally import Tally


class View(Protocol):
    """What a display may look at while a run goes on."""

    job: Job
    tally: Tally
    feed: Feed
    runner: Runner
    bill: Bill
    source_name: str

    def counts(self) -> InputCounts: ...

    def flawed(self) -> dict[str, int]: ...


class Display(Protocol):
    """Shows a run; `show` is a task that is cancelled at the run's end."""

    async def show(self, view: View) -> None: ...
