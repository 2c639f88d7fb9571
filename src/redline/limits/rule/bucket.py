"""Computes when a bucket is full again."""

from __future__ import annotations

from collections import deque

import msgspec

from redline.limits.rule.shape import paid_at_s

# A request written later than this after its grant counts from the write. Usually both happen in
# the same turn of the event loop, unless the connection was lost in between.
LATE_S = 0.001
# An amount still unsettled after this many later ones stays as booked: this bounds the log.
MOST_ENTRIES = 4096
# The same applies to an amount that is not settled for this long: its call has failed.
_LONGEST_S = 600.0


class Entry(msgspec.Struct, eq=False, gc=False):
    """One amount taken from a bucket. is_final: whether it can no longer change."""

    at_s: float
    amount: int
    is_final: bool = False


class BucketLevel:
    """Computes when a bucket is full again, as if each amount had been exact when it was taken.

    A refund must not credit more than the bucket could hold, and the bucket may have been full in
    the meantime. Therefore the level is recomputed from the oldest amount that can still change.
    """

    def __init__(self) -> None:
        self._base_s: float | None = None
        self._entries: deque[Entry] = deque()
        self._known: tuple[float, float | None] | None = None  # (unit_s, the last result for it)

    def take(self, at_s: float, amount: int) -> Entry:
        """Takes `amount` at the time `at_s`; returns its entry."""
        entry = Entry(at_s, amount)
        self._entries.append(entry)
        if self._known is not None:
            unit_s, full_at_s = self._known
            self._known = (unit_s, _after(full_at_s, entry, unit_s))
        return entry

    def left(self, entry: Entry, at_s: float) -> None:
        """Records that the entry's request was written at `at_s`; it counts from then."""
        if at_s - entry.at_s > LATE_S:
            entry.at_s = at_s
            self._known = None

    def amend(self, entry: Entry, amount: int) -> None:
        """Replaces the amount of an entry for good."""
        entry.is_final = True
        if entry.amount != amount:
            entry.amount = amount
            self._known = None

    def full_at_s(self, unit_s: float) -> float | None:
        """Returns when the bucket is full again, at one unit per unit_s; None before any amount."""
        entries = self._entries
        while entries and (
            entries[0].is_final
            or len(entries) > MOST_ENTRIES
            or entries[0].at_s < entries[-1].at_s - _LONGEST_S
        ):
            self._base_s = _after(self._base_s, entries.popleft(), unit_s)
        if self._known is not None and self._known[0] == unit_s:
            return self._known[1]
        full_at_s = self._base_s
        kept: deque[Entry] = deque()
        for entry in entries:
            full_at_s = _after(full_at_s, entry, unit_s)
            if entry.is_final and kept and kept[-1].is_final:
                kept[-1] = _both(kept[-1], entry, unit_s)
            else:
                kept.append(entry)
        self._entries = kept
        self._known = (unit_s, full_at_s)
        return full_at_s

    def cap(self, at_s: float, unit_s: float) -> None:
        """Makes the bucket full again no later than `at_s`."""
        full_at_s = self.full_at_s(unit_s)
        if full_at_s is not None and full_at_s > at_s:
            self._base_s = at_s
            self._entries.clear()
            self._known = None

    def resume(self, full_at_s: float) -> None:
        """Makes the bucket full again no earlier than `full_at_s`."""
        if self._base_s is None or self._base_s < full_at_s:
            self._base_s = full_at_s
            self._known = None


def _both(first: Entry, second: Entry, unit_s: float) -> Entry:
    """Merges two final entries into one after which a bucket is full again at the same time."""
    at_s = max(first.at_s, second.at_s - first.amount * unit_s)
    return Entry(at_s, first.amount + second.amount, is_final=True)


def _after(full_at_s: float | None, entry: Entry, unit_s: float) -> float:
    before_s = entry.at_s if full_at_s is None else full_at_s
    return paid_at_s(before_s, entry.at_s, entry.amount, unit_s)
