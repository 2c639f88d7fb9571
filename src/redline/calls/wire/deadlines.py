"""Clocks that end what takes too long, each on a timer of the event loop.

Most calls end long before their time is up, so setting a clock must cost nothing: the clock of a
connection is set for each of its calls. A timer that is earlier than the clock stays as it is; when
it fires, it is set again, to the time for which the clock is set by then.

A clock that is due rings once the event loop has read what the sockets hold. If the loop itself was
late, because the process was stopped or the loop was blocked, the answer may have arrived and only
be unread, or wait in the server for room in the sockets. So the clocks of an endpoint share how
late their timers fired; after that, none of them rings for as long as the loop was late, at most
5 s.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from functools import partial
from typing import Any, Self

from redline.clock import Clock

# uvloop's timers count whole milliseconds, and any timer may fire a little early: one that was set
# to the remaining time would fire again and again.
_SHORTEST_TIMER_S = 0.001
# An event loop that is merely busy is not late.
_LATE_S = 0.05
# A few MB in a socket are read in milliseconds; the bytes that found no room there soon follow.
_MOST_GRACE_S = 5.0


class Stops:
    """How late the event loop was, by the timers of the clocks that share this object.

    now_s: the time of these clocks. grace_until_s: until then, each gets more time, once.
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

    If the event loop is late itself, it rings later, by at most 5 s. when_s: the monotonic time at
    which it rings; inf for never.
    """

    __slots__ = ("_has_grace", "_ring", "_stops", "_timer", "_timer_s", "when_s")

    def __init__(self, stops: Stops, ring: Callable[[], None]) -> None:
        self._stops = stops
        self._ring = ring
        self._has_grace = False  # it has been given more time because the event loop was late
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = math.inf  # when the timer fires; inf without one
        self.when_s = math.inf

    def ring_at(self, when_s: float) -> None:
        """Rings at `when_s` instead of the time set before; inf for never."""
        self.when_s = when_s
        self._has_grace = False
        if when_s < self._timer_s:
            self._set_timer()

    def leave(self) -> None:
        """Stops the clock, and its timer, so that it can be freed."""
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
        # After one turn, the loop polls its sockets; after the next one, it has read them.
        loop.call_soon(loop.call_soon, self._look)

    def _look(self) -> None:
        """Rings if it is due and has had its grace."""
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

    It then raises TimeoutError. in_s: inf for no time limit, until `ring_at` sets one.
    """

    def __init__(self, stops: Stops, in_s: float = math.inf) -> None:
        self._timer = timer = asyncio.timeout(None)
        # No bound method: a reference cycle would keep this object until garbage collection.
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
        """Rings at `when_s` instead of the time set before; inf for never."""
        if not self._timer.expired():
            self._deadline.ring_at(when_s)


def _expire(timer: asyncio.Timeout) -> None:
    timer.reschedule(asyncio.get_running_loop().time())
