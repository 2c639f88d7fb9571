"""Counts usage against tenants' limits, shared by the workers of a gateway.

part             kept as                                  if a worker is lost
calls in flight  a count for each worker                  its calls are no longer in flight
a window         one ring of records for all workers      its usage counts until the window passes
money            amounts that each worker has spent and   both amounts count as spent
                 reserved today
"""

from __future__ import annotations

import math
from functools import partial

from redline.limits import Rate
from redline.limits.shared import SharedFlights
from redline.process import SharedTable
from redline.serve.keys.window import EXACT, GiveBack

# EXACT records, then one for each 1/EXACT of the window; further amounts share the last record.
_RECORDS = 2 * EXACT + 8
_HEAD, _TAIL, _USED, _IS_CHANGING, _FIRST = 0, 1, 2, 3, 4
_FIRST_S, _LAST_S, _LEFT, _RECORD_WORDS = 0, 1, 2, 3
_DAY, _OTHERS, _KEPT, _MONEY_WORDS = 0, 1, 2, 3


class SharedWindow:
    """A SlidingWindow in shared memory; callers must hold the lock of the table.

    The records form a ring and are numbered from 0 upwards; those from head to tail count. `used`
    is their sum, which is computed again if a worker was killed while changing it.
    """

    def __init__(self, table: SharedTable, name: str, rate: Rate) -> None:
        self._words, self._reals = table.words, table.reals
        self._base = table.region(name, _FIRST + _RECORDS * _RECORD_WORDS)
        self.reshape(rate)

    def reshape(self, rate: Rate) -> None:
        self.rate = rate
        self._count = rate.count
        self._window_s = rate.window_s
        self._grain_s = rate.window_s / EXACT

    def has_room(self, amount: int, now_s: float) -> bool:
        self._sweep(now_s)
        return self._words[self._base + _USED] + amount <= self._count

    def wait_s(self, amount: int, now_s: float) -> float:
        if self.has_room(amount, now_s):
            return 0.0
        if amount > self._count:
            return math.inf
        words, reals, base = self._words, self._reals, self._base
        excess = words[base + _USED] + amount - self._count
        last_s = now_s
        for number in range(words[base + _HEAD], words[base + _TAIL]):
            at = self._at(number)
            excess -= words[at + _LEFT]
            last_s = reals[at + _LAST_S]
            if excess <= 0:
                break
        return last_s + self._window_s - now_s

    def take(self, amount: int, now_s: float) -> GiveBack:
        self._sweep(now_s)
        return partial(self._give_back, self._add(amount, now_s, now_s))

    def take_up(self, older: SharedWindow) -> None:
        """Takes over the counts of an older window; none of them can be given back here.

        Does nothing if this window has ever had a record: another worker has taken them over.
        """
        if self._words[self._base + _TAIL]:
            return
        words, reals, base = older._words, older._reals, older._base
        for number in range(words[base + _HEAD], words[base + _TAIL]):
            at = older._at(number)
            self._add(words[at + _LEFT], reals[at + _FIRST_S], reals[at + _LAST_S])

    def _give_back(self, number: int, amount: int) -> None:
        """Gives back an unused amount of a record that is still in the window."""
        words, base = self._words, self._base
        self._mend()
        if words[base + _HEAD] <= number:
            at = self._at(number)
            words[base + _IS_CHANGING] = 1
            amount = min(amount, words[at + _LEFT])
            words[at + _LEFT] -= amount
            words[base + _USED] -= amount
            words[base + _IS_CHANGING] = 0

    def _add(self, amount: int, first_s: float, last_s: float) -> int:
        """Adds an amount; returns the number of the record that counts it."""
        words, reals, base = self._words, self._reals, self._base
        head, tail = words[base + _HEAD], words[base + _TAIL]
        length, number = tail - head, tail
        words[base + _IS_CHANGING] = 1
        if length:
            # Another worker may have read a later time, but taken the lock earlier.
            at = self._at(tail - 1)
            last_s = max(last_s, reals[at + _LAST_S])
            if length >= _RECORDS or (
                length >= EXACT and last_s - reals[at + _FIRST_S] < self._grain_s
            ):
                number = tail - 1
                reals[at + _LAST_S] = last_s
                words[at + _LEFT] += amount
        if number == tail:
            at = self._at(tail)
            reals[at + _FIRST_S], reals[at + _LAST_S] = first_s, last_s
            words[at + _LEFT] = amount
            words[base + _TAIL] = tail + 1
        words[base + _USED] += amount
        words[base + _IS_CHANGING] = 0
        return number

    def _sweep(self, now_s: float) -> None:
        """Removes records that have left the window."""
        self._mend()
        words, reals, base = self._words, self._reals, self._base
        head, tail = words[base + _HEAD], words[base + _TAIL]
        horizon_s, used, number = now_s - self._window_s, words[base + _USED], head
        while number < tail:
            at = self._at(number)
            if reals[at + _LAST_S] > horizon_s:
                break
            used -= words[at + _LEFT]
            number += 1
        if number > head:
            words[base + _IS_CHANGING] = 1
            words[base + _HEAD], words[base + _USED] = number, used
            words[base + _IS_CHANGING] = 0

    def _mend(self) -> None:
        """Computes the sum again if a worker was killed while changing it."""
        words, base = self._words, self._base
        if words[base + _IS_CHANGING]:
            numbers = range(words[base + _HEAD], words[base + _TAIL])
            words[base + _USED] = sum(words[self._at(number) + _LEFT] for number in numbers)
            words[base + _IS_CHANGING] = 0

    def _at(self, number: int) -> int:
        return self._base + _FIRST + number % _RECORDS * _RECORD_WORDS


class SharedMoney:
    """A DayMoney shared by all workers; each worker writes its own two amounts."""

    def __init__(self, table: SharedTable, name: str, worker: int) -> None:
        self._table = table
        self._words = table.words
        self._base = table.region(f"{name}/day", _MONEY_WORDS)
        self._spent = table.amounts(f"{name}/spent")
        # The reservations of a lost worker are not given back.
        self._reserved = table.amounts(f"{name}/reserved")
        self._width = 1 + table.processes
        self._own = 1 + worker

    @property
    def day(self) -> int:
        return self._words[self._base + _DAY]

    @property
    def spent(self) -> int:
        return sum(self._words[self._spent : self._spent + self._width])

    @property
    def reserved(self) -> int:
        return sum(self._words[self._reserved : self._reserved + self._width])

    @property
    def others(self) -> int:
        return self._words[self._base + _OTHERS]

    @property
    def committed(self) -> int:
        return self.spent + self.reserved + self.others

    def spent_on(self, day: int) -> int:
        return self.spent + self.others if day <= self.day else 0

    def begin(self, day: int) -> None:
        with self._table:
            if day == self.day:
                return
            words, base = self._words, self._base
            for first in (self._spent, self._reserved):
                for at in range(first, first + self._width):
                    words[at] = 0
            words[base + _OTHERS] = words[base + _KEPT] = 0
            words[base + _DAY] = day

    def reserve(self, amount: int) -> None:
        self._words[self._reserved + self._own] += amount

    def settle(self, day: int, reserved: int, actual: int) -> None:
        if day == self.day:
            # In this order, a worker that is killed in between counts too much, not too little.
            self._words[self._spent + self._own] += actual
            self._words[self._reserved + self._own] -= reserved

    def unkept(self) -> int:
        return self.spent + self.reserved - self._words[self._base + _KEPT]

    def kept(self, day: int, told: int, total: int) -> None:
        words, base = self._words, self._base
        others = max(0, total - words[base + _KEPT] - told)
        if day != self.day or (not told and others == words[base + _OTHERS]):
            return
        with self._table:
            if day == self.day:
                words[base + _KEPT] += told
                words[base + _OTHERS] = others


class SharedStore:
    """Keeps the counts of all workers in shared memory. worker: this worker's number, from 0."""

    def __init__(self, table: SharedTable, worker: int) -> None:
        self._table = self.alone = table
        self._worker = worker

    def flights(self, tenant: str) -> SharedFlights:
        return SharedFlights(self._table, f"tenant/{tenant}/flights", self._worker)

    def money(self, tenant: str) -> SharedMoney:
        return SharedMoney(self._table, f"tenant/{tenant}/money", self._worker)

    def window(self, tenant: str, kind: str, rate: Rate, older: object) -> SharedWindow:
        """Returns a window. kind: `requests` or `tokens`.

        older: the window whose counts the new one takes over; ignored unless it is a SharedWindow.
        """
        name = f"tenant/{tenant}/{kind}/{rate.window_s:.15g}"
        with self._table:
            window = SharedWindow(self._table, name, rate)
            if isinstance(older, SharedWindow):
                window.take_up(older)
        return window
