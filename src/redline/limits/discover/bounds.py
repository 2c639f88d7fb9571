"""The limits that are possible given the verdicts of a server that states none.

A refused call shows that the server was full, an admitted call that it was not. Between the two,
every kind of limit leaves its own traces:

  N in a window W, fixed or moving   at a refusal the last W seconds hold N admitted calls or more
  a bucket, refilled R per second    between two refusals it admits what it was refilled with

So each refusal bounds N for every W from above, and the fastest of these limits is tried first: if
it is wrong, the next refusals bound it further. No window length is assumed; if several limits are
about as fast, one with a length that is usual in settings is chosen.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from typing import NamedTuple

from redline.limits.rule import Rate

# Usual windows in settings, in seconds.
USUAL_S = (1.0, 2.0, 5.0, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 900.0, 1800.0, 3600.0,
           7200.0, 21600.0, 43200.0, 86400.0)  # fmt: skip
# Between them, a grid so fine that every window length has a point within 2.5 %.
_STEP = 1.05
_LONGEST_S = 86400.0
_GRID_S = sorted({*USUAL_S, *(_STEP**n for n in range(math.ceil(math.log(_LONGEST_S, _STEP)) + 1))})
# Calls overtake each other on the way by at most this many seconds, so stamps are no more exact.
_BLUR_S = 0.05
# The bounds of a bucket may overlap by this factor before it is contradicted.
_TOLERANCE = 1.08
# A number of calls below this may be evenly spaced by chance.
_LEAST_CALLS = 30
# The pace is measured over this many calls before a refusal.
_PACE_CALLS = 10
# Shares of the fastest window that explains all verdicts: a usual window at least this fast is
# chosen instead, and among the usual ones a round one.
_USUAL_SHARE, _ROUND_SHARE = 0.7, 0.88
# Bounds on memory and on the work of one decision.
_MOST_CALLS, _MOST_REFUSALS = 65_536, 48


class Bucket(NamedTuple):
    """Bounds on the refill, calls per second; contradicted if least_per_s > most_per_s."""

    least_per_s: float
    most_per_s: float
    calls: int  # admitted after the first refusal

    @property
    def is_possible(self) -> bool:
        return self.least_per_s <= self.most_per_s * _TOLERANCE

    @property
    def is_narrow(self) -> bool:
        """Whether the bounds are as close as a rate needs to be known."""
        is_close = self.most_per_s <= 1.12 * self.least_per_s
        return self.is_possible and is_close and self.calls >= _LEAST_CALLS


class Evidence:
    """The recent calls, and which of them were refused. Stamps are send times."""

    def __init__(self) -> None:
        self._calls: list[float] = []  # not refused so far
        self._refused: list[float] = []  # since the last `settle`
        self.is_first = True  # the limit was the same ever since the first call
        self._longest_s = math.inf  # the longest window that calls before the refusals say much of

    def sent(self, now_s: float) -> None:
        insort(self._calls, now_s)
        if len(self._calls) > _MOST_CALLS:
            del self._calls[: _MOST_CALLS // 4]

    def refuse(self, sent_s: float) -> None:
        """Records that the call of this stamp was refused, so it takes up no room."""
        at = bisect_left(self._calls, sent_s)
        if at < len(self._calls) and self._calls[at] == sent_s:
            del self._calls[at]
        self.note_full(sent_s)

    def note_full(self, at_s: float) -> None:
        """Records that the server is full at this time: it has refused a call, or stated so."""
        insort(self._refused, at_s)
        if len(self._refused) > _MOST_REFUSALS:
            # The first refusals show how much fitted before; the latest show what is true now.
            del self._refused[_MOST_REFUSALS // 2]

    def restart(self, window_s: float) -> None:
        """Keeps only the last refusals: the limit is no longer the one with window_s."""
        self._longest_s = 1.1 * window_s
        since_s = self._refused[-1] - 2 * window_s
        self._refused = [at for at in self._refused if at >= since_s]

    def settle(self) -> None:
        """Drops the refusals so far, which prove nothing about later calls."""
        self._longest_s = math.inf
        self._refused.clear()
        self.is_first = False

    def count(self, from_s: float, to_s: float) -> int:
        """Calls in [from_s, to_s] that were not refused."""
        return bisect_right(self._calls, to_s) - bisect_left(self._calls, from_s)

    def room_at_s(self, rate: Rate, now_s: float) -> float:
        """When `rate` may begin, evenly, so that no window ever holds more than its count.

        Earlier calls leave a moving window only at the pace at which they came in.
        """
        held = self._calls[bisect_left(self._calls, now_s - rate.window_s) :]
        spare = rate.count - len(held)
        unit_s = rate.window_s / rate.count
        leaving_s = (at + rate.window_s - (spare + n) * unit_s for n, at in enumerate(held))
        return max(leaving_s, default=now_s)

    def windows(self, until_s: float) -> list[Rate]:
        """The most that each length of a window can allow, by the refusals.

        until_s: the last call whose verdict is known. Lengths that a refusal contradicts are left
        out: nothing was admitted for that long before it.
        """
        if not self._refused or not self._calls:
            return []
        # All windows longer than what has been seen hold the same calls.
        longest_s = 1.05 * (until_s - self._calls[0])
        longest_s = min(longest_s, max(self._longest_s, until_s - self._refused[0]))
        found = []
        for window_s in _GRID_S[: max(1, bisect_right(_GRID_S, longest_s))]:
            most = min(self.count(at - window_s - _BLUR_S, at + _BLUR_S) for at in self._refused)
            if most:
                found.append(Rate(most, window_s))
        return found

    def bucket(self, until_s: float) -> Bucket:
        """What a bucket's refill must be by the verdicts on calls sent until `until_s`.

        The bucket was empty at each refusal. The lower bound counts only calls that cannot have
        overtaken the refusal, the upper bound all that may have come in between.
        """
        least, most = 0.0, math.inf
        if not self._refused:
            return Bucket(least, most, 0)
        peaks_s = list(self._peaks_s(until_s))
        for number, begin_s in enumerate(self._refused):
            for end_s in self._refused[number + 1 :]:
                took_s = end_s - begin_s - _BLUR_S
                if took_s > 0:
                    between = self.count(begin_s - _BLUR_S, end_s + _BLUR_S)
                    most = min(most, (between + 1) / took_s)
            for end_s in peaks_s:
                between = self.count(begin_s + _BLUR_S, end_s)
                if between > 1:
                    least = max(least, (between - 1) / (end_s - begin_s + _BLUR_S))
        calls = self.count(self._refused[0], until_s)
        if calls and self._pace_per_s() > 1.5 * most:
            # The bucket was not empty all the time: it has filled up while fewer calls were sent.
            calls = 0
        return Bucket(least, most, calls)

    def _pace_per_s(self) -> float:
        """How fast calls were admitted just before the last refusal."""
        at = bisect_left(self._calls, self._refused[-1])
        first = max(0, at - _PACE_CALLS)
        took_s = self._refused[-1] - self._calls[first] if at > first else math.inf
        return (at - first) / took_s

    def average_per_s(self, until_s: float) -> float:
        """Calls a second that were admitted since the first refusal; 0 if that says nothing."""
        if not self._refused or until_s <= self._refused[0]:
            return 0.0
        return self.count(self._refused[0], until_s) / (until_s - self._refused[0])

    def longest_block_s(self) -> float:
        """The longest time for which the server refused every call."""
        longest_s = 0.0
        for refused_s in self._refused:
            at = bisect_right(self._calls, refused_s)
            if at:
                longest_s = max(longest_s, refused_s - self._calls[at - 1])
        return longest_s

    def span_s(self) -> float:
        """The time from the first call that is remembered to the first refusal."""
        return self._refused[0] - self._calls[0] if self._refused and self._calls else 0.0

    def _peaks_s(self, until_s: float) -> Iterator[float]:
        """When the server had admitted most: the last call before each refusal but one, and now."""
        for refused_s in [*self._refused[1:], until_s + 1e-9]:
            at = bisect_left(self._calls, refused_s)
            if at and self._calls[at - 1] > self._refused[0]:
                yield self._calls[at - 1]


def likeliest(windows: list[Rate]) -> Rate:
    """The fastest of these, or a usual one that is nearly as fast, a round one if there is one."""
    fastest = max(rate.per_s for rate in windows)
    usual = [r for r in windows if r.window_s in USUAL_S and r.per_s >= _USUAL_SHARE * fastest]
    if not usual:
        return max(windows, key=lambda rate: rate.per_s)
    fastest = max(rate.per_s for rate in usual)
    near = [rate for rate in usual if rate.per_s >= _ROUND_SHARE * fastest]
    return max(near, key=lambda rate: (_is_round(rate.count), rate.per_s))


def _is_round(count: int) -> bool:
    """Whether it is one digit, or two of which the last is 5, followed by zeros."""
    digits = str(count).rstrip("0")
    return len(digits) == 1 or (len(digits) == 2 and digits[1] == "5")


def named(bucket: Bucket) -> Rate | None:
    """The rate over the shortest usual window that holds a whole number of calls; None if none."""
    middle = math.sqrt(bucket.least_per_s * bucket.most_per_s)
    for window_s in USUAL_S:
        count = round(middle * window_s)
        if count >= 1 and bucket.least_per_s * 0.99 <= count / window_s <= bucket.most_per_s:
            return Rate(count, window_s)
    return None
