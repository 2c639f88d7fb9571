"""A rate that was found: kept, trimmed, and tried for more now and then.

  state     sends                        a refusal
  held      the rate                     two far apart trim it; 3 of 10 stop it for a moment, and
                                         end it if that happens again soon
  climbing  1, 3, 7, 15, ... steps more  ends the climb: the level before is held from then on

A level that is not refused for a window and a round trip is followed by the next. A climb costs a
few refusals, so the next one waits for thousands of calls for each refusal since it began.
"""

from __future__ import annotations

import math
from collections import deque
from enum import Enum

from redline.limits.rule import Rate

# One refusal in 3,000 calls leaves most of a budget of 0.1 %.
_PAUSE, _LONGEST_PAUSE = 3_000, 96_000
# What was just found may be a little low, and what a climb has gained may be the beginning of more:
# those are tried sooner, where a window is so small that it costs little.
_SOON, _SMALL = 100, 100
# A level is at most half more: from there on the round trip alone costs many refusals.
_HIGHEST = 0.5
# A level that is too high by x refuses a share of x: five refusals are due in 5 / x calls.
_DUE = 5
# What a limiter adds to a window against jitter (limits/rule/guard.py); rates are compared here.
_GUARD_S = 0.05
# Refusals this close together, in calls, have one cause.
_CLOSE = 10
# Refusals among so many calls that stop a rate, and one that nothing has proved yet.
_LOST, _LOST_UNPROVEN = 3, 2
# A second block within so many calls, or four windows, has the same cause: another limit.
_FORGOTTEN_BLOCK = 100
_LEAST_TRIM, _MOST_TRIM = 0.0025, 0.2
# Refusals far apart that go on below this share of the rate, more than half as many as before, are
# caused by others who use the same key, whatever is sent: the trims are taken back, and up to three
# times as many are borne.
_LEAST_SHARE, _AS_MANY, _BORNE = 0.9, 0.5, 3.0
# Refusals this far apart, in calls, have nothing to do with each other.
_FORGOTTEN = 1_000
# What is gained is kept for good once so many refusals would have been due, over so many windows.
_WATCHED_DUE, _WATCHED = 10, 3


class Word(Enum):
    """What an answer means for a rate that is held."""

    KEEP = "nothing changes"
    CHANGED = "another rate from now on"
    BLOCKED = "the same rate, once the server admits calls again"
    LOST = "the limit is another one"


class Hold:
    """One rate. burst: the most calls that the server may admit at once before it refuses one."""

    def __init__(self, rate: Rate, now_s: float, burst: int) -> None:
        self.held = rate
        self.rate = rate  # what is asked of the server now
        self.is_proven = False  # a whole window has passed at this rate
        self._more = 0.0  # the share by which `rate` is above `held`
        self._is_rising = False  # in a climb
        self._burst = burst
        self._extra = 0.0  # calls beyond what is held, in this climb
        self._cost = int(
            rate.count >= _SMALL
        )  # refusals due to climbs since the last gain, older ones half
        self._climbed = 0  # the number of calls when it began
        self._best = rate  # what was held before it was trimmed
        self._first_share = 0.0  # of refusals, at that rate
        self._borne = 0.0  # share of refusals that others cause
        self._since_s = now_s  # the last change
        self._slowest_s = 0.0  # verdicts of late: until then, a refusal may still be on its way
        self._calls = self._since = 0  # verdicts, and their number at the last change
        self._refusals: deque[int] = deque(maxlen=_CLOSE)  # numbers of calls, since the last trim
        self._blocked_s = -math.inf  # when nearly everything was refused

    def answered(
        self, now_s: float, sent_s: float, is_limited: bool, retry_after_s: float = 0.0
    ) -> Word:
        """What the verdict on the call sent at `sent_s` means.

        retry_after_s: how long the server asked for silence. What would have been sent meanwhile
        counts as refused, too.
        """
        is_deaf = not self._is_rising and sent_s < self._since_s + 2 * self.held.window_s
        self._cost += is_limited and (self._more > 0 or is_deaf)
        self._slowest_s = max(now_s - sent_s, 0.99 * self._slowest_s)
        if sent_s < self._since_s:
            return Word.KEEP
        self._calls += 1
        if not is_limited:
            return self._climb(now_s, sent_s) if self._is_rising else self._keep(now_s)
        self._refusals.append(self._calls)
        missed = int(min(retry_after_s, self.rate.window_s) * per_second(self.rate))
        for _ in range(min(missed, _CLOSE)):
            self._calls += 1
            self._refusals.append(self._calls)
        return self._suffer(now_s, is_deaf=is_deaf)

    def _keep(self, now_s: float) -> Word:
        """A call was admitted outside a climb."""
        calls, lasted_s = self._calls - self._since, now_s - self._slowest_s - self._since_s
        if self._more:
            if calls >= _WATCHED_DUE / self._more and lasted_s >= _WATCHED * self.held.window_s:
                self.held, self._more, self._cost = self.rate, 0.0, 0
        elif not self.is_proven:
            self.is_proven = calls >= 20 and lasted_s >= self.held.window_s
        elif self._calls - self._climbed >= max(_SOON, min(_PAUSE * self._cost, _LONGEST_PAUSE)):
            self._climbed = self._calls
            if self._is_wanted(now_s):
                self._cost //= 2
                self._extra, self._is_rising = 0.0, True
                return self._change(now_s, self._step())
            self._since_s, self._since = now_s, self._calls
        return Word.KEEP

    def _suffer(self, now_s: float, *, is_deaf: bool) -> Word:
        """A refusal. is_deaf: the rate before may be the reason."""
        close = sum(number > self._calls - _CLOSE for number in self._refusals)
        if self._more and (self._is_rising or close > 1 or not is_deaf):
            return self._fall(now_s)
        if close >= (_LOST if self.is_proven else _LOST_UNPROVEN):
            # Calls that were few in a window say less.
            soon_s = max(4 * self.held.window_s, _FORGOTTEN_BLOCK / per_second(self.held))
            is_again = now_s - self._blocked_s < soon_s
            if not self.is_proven or (is_again and not is_deaf):
                return Word.LOST
            # Others may have used the limit up for a moment; and a fixed window that a climb has
            # filled early admits nothing until it ends.
            self._blocked_s = now_s
            self._refusals.clear()
            return Word.BLOCKED
        return Word.KEEP if is_deaf else self._trim(now_s, is_first=close == 1)

    def _trim(self, now_s: float, *, is_first: bool) -> Word:
        """A little less, by the share that is refused; a whole call a window where that fits.

        is_first: no refusal was shortly before this one.
        """
        while self._calls - self._refusals[0] > _FORGOTTEN:
            self._refusals.popleft()
        spanned = self._calls - self._refusals[0]
        if spanned < (_CLOSE if is_first else 3 * _CLOSE):
            return Word.KEEP
        # A window that is one call too small refuses once in all its calls.
        refused, raw = len(self._refusals) - 1, (len(self._refusals) - 1) / spanned
        self._refusals.clear()
        share = refused / max(spanned, self.held.count)
        if raw <= self._borne:
            return Word.KEEP
        kept = per_second(self.held) / per_second(self._best)
        if kept >= 1:
            self._best, self._first_share = self.held, raw
        elif kept < _LEAST_SHARE and raw > _AS_MANY * self._first_share:
            self.held, self._borne = self._best, _BORNE * raw
            return self._change(now_s)
        share = min(max(share, _LEAST_TRIM), _MOST_TRIM)
        step = self._step()
        if share >= 0.4 * step:
            share = step * max(1, round(share / step))
        self.held = scaled(self.held, 1 - share)
        return self._change(now_s)

    def _step(self) -> float:
        """The least change worth trying: a call a window, as a share of the rate."""
        return 0.05 if self.held.count < 10 else max(1 / self.held.count, 0.001)

    def _is_wanted(self, now_s: float) -> bool:
        """The caller has used the rate since the last change, so that it would use more, too."""
        allowed = (now_s - self._slowest_s - self._since_s) * self.rate.count / self.rate.window_s
        return self._calls - self._since >= 0.8 * allowed - 1

    def _climb(self, now_s: float, sent_s: float) -> Word:
        """Goes on to the next level where this one has passed."""
        per_s = per_second(self.held)
        lasted_s = min(sent_s, now_s - self._slowest_s) - self._since_s
        if lasted_s < max(self.held.window_s, max(_DUE / self._more, _CLOSE) / per_s):
            return Word.KEEP
        if not self._is_wanted(now_s):
            self._is_rising = False
            return self._change(now_s)
        extra = self._extra + lasted_s * self._more * per_s
        higher = 2 * self._more + self._step()
        if higher > _HIGHEST:
            if extra < 1.2 * self._burst:
                return Word.KEEP
            # No bucket had saved so much.
            self._burst, extra, higher = 0, 0.0, self._more
            self.held, self._cost = self.rate, 0
        self._extra = extra
        return self._change(now_s, higher)

    def _fall(self, now_s: float) -> Word:
        """A level has met a refusal: the one before is watched, if there was one."""
        self._is_rising = False
        passed = (self._more - self._step()) / 2
        if passed > 1e-9:
            return self._change(now_s, passed)
        return self._change(now_s)

    def _change(self, now_s: float, more: float = 0.0) -> Word:
        """The rate is `more` above what is held from now on."""
        self._more = more
        self.rate = scaled(self.held, 1 + more)
        self._since_s, self._since = now_s, self._calls
        self._refusals.clear()
        return Word.CHANGED


def scaled(rate: Rate, factor: float) -> Rate:
    """`factor` times the rate: in the same window where that is a whole number of calls."""
    count = round(rate.count * factor)
    if count >= 1 and abs(count - rate.count * factor) < 1e-6 * count:
        return Rate(count, rate.window_s)
    return Rate(rate.count, rate.window_s / factor)


def per_second(rate: Rate) -> float:
    """Calls a second, with the least that a network needs between two windows."""
    return rate.count / (rate.window_s + _GUARD_S)
