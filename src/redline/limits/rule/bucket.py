"""When a bucket is full again."""

from __future__ import annotations

from collections import deque

from redline.limits.rule.shape import paid_at_s

# A grant is written in the same turn of the event loop, unless its connection has gone meanwhile.
LATE_S = 0.001
# Amounts that are not settled by then count as they were booked: it bounds the log.
_MOST_ENTRIES = 4096


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
    So the level is folded again from the oldest amount that can still change.
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
    before_s = entry.at_s if full_at_s is None else full_at_s
    return paid_at_s(before_s, entry.at_s, entry.amount, unit_s)
