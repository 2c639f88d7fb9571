"""The timer of a limiter on an event loop."""

from __future__ import annotations

import asyncio
import math
from abc import ABC, abstractmethod

# uvloop's timers count whole milliseconds: a shorter one would spin.
_SHORTEST_TIMER_S = 0.001


class Alarmed(ABC):
    """A limiter with one timer, which is set again and again."""

    _timer: asyncio.TimerHandle | None = None
    _due_s = math.inf  # when the timer should ring; inf without one
    _parked_until_s = -math.inf

    @property
    def parked_until_s(self) -> float:
        """No grants are given before this time (monotonic); -inf if it was never parked."""
        return self._parked_until_s

    @property
    def next_s(self) -> float:
        """When the next grant may be given (monotonic) to a present waiter; -inf if none waits."""
        due_s = -math.inf if self._timer is None else self._due_s
        return max(self._parked_until_s, due_s)

    @abstractmethod
    def _rang(self) -> None:
        """The timer has rung."""

    def _ring_at(self, due_s: float, now_s: float) -> None:
        """Sets the timer to `due_s`; inf for none."""
        if self._timer is not None:
            if due_s == self._due_s:
                return
            self._timer.cancel()
            self._timer = None
        self._due_s = due_s
        if due_s < math.inf:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(due_s - now_s, _SHORTEST_TIMER_S), self._rang)
