"""Keeps to a rate that was found, and tries a higher one now and then.

  state     sends                        on refusals
  held      the rate                     two far apart trim the rate; 3 of 10 calls stop all sends
                                         for a moment; if that happens again soon, the rate is
                                         given up
  climbing  1, 3, 7, 15, ... steps more  ends the climb; the level before, if any, is watched
  watched   what a climb has gained      takes back half of the gain

A rate that is not proven yet is given up if 2 of 10 calls are refused. A level that is not refused
for a window and a round trip is followed by the next level. A climb costs a few refusals; for each
of them, the next climb is delayed by thousands of calls, and by more each time that a climb has
gained nothing.
"""

from __future__ import annotations

import math
from collections import deque
from enum import Enum

import msgspec

from redline.limits.discover.bounds import USUAL_S
from redline.limits.rule import Rate

# The pause between climbs, in calls, for each refusal of the last climb: one refusal in 3,000 calls
# leaves most of a budget of 0.1 %.
_PAUSE, _LONGEST_PAUSE = 3_000, 96_000
# A newly found rate may be slightly too low, and after a gain, more may be possible. So the next
# climb comes sooner after a gain, and for a new rate whose window has so few calls that a climb
# costs little.
_SOON, _SMALL = 100, 100
# The highest level is 1.5 times the rate: above that, there are many refusals in one round trip.
_HIGHEST = 0.5
# If a level is too high by a share x, a share x of its calls is refused: five refusals are expected
# in 5 / x calls.
_DUE = 5
# The margin against jitter that a limiter adds to a window (limits/rule/guard.py); included when
# rates are compared.
_GUARD_S = 0.05
# Refusals within this many calls have one cause.
_CLOSE = 10
# A rate is proven after this many of its windows and 20 admitted calls. A rate that is too high
# because the server's window is longer than assumed has been refused by then.
_PROOF_WINDOWS = 1.5
# The number of refusals within _CLOSE calls that stops a proven rate, and an unproven one.
_LOST, _LOST_UNPROVEN = 3, 2
# A second block within this many calls, or within four windows, has the same cause: the limit is a
# different one.
_FORGOTTEN_BLOCK = 100
_LEAST_TRIM, _MOST_TRIM = 0.0025, 0.2
# If refusals far apart continue more than half as often as before, although the rate has been
# trimmed to less than 90 % of what it was, other clients of the key cause them: the trims are taken
# back, and up to three times as many refusals are tolerated.
_LEAST_SHARE, _AS_MANY = 0.9, 0.5
# Refusals more than this many calls apart are independent.
_FORGOTTEN = 1_000
# A gain is kept for good once this many refusals were expected, over at least this many windows.
_WATCHED_DUE, _WATCHED_WINDOWS = 10, 3


class Word(Enum):
    """The effect of a verdict on the held rate."""

    KEEP = "nothing changes"
    CHANGED = "another rate from now on"
    BLOCKED = "the same rate, once the server admits calls again"
    LOST = "the limit is another one"


class Level(msgspec.Struct, eq=False):
    """Counts the calls at one rate. since_s: calls sent earlier say nothing about this rate."""

    since_s: float
    measured_s: float  # since when sends are counted
    sent: int = 0
    admitted: int = 0

    def was_wanted(self, per_s: float, now_s: float) -> bool:
        """Returns whether the caller has used up `per_s` since this method was last called."""
        allowed = (now_s - self.measured_s) * per_s
        sent, self.sent, self.measured_s = self.sent, 0, now_s
        return sent >= 0.8 * allowed - 1


class Hold:
    """Holds one rate. burst: the most calls that the server may admit at once before it refuses.

    rate: the rate to send at now; the share `_more` above `sure` while climbing or watched. sure:
    the rate that the server admits, without a gain that is only tried or watched.
    """

    def __init__(self, rate: Rate, now_s: float, burst: int) -> None:
        self.rate = self.sure = rate
        self.is_proven = False  # enough windows have passed at this rate
        self._burst = burst
        self._full: Rate | None = None  # the rate before it was trimmed
        self._first_share = 0.0  # the share of refusals at `_full`
        self._tolerated = 0.0  # a share of refusals that trims nothing
        self._is_climbing = False
        self._more = 0.0  # 0 also while a plain rate is tried
        self._plain: Rate | None = None  # the last plain rate that was tried
        self._extra = 0.0  # calls above the sure rate in this climb
        self._level = Level(now_s, now_s)
        self._deaf_until_s = now_s  # calls sent earlier may be refused because of the previous rate
        self._slowest_s = 0.0  # of recent verdicts: a refusal may be on its way for this long
        self._pause = _SOON if rate.count < _SMALL else _PAUSE
        self._rested = 0  # calls admitted since the last climb
        self._refused = 0  # since the last trim
        self._since_first = 0  # calls since the first of these refusals
        self._cost = 1  # refusals since the last climb began
        self._failures = 0  # climbs in a row that gained nothing
        self._blocks = 0  # times that nearly all calls were refused
        self._since_block = 0  # calls since the last block
        self._last: deque[bool] = deque(maxlen=_CLOSE)

    def sent(self) -> None:
        self._level.sent += 1

    def answered(
        self, now_s: float, sent_s: float, is_limited: bool, retry_after_s: float = 0.0
    ) -> Word:
        """Returns the effect of the verdict on the call sent at `sent_s`.

        retry_after_s: the wait that the server asked for. The calls that would have been sent
        during the wait also count as refused.
        """
        self._cost += is_limited
        self._slowest_s = max(now_s - sent_s, 0.99 * self._slowest_s)
        if sent_s < self._level.since_s:
            return Word.KEEP
        missed = int(min(retry_after_s, self.rate.window_s) * per_second(self.rate))
        self._last.extend([True] * min(missed, _CLOSE))
        self._last.append(is_limited)
        self._since_first += missed + 1
        self._since_block += 1
        if is_limited:
            return self._fall(now_s) if self._is_climbing else self._suffer(now_s, sent_s, missed)
        self._level.admitted += 1
        self._rested += 1
        return self._climb(now_s, sent_s) if self._is_climbing else self._keep(now_s)

    def _keep(self, now_s: float) -> Word:
        window_s, admitted = self.rate.window_s, self._level.admitted
        lasted_s = now_s - self._slowest_s - self._level.since_s
        if not self.is_proven:
            self.is_proven = admitted >= 20 and lasted_s >= _PROOF_WINDOWS * window_s
        elif self._more:
            if admitted >= _WATCHED_DUE / self._more and lasted_s >= _WATCHED_WINDOWS * window_s:
                self._gained()
        elif self._rested >= self._pause:
            self._rested = 0
            if self._level.was_wanted(self.rate.per_s, now_s):
                return self._begin(now_s)
        return Word.KEEP

    def _begin(self, now_s: float) -> Word:
        """Begins a climb: to a plain rate if one is near, because limits are plain numbers."""
        plain = plain_above(self.sure)
        self._is_climbing = True
        self._extra = 0.0
        self._cost = 0
        if plain is None or plain == self._plain:
            self._plain = None
            return self._send_above(self._step(), now_s)
        self.rate = self._plain = plain
        return self._change(now_s)

    def _suffer(self, now_s: float, sent_s: float, missed: int) -> Word:
        """Handles a refusal outside a climb. missed: calls that its Retry-After prevents.

        Gives up part of a climb's gain, trims a rate that is refused now and then, and reports a
        block or a lost rate if refusals are close together.
        """
        is_deaf = sent_s < self._deaf_until_s
        close = sum(self._last)
        if self._more and (close > 1 or not is_deaf):
            return self._fall(now_s)
        if close >= (_LOST if self.is_proven else _LOST_UNPROVEN):
            if self._since_block > max(_FORGOTTEN_BLOCK, 4 * self.rate.count):
                self._blocks = 0
            self._blocks += 1
            if not self.is_proven or self._blocks > (2 if is_deaf else 1):
                return Word.LOST
            # Other clients may have used the limit up for a moment, or a climb may have filled a
            # fixed window early, which then admits no call until it ends.
            self._since_block = self._refused = 0
            self._last.clear()
            return Word.BLOCKED
        return Word.KEEP if is_deaf else self._trim(now_s, missed, is_first=close == 1)

    def _trim(self, now_s: float, missed: int, *, is_first: bool) -> Word:
        """Reduces the rate by the refused share, in whole calls per window if possible.

        is_first: whether no refusal came shortly before this one.
        """
        since_first = self._since_first
        if self._refused == 0 or since_first > _FORGOTTEN:
            if since_first > _FORGOTTEN:
                self._full = None
            self._refused, self._since_first = 1, 0
            return Word.KEEP
        self._refused += 1 + missed
        if since_first < (_CLOSE if is_first else 3 * _CLOSE):
            return Word.KEEP
        # A rate that is one call per window too high causes one refusal per window.
        share = (self._refused - 1) / max(since_first, self.sure.count)
        self._refused = 0
        if self._full is None:
            self._full, self._first_share, self._tolerated = self.sure, share, 0.0
        if share <= self._tolerated:
            return Word.KEEP
        is_far = per_second(self.sure) < _LEAST_SHARE * per_second(self._full)
        if is_far and share > _AS_MANY * self._first_share:
            self.sure, self._tolerated = self._full, 3 * share
        else:
            share, step = min(max(share, _LEAST_TRIM), _MOST_TRIM), self._step()
            if share >= 0.4 * step:
                share = step * max(1, round(share / step))
            self.sure = scaled(self.sure, 1 - share)
        return self._send_above(0.0, now_s)

    def _step(self) -> float:
        """Returns the smallest change worth trying: one call per window, as a share of the rate."""
        return 0.05 if self.sure.count < 10 else max(1 / self.sure.count, 0.001)

    def _climb(self, now_s: float, sent_s: float) -> Word:
        """Continues to the next level if the current level has passed."""
        per_s, level = per_second(self.sure), self._level
        more = self._more or _DUE / 100
        lasted_s = min(sent_s, now_s - self._slowest_s) - level.since_s
        if lasted_s < max(self.sure.window_s, max(_DUE / more, _CLOSE) / per_s):
            return Word.KEEP
        if not level.was_wanted(self.rate.per_s, now_s):
            self._is_climbing = False
            return self._send_above(0.0, now_s)
        higher = 2 * self._more + self._step()
        extra = self._extra + lasted_s * self._more * per_s
        if not self._more:
            self._is_climbing = False
            self._gained()
            return self._change(now_s)
        if higher <= _HIGHEST:
            self._extra = extra
            return self._send_above(higher, now_s)
        if extra >= 1.2 * self._burst:
            self._burst, self._extra = 0, 0.0
            self.sure = self.rate
            return self._send_above(self._more, now_s)
        return Word.KEEP

    def _gained(self) -> None:
        """Records that the tried or watched rate is sure; an even higher one may be possible."""
        self.sure, self._more = self.rate, 0.0
        self._pause, self._failures = _SOON, 0

    def _fall(self, now_s: float) -> Word:
        """Goes back from a refused rate; the level before it, if any, is watched."""
        self._is_climbing = False
        more = (self._more - self._step()) / 2
        if more > 1e-9:
            return self._send_above(more, now_s)
        self._failures += 1
        self._pause = min(_PAUSE * max(self._cost, 1) * self._failures, _LONGEST_PAUSE)
        return self._send_above(0.0, now_s)

    def _send_above(self, more: float, now_s: float) -> Word:
        """Sets the rate to the share `more` above the sure rate."""
        self._more = more
        self.rate = scaled(self.sure, 1 + more) if more else self.sure
        return self._change(now_s)

    def _change(self, now_s: float) -> Word:
        """Restarts the counts after a change of the rate."""
        if not self._is_climbing:
            self._deaf_until_s = now_s + 2 * self.rate.window_s
        self._level = Level(now_s, now_s)
        self._last.clear()
        return Word.CHANGED


def scaled(rate: Rate, factor: float) -> Rate:
    """Returns `factor` times the rate; in the same window if that is a whole number of calls."""
    count = round(rate.count * factor)
    if count >= 1 and abs(count - rate.count * factor) < 1e-6 * count:
        return Rate(count, rate.window_s)
    return Rate(rate.count, rate.window_s / factor)


def per_second(rate: Rate) -> float:
    """Returns calls per second, including the margin that a limiter adds to a window."""
    return rate.count / (rate.window_s + _GUARD_S)


def plain_above(rate: Rate) -> Rate | None:
    """Returns a rate over a usual window, at most 6 % above this rate.

    None if there is none, or if this rate's own window is usual.
    """
    if rate.window_s in USUAL_S:
        return None
    now_per_s = per_second(rate)
    for window_s in USUAL_S:
        plain = Rate(math.floor(now_per_s * (window_s + _GUARD_S) + 1e-9) + 1, window_s)
        if per_second(plain) <= 1.06 * now_per_s:
            return plain
    return None
