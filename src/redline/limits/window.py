"""One rate limit: when the next send may go, decided from the sends so far.

Both rules hold (docs/architecture.md, Limits):
  hard  what was sent in any window + guard never passes the count, on real send stamps;
  soft  sends are paced at T = (window + guard) / count with a burst of b (GCRA, ITU-T I.371).

  profile          b   hard rule   T
  any, counter     1   yes         (W + g) / N
  fixed, moving    N   yes         (W + g) / N
  bucket           N (1 - g/W)     no    W / N   the guard is taken from the capacity

A booking goes through these states:
  booked -> sent -> expired     the normal way; settled at any time after `sent`
  booked -> released            it was never written; everything is given back
"""

from __future__ import annotations

import math
from collections import deque

from redline.limits.rate import Rate

# Sums of floats differ in the last bits; a wait below this is none.
_EPSILON_S = 1e-9


class Booking:
    """An amount taken from one window, and where it stands."""

    __slots__ = ("amount", "booked_s", "is_counted", "is_open", "sent_s")

    def __init__(self, amount: int, booked_s: float) -> None:
        self.amount = amount
        self.booked_s = booked_s
        self.is_open = True  # booked: neither sent nor released
        self.is_counted = False  # sent, and not yet expired from the hard rule's window
        self.sent_s = 0.0


class Window:
    """One `Rate` under one profile. Synchronous; the caller brings the time."""

    def __init__(self, rate: Rate, *, profile: str = "any", guard_s: float = 0.05) -> None:
        if profile == "bucket" and _spare(rate, guard_s) < 1:
            # Too small to keep the guard free in its capacity; `any` keeps it in time instead.
            profile = "any"
        self.rate = rate
        self.guard_s = guard_s
        self._is_hard = profile != "bucket"
        self._span_s = rate.window_s + (guard_s if self._is_hard else 0.0)
        self._unit_s = self._span_s / rate.count
        self._burst = _burst(rate, profile, guard_s)
        # With a burst of 1 the lateness of a timer would be lost at every send, so the pace may
        # catch up by as much as the guard, which covers the event loop's lag.
        self._catch_up_s = guard_s if self._burst == 1 else 0.0
        self._full_at_s: float | None = None
        self._sent: deque[Booking] = deque()
        self._sent_amount = 0
        self._booked_amount = 0

    def wait_s(self, amount: int, now_s: float) -> float:
        """Seconds until `amount` may be sent; 0 now, inf until a booked one is sent or released.

        amount: 1..rate.count; more than that is never granted and must be refused before.
        """
        return max(self._paced_wait_s(amount, now_s), self._hard_wait_s(amount, now_s))

    def book(self, amount: int, now_s: float, late_s: float = 0.0) -> Booking:
        """Takes `amount`; call only when `wait_s` is 0.

        late_s: how long the caller was kept past its time, by a timer that rang late. Time in which
        nobody asked is not caught up: the next two sends would follow too closely.
        """
        from_s = now_s - min(late_s, self._catch_up_s)
        full_at_s = from_s if self._full_at_s is None else max(self._full_at_s, from_s)
        self._full_at_s = full_at_s + amount * self._unit_s
        self._booked_amount += amount
        return Booking(amount, now_s)

    def sent(self, booking: Booking, now_s: float) -> None:
        """The booking was written at `now_s`, from when its window counts."""
        if not booking.is_open:
            return
        booking.is_open = False
        booking.sent_s = now_s
        self._booked_amount -= booking.amount
        if self._is_hard:
            booking.is_counted = True
            self._sent.append(booking)
            self._sent_amount += booking.amount

    def release(self, booking: Booking, now_s: float) -> None:
        """Gives back a booking that was never written; one that was sent stays.

        The pace gets back only what has not refilled since: time that has passed cannot be sent in.
        """
        if booking.is_open:
            booking.is_open = False
            self._booked_amount -= booking.amount
            held_s = now_s - booking.booked_s
            self._shift(-max(0.0, booking.amount * self._unit_s - held_s))

    def settle(self, booking: Booking, used: int) -> None:
        """Replaces the estimate of a sent booking by `used`, at least 0; ignores an open one."""
        if booking.is_open:
            return
        # More than a whole window cannot be owed: a server that counts wrongly would stop the run.
        used = min(used, max(self.rate.count, booking.amount))
        difference = used - booking.amount
        booking.amount = used
        self._shift(difference * self._unit_s)
        if booking.is_counted:
            self._sent_amount += difference

    def _shift(self, by_s: float) -> None:
        if self._full_at_s is not None:
            self._full_at_s += by_s

    def _paced_wait_s(self, amount: int, now_s: float) -> float:
        if self._full_at_s is None:
            return 0.0
        at_s = self._full_at_s - max(0, self._burst - amount) * self._unit_s
        wait_s = at_s - now_s
        return wait_s if wait_s > _EPSILON_S else 0.0

    def _hard_wait_s(self, amount: int, now_s: float) -> float:
        if not self._is_hard:
            return 0.0
        self._expire(now_s)
        excess = self._sent_amount + self._booked_amount + amount - self.rate.count
        if excess <= 0:
            return 0.0
        for booking in self._sent:
            excess -= booking.amount
            if excess <= 0:
                return max(booking.sent_s + self._span_s - now_s, 0.0)
        return math.inf

    def _expire(self, now_s: float) -> None:
        horizon_s = now_s - self._span_s + _EPSILON_S
        while self._sent and self._sent[0].sent_s <= horizon_s:
            booking = self._sent.popleft()
            booking.is_counted = False
            self._sent_amount -= booking.amount


def _burst(rate: Rate, profile: str, guard_s: float) -> int:
    if profile in ("fixed", "moving"):
        return rate.count
    if profile == "bucket":
        return _spare(rate, guard_s)
    return 1


def _spare(rate: Rate, guard_s: float) -> int:
    return math.floor(rate.count * (1 - guard_s / rate.window_s))
