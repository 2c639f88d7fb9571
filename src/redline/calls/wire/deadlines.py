"""Many clocks on one timer of the event loop (a timing wheel, Varghese and Lauck 1987).

Most calls end long before their time is up, so setting and stopping a clock must cost nothing:
clocks that ring at about the same time share a bucket, and only buckets have a timer. Clocks that
ring soon share a bucket of 50 ms; those that ring later share one of a second, which is checked
16 s early, when few of them still run. A clock that is stopped, or set to a later time, stays in
its bucket until the bucket is checked: the clock of a connection is set for each of its calls.

A clock that is due rings once the event loop has read what the sockets hold. If the loop itself was
late, because the process was stopped or the loop was blocked, the clock is extended by that time,
at most 5 s: the answer may have arrived, and only be unread.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

from redline.clock import Clock

_FINE_S = 0.05
_COARSE_S = 1.0
_NEAR_S = 16.0
# A few MB in a socket are read in milliseconds; what the server could not send yet comes soon.
_MOST_GRACE_S = 5.0


class Deadlines:
    """The clocks of one event loop. Each rings up to 50 ms late and never early.

    If the event loop is late itself, a clock rings later by as much, at most 5 s.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._buckets: dict[float, set[Deadline]] = {}
        self._times_s: list[float] = []  # of the buckets, a heap
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = math.inf

    def alarm(self, ring: Callable[[], None]) -> Deadline:
        """Returns a stopped clock that calls `ring` when its time is up."""
        return Deadline(self, ring)

    @asynccontextmanager
    async def timeout(self, in_s: float = math.inf) -> AsyncIterator[TaskAlarm]:
        """Cancels the block after `in_s` seconds, like asyncio.timeout, by one of these clocks."""
        async with asyncio.timeout(None) as timer:
            alarm = TaskAlarm(timer, self)
            alarm.ring_at(self._clock.now_s() + in_s)
            try:
                yield alarm
            finally:
                alarm.leave()

    def close(self) -> None:
        """Stops all clocks."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_s = None, math.inf
        for bucket in self._buckets.values():
            for deadline in list(bucket):
                deadline.leave()
        self._buckets.clear()
        self._times_s.clear()

    def place(self, deadline: Deadline) -> None:
        """Puts a clock into the bucket of its time."""
        when_s = deadline.when_s
        if when_s - self._clock.now_s() > _NEAR_S + _COARSE_S:
            at_s = math.floor(when_s / _COARSE_S) * _COARSE_S - _NEAR_S
        else:
            at_s = math.ceil(when_s / _FINE_S) * _FINE_S
            if at_s < when_s:
                # Rounded down. A clock in a bucket before its time would be checked for ever.
                at_s += _FINE_S
        bucket = self._buckets.get(at_s)
        if bucket is None:
            bucket = self._buckets[at_s] = set()
            heapq.heappush(self._times_s, at_s)
            if at_s < self._timer_s:
                self._set_timer(at_s)
        bucket.add(deadline)
        deadline.bucket, deadline.seen_at_s = bucket, at_s

    def _set_timer(self, at_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        in_s = max(0.0, at_s - self._clock.now_s())
        self._timer = asyncio.get_running_loop().call_later(in_s, self._ring)
        self._timer_s = at_s

    def _ring(self) -> None:
        late_s = self._clock.now_s() - self._timer_s
        self._timer, self._timer_s = None, math.inf
        loop = asyncio.get_running_loop()
        # After one turn, the loop polls its sockets; after the next one, it has read them.
        loop.call_soon(loop.call_soon, self._look, late_s)

    def _look(self, late_s: float) -> None:
        """Rings the clocks that are due. late_s: by how much the event loop is late."""
        now_s = self._clock.now_s()
        while self._times_s and self._times_s[0] <= now_s:
            bucket = self._buckets.pop(heapq.heappop(self._times_s))
            while bucket:
                deadline = bucket.pop()
                deadline.bucket, deadline.seen_at_s = None, math.inf
                if deadline.when_s <= now_s:
                    self._judge(deadline, now_s, late_s)
                elif deadline.when_s < math.inf:
                    self.place(deadline)
        while self._times_s and not self._buckets[self._times_s[0]]:
            del self._buckets[heapq.heappop(self._times_s)]
        if self._times_s and self._times_s[0] < self._timer_s:
            self._set_timer(self._times_s[0])

    def _judge(self, deadline: Deadline, now_s: float, late_s: float) -> None:
        """Rings a clock that is due, or gives it more time because the event loop is late."""
        if late_s <= _FINE_S or deadline.has_grace:
            deadline.ring()
            return
        deadline.has_grace = True
        deadline.when_s = now_s + min(late_s, _MOST_GRACE_S)
        self.place(deadline)


class Deadline:
    """One clock. has_grace: it has been given more time because the event loop was late."""

    __slots__ = ("_deadlines", "bucket", "has_grace", "ring", "seen_at_s", "when_s")

    def __init__(self, deadlines: Deadlines, ring: Callable[[], None]) -> None:
        self._deadlines = deadlines
        self.ring = ring
        self.has_grace = False
        self.when_s = math.inf
        self.bucket: set[Deadline] | None = None
        self.seen_at_s = math.inf  # when its bucket is checked; inf without one

    def ring_at(self, when_s: float) -> None:
        """Rings at `when_s` and not at the time set before; inf stops it."""
        self.when_s = when_s
        self.has_grace = False
        if when_s < self.seen_at_s:
            self.leave()
            self._deadlines.place(self)

    def stop(self) -> None:
        """Stops the clock. Its bucket keeps it for a while; see `leave`."""
        self.when_s = math.inf

    def leave(self) -> None:
        """Removes the clock from its bucket, so that it does not ring and can be freed."""
        if self.bucket is not None:
            self.bucket.discard(self)
            self.bucket, self.seen_at_s = None, math.inf


class TaskAlarm:
    """A clock that cancels the task inside `timer`, as asyncio.timeout does."""

    def __init__(self, timer: asyncio.Timeout, deadlines: Deadlines) -> None:
        self._timer = timer
        # No bound method: a reference cycle would keep this object until garbage collection.
        self._deadline = deadlines.alarm(partial(_expire, timer))

    @property
    def has_rung(self) -> bool:
        """Whether the task has been cancelled."""
        return self._timer.expired()

    def ring_at(self, when_s: float) -> None:
        """Rings at `when_s` and not at the time set before; inf stops it."""
        if not self._timer.expired():
            self._deadline.ring_at(when_s)

    def leave(self) -> None:
        """Stops the alarm for good."""
        self._deadline.stop()
        self._deadline.leave()


def _expire(timer: asyncio.Timeout) -> None:
    timer.reschedule(asyncio.get_running_loop().time())
