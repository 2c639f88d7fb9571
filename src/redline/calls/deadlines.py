"""Very many clocks on one timer of the event loop (a timing wheel, Varghese and Lauck 1987).

Most calls end long before their time is up, so setting and stopping a clock must cost nothing:
clocks that ring at about the same time share a bucket, and only buckets have a timer. Those that
ring soon share one of 50 ms; those that ring later share one of a second, which is looked at 16 s
before, when few of them still run. A clock that is stopped, or set to a later time, stays in its
bucket until that is looked at: the clock of a connection is set for each of its calls.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from collections.abc import Callable

from redline.clock import Clock

_FINE_S = 0.05
_COARSE_S = 1.0
_NEAR_S = 16.0


class Deadlines:
    """The clocks of one event loop. Each rings up to 50 ms late and never early."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._buckets: dict[float, set[Deadline]] = {}
        self._times_s: list[float] = []  # of the buckets, a heap
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = math.inf

    def alarm(self, ring: Callable[[], None]) -> Deadline:
        """A clock that calls `ring` when its time is up; it is stopped."""
        return Deadline(self, ring)

    def close(self) -> None:
        """No clock rings any more."""
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
                # Rounded down. A clock in a bucket before its time would be looked at for ever.
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
        self._timer, self._timer_s = None, math.inf
        now_s = self._clock.now_s()
        while self._times_s and self._times_s[0] <= now_s:
            bucket = self._buckets.pop(heapq.heappop(self._times_s))
            while bucket:
                deadline = bucket.pop()
                deadline.bucket, deadline.seen_at_s = None, math.inf
                if deadline.when_s <= now_s:
                    deadline.ring()
                elif deadline.when_s < math.inf:
                    self.place(deadline)
        while self._times_s and not self._buckets[self._times_s[0]]:
            del self._buckets[heapq.heappop(self._times_s)]
        if self._times_s and self._times_s[0] < self._timer_s:
            self._set_timer(self._times_s[0])


class Deadline:
    """One clock."""

    __slots__ = ("_deadlines", "bucket", "ring", "seen_at_s", "when_s")

    def __init__(self, deadlines: Deadlines, ring: Callable[[], None]) -> None:
        self._deadlines = deadlines
        self.ring = ring
        self.when_s = math.inf
        self.bucket: set[Deadline] | None = None
        self.seen_at_s = math.inf  # when its bucket is looked at; inf in none

    def ring_at(self, when_s: float) -> None:
        """Rings at `when_s` and not at the time set before; inf stops it."""
        self.when_s = when_s
        if when_s < self.seen_at_s:
            self.leave()
            self._deadlines.place(self)

    def stop(self) -> None:
        """Does not ring. It is kept by its bucket for a while all the same; see `leave`."""
        self.when_s = math.inf

    def leave(self) -> None:
        """Does not ring, and nothing keeps it any more."""
        if self.bucket is not None:
            self.bucket.discard(self)
            self.bucket, self.seen_at_s = None, math.inf
