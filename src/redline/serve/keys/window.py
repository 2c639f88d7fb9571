"""Limits admissions to a count in any window; calls are admitted or refused, never delayed.

Unlike `redline.limits.rule.Window`, which paces redline's own requests so that a server accepts all
of them, this window is on the server's side: it admits a burst up to the count at once.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable

import msgspec

from redline.limits import Rate

# Up to this many records are exact. Beyond that, to bound memory, amounts that are admitted within
# 1/EXACT of a window share a record with the time of the last one, so they count slightly longer.
EXACT = 256

# Gives back the unused part of an admitted amount.
GiveBack = Callable[[int], None]


class Admitted(msgspec.Struct, eq=False):
    """The amount admitted from `first_s` to `last_s`. left: the part that still counts."""

    _window: SlidingWindow
    first_s: float
    last_s: float
    left: int

    def give_back(self, amount: int) -> None:
        """Gives back an amount that was not used."""
        amount = min(amount, self.left)
        self.left -= amount
        self._window.used -= amount


class SlidingWindow:
    """A window for one rate; `now_s` never decreases.

    used: the amount that counted when a method was last called.
    """

    __slots__ = ("_count", "_grain_s", "_records", "_window_s", "rate", "used")

    def __init__(self, rate: Rate, records: Iterable[Admitted] = ()) -> None:
        self._records: deque[Admitted] = deque()
        self.used = 0
        self.reshape(rate)
        for record in records:
            self.take(record.left, record.last_s)
            self._records[-1].first_s = record.first_s

    def reshape(self, rate: Rate) -> None:
        """Replaces the rate. The window's length may change only while the window is empty."""
        self.rate = rate
        self._count = rate.count
        self._window_s = rate.window_s
        self._grain_s = rate.window_s / EXACT

    @property
    def records(self) -> tuple[Admitted, ...]:
        return tuple(self._records)

    def has_room(self, amount: int, now_s: float) -> bool:
        """Whether `amount` may be admitted now."""
        records = self._records
        horizon_s = now_s - self._window_s
        while records and records[0].last_s <= horizon_s:
            record = records.popleft()
            self.used -= record.left
            # If this amount is given back later, it must not count twice.
            record.left = 0
        return self.used + amount <= self._count

    def wait_s(self, amount: int, now_s: float) -> float:
        """Returns the seconds until `amount` fits, if nothing else is admitted.

        Returns inf if `amount` exceeds the rate's count.
        """
        if self.has_room(amount, now_s):
            return 0.0
        if amount > self._count:
            return math.inf
        excess = self.used + amount - self._count
        last_s = now_s
        for record in self._records:
            excess -= record.left
            last_s = record.last_s
            if excess <= 0:
                break
        return last_s + self._window_s - now_s

    def take(self, amount: int, now_s: float) -> GiveBack:
        """Admits `amount`, whether there is room or not."""
        records = self._records
        self.used += amount
        if len(records) >= EXACT:
            last = records[-1]
            if now_s - last.first_s < self._grain_s:
                last.last_s = now_s
                last.left += amount
                return last.give_back
        record = Admitted(self, now_s, now_s, amount)
        records.append(record)
        return record.give_back
