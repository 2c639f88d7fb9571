"""The interface of tasks, which may send several requests for a row; the tasks are in `tasks`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from redline.calls import Backend, Call, Load, Outcome, Request, Sink, failed
from redline.errors import TimedOut
from redline.waist import MOST_TRIED, Attempt

# The deadline of a row that is not to be asked again, because its run is ending.
NO_MORE_S = -math.inf


@dataclass(slots=True, eq=False, repr=False)
class Ask:
    """Asks the job's backend on behalf of one row, once or more, within that row's own deadline.

    on_outcome: gets each outcome, also those that are not the row's last. tried: the latest
    attempts of all requests, as in an Outcome.
    """

    _backend: Backend
    _call: Call
    _on_outcome: Callable[[Outcome], None] | None = None
    _has_asked: bool = False
    tried: tuple[Attempt, ...] = ()

    async def __call__(self, request: Request) -> Outcome:
        """Sends a request and returns its one outcome, retries included.

        Raises nothing but CancelledError.
        """
        if self._call.deadline_s == NO_MORE_S:
            # The run is ending: the call on the wire has ended, and no attempt follows. The row
            # stays unfinished.
            late = failed(TimedOut("row"))
            late.attempts = self._call.attempts
            return late
        outcome = await self._backend.send(request, self._call)
        self.tried = (self.tried + outcome.tried)[-MOST_TRIED:]
        if not self._has_asked:
            # Later calls of a row take precedence over the first calls of other rows: if the run
            # ends, few rows lose the answers that they already have, instead of all rows that wait
            # for a limit.
            self._has_asked = True
            self._call.priority -= 1
        if self._on_outcome is not None:
            self._on_outcome(outcome)
        return outcome


class Task(Protocol):
    """The processing of each row.

    A task that sends exactly one request per row, and has an attribute `asks_once` that is True,
    works with batches, too: it is then called twice, the second time with the answer.
    """

    def settings(self) -> Mapping[str, Any]:
        """Returns the settings that determine a result besides the prompt.

        A run with other settings cannot continue the output.
        """
        ...

    async def do(self, row: dict[str, Any], request: Request, ask: Ask) -> Outcome:
        """Returns the row's one outcome; its `fields` go into the result line.

        request: made from the row by the prompt. Must not raise: an exception fails the row.
        """
        ...


@runtime_checkable
class Remembering(Protocol):
    """A Task whose outcomes depend on those that the output holds already."""

    def recall(self, results: Path, failures: Path) -> None:
        """Reads what earlier runs have left; `failures` may be missing.

        Called once before the first row, in a thread, when the output is locked and repaired.
        """
        ...


@dataclass(eq=False, repr=False)
class Answered:
    """Stub backend that returns an existing outcome, and keeps the first request."""

    _outcome: Outcome
    request: Request | None = None

    def load(self, now_s: float, request: Request | None = None) -> Load:
        return Load()

    async def send(self, request: Request, call: Call, sink: Sink | None = None) -> Outcome:
        self.request = self.request or request
        return self._outcome

    async def aclose(self) -> None:
        pass
