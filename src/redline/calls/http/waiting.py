"""Records the waits of attempts; an attempt may be withdrawn until it is written."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

# The times at which an attempt began to wait, and got its slot, its place ahead, its connection and
# its grant; None for each that it did not wait for.
Marks = tuple[float | None, float | None, float | None, float | None, float | None]
NO_MARKS: Marks = (None, None, None, None, None)


class Wait(msgspec.Struct):
    """The wait of an attempt: when it began, and when each part of it was over.

    task: the waiting task. cancelling: the task's pending cancellations when the wait began. The
    times are those of `Attempt`.
    """

    task: asyncio.Task[Any]
    cancelling: int
    eligible_s: float
    slot_s: float | None = None
    ahead_s: float | None = None
    connected_s: float | None = None
    granted_s: float | None = None
    is_withdrawn: bool = False

    @property
    def marks(self) -> Marks:
        """The five times, in the order of the fields of `Attempt`."""
        return (self.eligible_s, self.slot_s, self.ahead_s, self.connected_s, self.granted_s)

    def withdraw(self) -> None:
        """Ends the attempt by cancelling its task, which releases everything that it holds.

        Cancels only once, since the task undoes only one cancellation.
        """
        if not self.is_withdrawn:
            self.is_withdrawn = True
            self.task.cancel()

    def take_cancellation_back(self) -> bool:
        """Undoes the cancellation by `withdraw`; False if it was not the only one."""
        return self.is_withdrawn and self.task.uncancel() <= self.cancelling


def wait_of_this_task(now_s: float) -> Wait:
    """Returns a new wait of the current task."""
    task = asyncio.current_task()
    assert task is not None
    return Wait(task, task.cancelling(), now_s)
