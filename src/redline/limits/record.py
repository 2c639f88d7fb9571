"""What a window remembers of what was sent."""

from __future__ import annotations

import math
from collections import deque
from typing import NamedTuple, Protocol

from redline.limits.cost import Spread

# Margins are this many standard deviations: about one in 30,000 for a sum of many.
_DEVIATIONS = 4.0
# A grant is written in the same turn of the event loop, unless its connection has gone meanwhile.
LATE_S = 0.001
# Amounts that are not settled by then count as they were booked: it bounds the log.
_MOST_ENTRIES = 4096


class Doubt:
    """How far the sum of several amounts may come to lie above the sum of their estimates."""

    __slots__ = ("most", "third", "variance")

    def __init__(self) -> None:
        self.variance = 0.0
        self.third = 0.0
        self.most = 0.0

    def add(self, spread: Spread, sign: int = 1) -> None:
        """One amount more, or one less with sign -1."""
        self.variance += sign * spread.variance
        self.third += sign * spread.third
        self.most += sign * spread.most

    def subtract(self, other: Doubt) -> None:
        """What `other` holds of it has gone."""
        self.variance -= other.variance
        self.third -= other.third
        self.most -= other.most

    def margin(self, spread: Spread) -> float:
        """What to keep free for these amounts and one more.

        z standard deviations of the sum, corrected for its skewness (Cornish and Fisher 1938, the
        first term): a single long-tailed amount passes its mean by far more than z deviations.
        """
        variance = self.variance + spread.variance
        # Below a thousandth of a token stand only the last bits of sums.
        if variance <= 1e-6:
            return 0.0
        third = self.third + spread.third
        z = _DEVIATIONS
        margin = z * math.sqrt(variance) + (z * z - 1) / 6 * third / variance
        return max(0.0, min(margin, self.most + spread.most))


class Record:
    """What was sent from `first_s` to `sent_s`.

    It leaves the hard rule's window `late_s` after the window's end.

    unproven: how many of its sends have no reply yet; they count as late as any may be. doubt:
    about the amounts of those whose usage is not known yet, None where all are certain.
    """

    # Written to at each send: the fields of a msgspec.Struct take four times as long to set.
    __slots__ = ("amount", "doubt", "first_s", "late_s", "number", "sent_s", "unproven")

    def __init__(self, number: int, now_s: float) -> None:
        self.number = number
        self.first_s = now_s
        self.sent_s = now_s
        self.amount = 0
        self.unproven = 0
        self.late_s = 0.0
        self.doubt: Doubt | None = None


class Keeper(Protocol):
    """Where a window's sends outlive the process."""

    def keep(self, record: Record) -> None: ...
    def keep_pace(self, full_at_s: float) -> None: ...


class Alone(NamedTuple):
    """What a server would have counted of one limit, had nobody else used it.

    in_window: sent within the last window. in_bucket: missing from a bucket that refills steadily.
    others: what had been found to be used by others until then; both include it.
    """

    in_window: int
    in_bucket: float
    others: int


class Entry:
    """One amount that a bucket gave, and whether it can still change."""

    __slots__ = ("amount", "at_s", "is_final")

    def __init__(self, at_s: float, amount: int) -> None:
        self.at_s = at_s
        self.amount = amount
        self.is_final = False


class BucketLevel:
    """When a bucket is full again, as if each amount had been known when it was taken.

    A refund must not credit what the bucket could not have held: it may have been full meanwhile.
    So the level is folded anew from the oldest amount that can still change.
    """

    def __init__(self) -> None:
        self._base_s: float | None = None
        self._entries: deque[Entry] = deque()
        self._known: tuple[float, float | None] | None = None  # the last answer, and its unit

    def take(self, at_s: float, amount: int) -> Entry:
        """`amount` was taken at `at_s`."""
        entry = Entry(at_s, amount)
        self._entries.append(entry)
        if self._known is not None:
            unit_s, full_at_s = self._known
            self._known = (unit_s, _after(full_at_s, entry, unit_s))
        return entry

    def left(self, entry: Entry, at_s: float) -> None:
        """It was written at `at_s`, from when the server's bucket has given it."""
        if at_s - entry.at_s > LATE_S:
            entry.at_s = at_s
            self._known = None

    def amend(self, entry: Entry, amount: int) -> None:
        """It was `amount`, and will not change any more."""
        entry.is_final = True
        if entry.amount != amount:
            entry.amount = amount
            self._known = None

    def full_at_s(self, unit_s: float) -> float | None:
        """When it is full again, at unit_s for each unit; None before the first amount."""
        entries = self._entries
        while entries and (entries[0].is_final or len(entries) > _MOST_ENTRIES):
            self._base_s = _after(self._base_s, entries.popleft(), unit_s)
        if self._known is not None and self._known[0] == unit_s:
            return self._known[1]
        full_at_s = self._base_s
        for entry in entries:
            full_at_s = _after(full_at_s, entry, unit_s)
        self._known = (unit_s, full_at_s)
        return full_at_s

    def cap(self, at_s: float, unit_s: float) -> None:
        """It is full again at `at_s` at the latest."""
        full_at_s = self.full_at_s(unit_s)
        if full_at_s is not None and full_at_s > at_s:
            self._base_s = at_s
            self._entries.clear()
            self._known = None

    def resume(self, full_at_s: float) -> None:
        """It is not full before `full_at_s`."""
        if self._base_s is None or self._base_s < full_at_s:
            self._base_s = full_at_s
            self._known = None


def _after(full_at_s: float | None, entry: Entry, unit_s: float) -> float:
    begun_s = entry.at_s if full_at_s is None else max(full_at_s, entry.at_s)
    return begun_s + entry.amount * unit_s
