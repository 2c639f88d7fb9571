"""Enforces time limits, with clocks that each have a timer of the event loop.

A connection's clock is set for each call, but most calls end long before their time is up, so
setting a clock must cost next to nothing. Setting a clock to a later time leaves its timer as it
is; if the timer then fires before the clock is due, it is set again, to the time of the clock.

A clock that is due rings once the event loop has read everything in the sockets. If the loop itself
was late, because the process was stopped or the loop was blocked, the response may have arrived
without being read, or the server may be waiting for room in the sockets. So the clocks of an
endpoint share how late their timers fired; after a late timer, no clock rings for as long as the
loop was late, at most 5 s.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from functools import partial
from typing import Any, Self

from redline.clock import Clock

# uvloop's timers count whole milliseconds, and any timer may fire a little early: a timer that was
# set to the remaining time would fire again and again.
_SHORTEST_TIMER_S = 0.001
# An event loop that is merely busy is not late.
_LATE_S = 0.05
# A few MB in a socket are read in milliseconds, and bytes that had no room in it follow soon.
_MOST_GRACE_S = 5.0


class Stops:
    """Records how late the event loop was, for the clocks that share this object.

    now_s: returns the monotonic time. grace_until_s: a clock that is due before this time gets more
    time, until then, but only once.
    """

    __slots__ = ("grace_until_s", "now_s")

    def __init__(self, clock: Clock) -> None:
        self.now_s = clock.now_s
        self.grace_until_s = -math.inf

    def timer_came(self, due_s: float) -> None:
        """Records that a timer that was due at `due_s` has fired."""
        now_s = self.now_s()
        late_s = now_s - due_s
        if late_s > _LATE_S:
            self.grace_until_s = max(self.grace_until_s, now_s + min(late_s, _MOST_GRACE_S))


class Deadline:
    """A clock that calls `ring` when its time is up, at most about 1 ms late and never early.

    If the event loop itself was late, the clock may ring up to 5 s after the loop continues.
    when_s: the monotonic time at which the clock is due; inf for never.
    """

    __slots__ = ("_has_grace", "_ring", "_stops", "_timer", "_timer_s", "when_s")

    def __init__(self, stops: Stops, ring: Callable[[], None]) -> None:
        self._stops = stops
        self._ring = ring
        self._has_grace = False  # whether it got more time because the event loop was late
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = math.inf  # when the timer fires; inf without one
        self.when_s = math.inf

    def ring_at(self, when_s: float) -> None:
        """Sets the clock to ring at `when_s` instead of the time set before; inf for never."""
        self.when_s = when_s
        self._has_grace = False
        if when_s < self._timer_s:
            self._set_timer()

    def leave(self) -> None:
        """Stops the clock and cancels its timer, which would keep the clock from being freed."""
        self.when_s = self._timer_s = math.inf
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        now_s = self._stops.now_s()
        self._timer_s = max(self.when_s, now_s + _SHORTEST_TIMER_S)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._timer_s - now_s, self._came)

    def _came(self) -> None:
        self._stops.timer_came(self._timer_s)
        loop = asyncio.get_running_loop()
        # After one turn, the loop polls its sockets; after another turn, it has read them.
        loop.call_soon(loop.call_soon, self._look)

    def _look(self) -> None:
        """Rings if the time is up and no more time is granted; otherwise sets the timer again."""
        self._timer, self._timer_s = None, math.inf
        now_s, grace_until_s = self._stops.now_s(), self._stops.grace_until_s
        if self.when_s <= now_s:
            if self._has_grace or grace_until_s <= now_s:
                self.when_s = math.inf
                self._ring()
                return
            self._has_grace = True
            self.when_s = grace_until_s
        if self.when_s < math.inf:
            self._set_timer()


class TaskTimeout:
    """Cancels the block of `async with` after `in_s` seconds: asyncio.timeout with a Deadline.

    The block then raises TimeoutError. in_s: inf for no time limit, until `ring_at` sets one.
    """

    def __init__(self, stops: Stops, in_s: float = math.inf) -> None:
        self._timer = timer = asyncio.timeout(None)
        # Not a bound method: a reference cycle would keep this object until garbage collection.
        self._deadline = Deadline(stops, partial(_expire, timer))
        self._when_s = stops.now_s() + in_s

    async def __aenter__(self) -> Self:
        await self._timer.__aenter__()
        self._deadline.ring_at(self._when_s)
        return self

    async def __aexit__(self, *error: Any) -> None:
        self._deadline.leave()
        await self._timer.__aexit__(*error)

    @property
    def has_rung(self) -> bool:
        """Whether the task has been cancelled."""
        return self._timer.expired()

    def ring_at(self, when_s: float) -> None:
        """Sets the time limit to `when_s` instead of the one set before; inf for none."""
        if not self._timer.expired():
            self._deadline.ring_at(when_s)


def _expire(timer: asyncio.Timeout) -> None:
    timer.reschedule(asyncio.get_running_loop().time())
