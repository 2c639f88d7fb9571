"""Bounds the limit of a server that states none, by the server's verdicts on calls.

A refused call shows that the server was full, an admitted call that it was not. Every kind of limit
leaves its own traces in these verdicts:

  N in a window W, fixed or moving   at a refusal, the last W seconds hold N admitted calls or more
  a bucket, refilled R per second    between two refusals, it admits what was refilled meanwhile

So each refusal bounds N for every W from above. The fastest of these limits is tried first: if it
is wrong, the next refusals bound it further. No window length is assumed; if several limits are
about as fast, one whose window length is usual in settings is chosen.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from typing import NamedTuple

from redline.limits.rule import Rate

# Window lengths that are usual in settings, in seconds.
USUAL_S = (1.0, 2.0, 5.0, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 900.0, 1800.0, 3600.0,
           7200.0, 21600.0, 43200.0, 86400.0)  # fmt: skip
# Between these, a grid so fine that every window length has a point within 2.5 %.
_STEP = 1.05
_LONGEST_S = 86400.0
_GRID_S = sorted({*USUAL_S, *(_STEP**n for n in range(math.ceil(math.log(_LONGEST_S, _STEP)) + 1))})
# Calls overtake each other on the way by at most this many seconds: stamps are only this exact.
_BLUR_S = 0.05
# The bounds of a bucket may cross by this factor before they contradict each other.
_TOLERANCE = 1.08
# Fewer calls than this may be evenly spaced by chance.
_LEAST_CALLS = 30
# The pace is measured over this many calls before a refusal.
_PACE_CALLS = 10
# A rate over a usual window is chosen if it reaches the first share of the fastest rate that
# explains all verdicts; among these rates, a round one if it reaches the second share of the
# fastest of them.
_USUAL_SHARE, _ROUND_SHARE = 0.7, 0.88
# Bounds on memory and on the work of one decision.
_MOST_CALLS, _MOST_REFUSALS = 65_536, 48


class Bucket(NamedTuple):
    """Bounds on a bucket's refill, in calls per second.

    The verdicts contradict a bucket if least_per_s is clearly above most_per_s.
    """

    least_per_s: float
    most_per_s: float
    calls: int  # admitted after the first refusal

    @property
    def is_possible(self) -> bool:
        return self.least_per_s <= self.most_per_s * _TOLERANCE

    @property
    def is_narrow(self) -> bool:
        """Whether the bounds are close enough to choose a rate."""
        is_close = self.most_per_s <= 1.12 * self.least_per_s
        return self.is_possible and is_close and self.calls >= _LEAST_CALLS


class Evidence:
    """Keeps the recent calls, and which of them were refused. Stamps are send times."""

    def __init__(self) -> None:
        self._calls: list[float] = []  # not refused so far
        self._refused: list[float] = []  # since the last `settle`
        self.is_first = True  # the limit has been the same since the first call
        self._longest_s = math.inf  # calls before the refusals prove little about longer windows

    @property
    def begins_full(self) -> bool:
        """Whether the server was full before the first call, so that it refused that call."""
        return self.is_first and self._refused[:1] < self._calls[:1]

    def sent(self, now_s: float) -> None:
        insort(self._calls, now_s)
        if len(self._calls) > _MOST_CALLS:
            del self._calls[: _MOST_CALLS // 4]

    def refuse(self, sent_s: float) -> None:
        """Records that the call with this stamp was refused, and so does not count in a window."""
        at = bisect_left(self._calls, sent_s)
        if at < len(self._calls) and self._calls[at] == sent_s:
            del self._calls[at]
        self.note_full(sent_s)

    def note_full(self, at_s: float) -> None:
        """Records that the server was full at this time: it refused a call, or stated so."""
        insort(self._refused, at_s)
        if len(self._refused) > _MOST_REFUSALS:
            # The first refusals show what was admitted before them; the latest show the limit now.
            del self._refused[_MOST_REFUSALS // 2]

    def restart(self, window_s: float) -> None:
        """Keeps only the refusals of the last two windows, because the limit has changed.

        window_s: the length of a window of the limit before the change.
        """
        self._longest_s = 1.1 * window_s
        since_s = self._refused[-1] - 2 * window_s
        self._refused = [at for at in self._refused if at >= since_s]

    def settle(self) -> None:
        """Drops the refusals so far, because they prove nothing about later calls."""
        self._longest_s = math.inf
        self._refused.clear()
        self.is_first = False

    def count(self, from_s: float, to_s: float) -> int:
        """Returns the number of calls in [from_s, to_s] that were not refused."""
        return bisect_right(self._calls, to_s) - bisect_left(self._calls, from_s)

    def room_at_s(self, rate: Rate, now_s: float) -> float:
        """Returns when evenly spaced calls at `rate` may begin without ever exceeding its count.

        Earlier calls leave a moving window only at the pace at which they were sent.
        """
        held = self._calls[bisect_left(self._calls, now_s - rate.window_s) :]
        spare = rate.count - len(held)
        unit_s = rate.window_s / rate.count
        leaving_s = (at + rate.window_s - (spare + n) * unit_s for n, at in enumerate(held))
        return max(leaving_s, default=now_s)

    def windows(self, until_s: float) -> list[Rate]:
        """Returns the highest possible limit for each window length, according to the refusals.

        until_s: the send time of the last call whose verdict is known. A length is left out if a
        refusal contradicts it, because no call was admitted for that long before the refusal.
        """
        if not self._refused or not self._calls:
            return []
        # All windows longer than the observed time hold the same calls.
        longest_s = 1.05 * (until_s - self._calls[0])
        longest_s = min(longest_s, max(self._longest_s, until_s - self._refused[0]))
        found = []
        for window_s in _GRID_S[: max(1, bisect_right(_GRID_S, longest_s))]:
            most = min(self.count(at - window_s - _BLUR_S, at + _BLUR_S) for at in self._refused)
            if most:
                found.append(Rate(most, window_s))
        return found

    def bucket(self, until_s: float) -> Bucket:
        """Bounds a bucket's refill by the verdicts on calls sent until `until_s`.

        The bucket was empty at each refusal. The lower bound counts only calls that certainly
        arrived after the refusal, the upper bound all calls that may have arrived in between.
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
            # The bucket was not always empty: it has filled up while fewer calls were sent.
            calls = 0
        return Bucket(least, most, calls)

    def _pace_per_s(self) -> float:
        """Returns how many calls per second were admitted just before the last refusal."""
        at = bisect_left(self._calls, self._refused[-1])
        first = max(0, at - _PACE_CALLS)
        took_s = self._refused[-1] - self._calls[first] if at > first else math.inf
        return (at - first) / took_s

    def average_per_s(self, until_s: float) -> float:
        """Returns the admitted calls per second since the first refusal; 0 if unknown."""
        if not self._refused or until_s <= self._refused[0]:
            return 0.0
        return self.count(self._refused[0], until_s) / (until_s - self._refused[0])

    def longest_block_s(self) -> float:
        """Returns the longest time, in seconds, for which the server refused every call."""
        longest_s = 0.0
        for refused_s in self._refused:
            at = bisect_right(self._calls, refused_s)
            if at:
                longest_s = max(longest_s, refused_s - self._calls[at - 1])
        return longest_s

    def span_s(self) -> float:
        """Returns the seconds from the first recorded call to the first refusal; 0 if unknown."""
        return self._refused[0] - self._calls[0] if self._refused and self._calls else 0.0

    def _peaks_s(self, until_s: float) -> Iterator[float]:
        """Yields the last admitted call before each refusal but the first, and up to `until_s`."""
        for refused_s in [*self._refused[1:], until_s + 1e-9]:
            at = bisect_left(self._calls, refused_s)
            if at and self._calls[at - 1] > self._refused[0]:
                yield self._calls[at - 1]


def likeliest(windows: list[Rate]) -> Rate:
    """Returns the fastest rate, or one over a usual window that is at least 70 % as fast.

    Of several such rates that are about equally fast, returns one with a round count if possible.
    """
    fastest = max(rate.per_s for rate in windows)
    usual = [r for r in windows if r.window_s in USUAL_S and r.per_s >= _USUAL_SHARE * fastest]
    if not usual:
        return max(windows, key=lambda rate: rate.per_s)
    fastest = max(rate.per_s for rate in usual)
    near = [rate for rate in usual if rate.per_s >= _ROUND_SHARE * fastest]
    return max(near, key=lambda rate: (_is_round(rate.count), rate.per_s))


def _is_round(count: int) -> bool:
    """Returns whether `count` is one digit, or two digits ending in 5, followed by zeros."""
    digits = str(count).rstrip("0")
    return len(digits) == 1 or (len(digits) == 2 and digits[1] == "5")


def named(bucket: Bucket) -> Rate | None:
    """Returns a rate within the bounds over the shortest possible usual window.

    The window must hold a whole number of calls; None if none does.
    """
    middle = math.sqrt(bucket.least_per_s * bucket.most_per_s)
    for window_s in USUAL_S:
        count = round(middle * window_s)
        if count >= 1 and bucket.least_per_s * 0.99 <= count / window_s <= bucket.most_per_s:
            return Rate(count, window_s)
    return None
