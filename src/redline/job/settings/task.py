"""Defines the interface of tasks, which may send several requests per row; see redline.tasks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from redline.calls import Backend, Call, Load, Outcome, Request, Sink, failed
from redline.errors import Rejected, TimedOut
from redline.waist import MOST_TRIED, Attempt

# The deadline of a row that sends no further request, because the run is ending.
NO_MORE_S = -math.inf


@dataclass(slots=True, eq=False, repr=False)
class Ask:
    """Sends the requests of one row to the job's backend, within the row's deadline.

    on_outcome: called with the outcome of each request, and the request. tried: the latest attempts
    at the row's requests, at most MOST_TRIED, oldest first.
    """

    _backend: Backend
    _call: Call
    _on_outcome: Callable[[Outcome, Request], None] | None = None
    _has_asked: bool = False
    tried: tuple[Attempt, ...] = ()

    async def __call__(self, request: Request) -> Outcome:
        """Sends a request, with retries, and returns its outcome. Raises only CancelledError."""
        if self._call.deadline_s == NO_MORE_S:
            # The run is ending: the row sends no further request, and stays unfinished.
            late = failed(TimedOut("row"))
            late.attempts = self._call.attempts
            return late
        outcome = await self._backend.send(request, self._call)
        self.tried = (self.tried + outcome.tried)[-MOST_TRIED:]
        if not self._has_asked:
            # A row's later requests are sent before the first requests of other rows. Therefore,
            # only a few rows are half-done at any time, and few answers are lost if the run ends
            # early.
            self._has_asked = True
            self._call.priority -= 1
        if self._on_outcome is not None:
            self._on_outcome(outcome, request)
        return outcome


class Task(Protocol):
    """Processes the rows of a job, each with one request or more.

    A task that sends exactly one request per row can also be used with batches if its attribute
    `asks_once` is True. `do` is then called twice for a row: first to get the request, for which
    `ask` returns a failure, and again once the answer has arrived.

    A task that may repeat a row's request, because an answer was not accepted, states the most such
    repetitions per row in `most_reasks`.
    """

    def settings(self) -> Mapping[str, Any]:
        """Returns the settings, besides the prompt's, on which the results depend.

        They are saved with the output. A run with other settings is refused, except with `force`.
        """
        ...

    async def do(self, row: dict[str, Any], request: Request, ask: Ask) -> Outcome:
        """Processes a row and returns its outcome, whose `fields` go into the result line.

        request: the request made from the row according to the job's `prompting`. Raises Rejected
        for an unsuitable row; any exception fails the row.
        """
        ...


@runtime_checkable
class Remembering(Protocol):
    """A Task whose outcomes depend on the results of earlier runs of the output."""

    def recall(self, results: Path, failures: Path) -> None:
        """Reads the files that earlier runs have written; `failures` need not exist.

        Called once, in a thread, before the first row; the output is then locked, and an unfinished
        last line has been removed from its files.
        """
        ...


@runtime_checkable
class Following(Protocol):
    """A Task whose first answer for a row is followed by another request."""

    def following(self, row: dict[str, Any], request: Request) -> Request | None:
        """Returns the request that would follow an empty answer to `request`; None if none would.

        The request that is sent also quotes the answer. Raises Rejected for an unsuitable row.
        """
        ...


async def first_request(task: Task, row: dict[str, Any], request: Request) -> Request:
    """Returns the first request that the task would send for a row, without sending it.

    request: as for `Task.do`. Raises what `do` raises, such as Rejected for an unsuitable row.
    """
    noted = unsent()
    await task.do(row, request, Ask(noted, Call()))
    return noted.request or request


@dataclass(eq=False, repr=False)
class Answered:
    """Stub backend that returns an existing outcome and records the first request."""

    _outcome: Outcome
    request: Request | None = None

    def load(self, now_s: float, request: Request | None = None) -> Load:
        return Load()

    async def send(self, request: Request, call: Call, sink: Sink | None = None) -> Outcome:
        self.request = self.request or request
        return self._outcome

    async def aclose(self) -> None:
        pass


def unsent() -> Answered:
    """Returns a stub backend that only records the first request of a row."""
    return Answered(failed(Rejected("the row is not sent here")))
