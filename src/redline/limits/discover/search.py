"""Finds the request limit of a server that states none, by probing.

  phase    sends                                             until
  growing  evenly, 1.5 times as fast after every round       the first refusal
           whose rate the caller has used up
  resting  single calls, further apart after every refusal   a call is admitted
  holding  the rate that explains all verdicts (bounds.py)   the rate is lost (tracking.py)

Verdicts on calls that were sent before the last change of the rate say nothing about the new rate.
They cause no reaction, so there is at most one reaction per round trip, but they count as evidence.
Without a refusal, the rate grows as long as the caller uses it up. If it must grow again after a
refusal, each round is 1.25 times as fast as the one before.
"""

from __future__ import annotations

import math
from collections import deque

from redline.limits.discover.bounds import Bucket, Evidence, likeliest, named
from redline.limits.discover.tracking import Hold, Level, Word
from redline.limits.rule import Rate

# Slow enough for a server that allows a few calls per minute, but fast enough to grow quickly.
_FIRST_PER_S = 2.0
_FASTEST_PER_S = 100_000.0
_SLOWEST_PER_S = 1 / 3600
# The growth factor after each round, and the fewest calls in a round.
_GROWTH, _ROUND = 1.5, 2
_CAREFUL_GROWTH, _CAREFUL_ROUND = 1.25, 10
# If a bucket explains the same verdicts as a window, but the window is this many times as fast, the
# window is not assumed at once.
_MANY_TIMES = 3.0
_SHORTEST_ROUND_S, _ROUND_TRIPS = 0.25, 2.0
# After more refusals in a row than this while resting, the cause is not momentary.
_MOST_PROBES = 8
_SHORTEST_REST_S, _LONGEST_REST_S, _REST_GROWTH = 0.05, 3600.0, 1.4
# An overload counts as a refusal while at least half of the last _OVERLOADS verdicts are overloads.
# With a threshold of 3 in 10, the search kept a server that fails a tenth of its calls at random at
# a thirtieth of its rate.
_OVERLOADS = 20


class RateSearch:
    """Finds the request rate from the server's verdicts. Synchronous; the caller passes the time.

    start: the stored rate of this server, which is held at once; None if there is none. Report only
    calls of this process, with the times of their writes. One decision is made per episode of
    refusals, and takes up to about 30 ms.
    """

    def __init__(self, start: Rate | None = None) -> None:
        self._evidence = Evidence()
        self._round_trip_s = 0.0
        self._level = Level(math.inf, math.inf)  # begins with the first call
        self._per_s = _FIRST_PER_S
        self._is_careful = False  # the server has refused something
        self._rest_s: float | None = None  # between single calls, while resting
        self._hold: Hold | None = None if start is None else Hold(start, 0.0, start.count)
        self._burst = 0  # calls admitted before the first refusal
        self._probes = 0  # calls refused in this rest
        self._overloads: deque[bool] = deque(maxlen=_OVERLOADS)  # whether each was an overload
        self._refusals = 0  # times that the server was found full in this search

    @property
    def found(self) -> Rate | None:
        """The rate that the search has found; None while it continues."""
        hold = self._hold
        return hold.sure if hold is not None and hold.is_proven else None

    def rates(self) -> tuple[Rate, ...]:
        """Returns the request limits to apply now; empty if the server seems to have no limit."""
        if self._rest_s is not None:
            return (Rate(1, self._rest_s),)
        if self._hold is not None:
            return (self._hold.rate,)
        if self._per_s >= _FASTEST_PER_S:
            return ()
        count = max(1, round(self._per_s))
        return (Rate(count, count / self._per_s),)

    def sent(self, now_s: float) -> None:
        """Counts a call that was written."""
        if self._level.since_s == math.inf:
            self._change(now_s)
            if self._hold is not None:
                self._hold = Hold(self._hold.rate, now_s, self._hold.rate.count)
        self._evidence.sent(now_s)
        self._level.sent += 1
        if self._hold is not None:
            self._hold.sent()

    def answered(
        self,
        now_s: float,
        sent_s: float,
        is_limited: bool,
        retry_after_s: float | None = None,
        *,
        is_overload: bool = False,
    ) -> bool:
        """Counts the verdict on the call sent at `sent_s`; returns True if `rates` has changed.

        retry_after_s: the wait that the server asked for, if any. is_overload: whether the call
        failed in a way that counts as a refusal only among many such failures, because servers may
        fail at any rate.
        """
        self._overloads.append(is_overload)
        is_limited = is_limited or (is_overload and 2 * sum(self._overloads) >= _OVERLOADS)
        took_s, asked_s = now_s - sent_s, (retry_after_s or 0.0) if is_limited else 0.0
        self._round_trip_s += (took_s - self._round_trip_s) * (0.25 if self._round_trip_s else 1.0)
        if is_limited:
            self._evidence.refuse(sent_s)
            full_s = _surely_full_s(asked_s)
            if full_s > 0:
                self._evidence.note_full(sent_s + full_s)
        if sent_s < self._level.since_s:
            return False
        self._level.admitted += not is_limited
        if self._rest_s is not None:
            return self._rested(now_s, sent_s, is_limited, asked_s)
        if self._hold is not None:
            was_proven = self._hold.is_proven
            word = self._hold.answered(now_s, sent_s, is_limited, asked_s)
            return self._held(now_s, self._hold, word, was_proven=was_proven)
        if is_limited:
            self._rest(now_s, asked_s)
            return True
        return self._grow(now_s)

    def _grow(self, now_s: float) -> bool:
        level = self._level
        growth, least = (_CAREFUL_GROWTH, _CAREFUL_ROUND) if self._is_careful else (_GROWTH, _ROUND)
        lasts_s = max(_SHORTEST_ROUND_S, _ROUND_TRIPS * self._round_trip_s)
        if level.admitted < least or now_s - level.measured_s < lasts_s:
            return False
        if not level.was_wanted(self._per_s, now_s):
            # The caller did not use the rate up, so nothing shows that the server allows more.
            level.admitted = 0
            return False
        self._per_s = min(self._per_s * growth, _FASTEST_PER_S)
        return self._change(now_s)

    def _held(self, now_s: float, hold: Hold, word: Word, *, was_proven: bool) -> bool:
        if hold.is_proven and not was_proven:
            self._evidence.settle()
        if word is Word.LOST:
            self._lose()
        if word in (Word.LOST, Word.BLOCKED):
            self._rest(now_s, 0.0)
            return True
        if word is Word.CHANGED:
            return self._change(now_s)
        return False

    def _lose(self) -> None:
        """Gives up the held rate, which is not, or no longer, the limit."""
        if self._hold is not None:
            if self._hold.is_proven:
                self._evidence.restart(self._hold.rate.window_s)
                self._refusals = 0
            self._per_s = self._hold.rate.per_s
            self._hold = None

    def _rest(self, now_s: float, asked_s: float) -> None:
        self._refusals += 1
        self._probes = 0
        if self._burst == 0:
            self._burst = self._evidence.count(-math.inf, now_s)
        self._rest_s = max(_SHORTEST_REST_S, self._round_trip_s / 2, asked_s)
        self._change(now_s)

    def _rested(self, now_s: float, sent_s: float, is_limited: bool, asked_s: float) -> bool:
        assert self._rest_s is not None
        if is_limited:
            self._probes += 1
            if self._probes > _MOST_PROBES and self._hold is not None:
                # The cause is not momentary: the limit is a different one, or other clients use it
                # up. The refusals of such a block do not bound the rate after it.
                self._lose()
                self._evidence, self._is_careful = Evidence(), True
            longer_s = max(self._rest_s * _REST_GROWTH, asked_s)
            self._rest_s = min(longer_s, _LONGEST_REST_S)
            return self._change(now_s)
        if self._hold is None:
            self._decide(now_s, sent_s)
        else:
            self._rest_s = None
        return self._change(now_s)

    def _decide(self, now_s: float, until_s: float) -> None:
        """Chooses the next rate from all verdicts so far."""
        evidence = self._evidence
        if evidence.begins_full:
            # Calls before the search had used the limit up: these refusals do not bound it.
            self._evidence = Evidence()
            self._evidence.sent(until_s)
            self._rest_s, self._burst, self._refusals = None, 0, 0
            return
        bucket = evidence.bucket(until_s)
        windows = evidence.windows(until_s)
        window = likeliest(windows) if windows else None
        if bucket.is_narrow or (
            bucket.is_possible and (window is None or self._is_burst(window, bucket))
        ):
            rate = named(bucket) if bucket.is_narrow else None
            if rate is not None:
                self._take(rate, now_s)
                return
            # Start between the bounds of the refill; growth finds the rest.
            least_per_s = max(bucket.least_per_s, bucket.most_per_s / 4)
            self._grow_from((least_per_s * bucket.most_per_s) ** 0.5)
        elif window is not None:
            # A burst counts in a moving window until the burst is older than the window.
            wait_s = evidence.room_at_s(window, now_s) - now_s
            if wait_s > (0.05 + 1 / window.count) * window.window_s:
                self._rest_s = wait_s
            else:
                self._take(window, now_s)
        else:
            # No limit explains all verdicts: the limit has changed, other clients use it, or the
            # calls were too uneven. Later calls are judged separately, and are sent more evenly.
            average_per_s = evidence.average_per_s(until_s)
            evidence.settle()
            self._grow_from(1.25 * average_per_s)

    def _is_burst(self, window: Rate, bucket: Bucket) -> bool:
        """Returns whether a full, slow bucket is a better explanation than a fast window.

        An emptied bucket soon admits calls again, but so does a window that happens to begin then.
        Of the two explanations, the much slower one costs less if it is wrong.
        """
        is_slower = window.count > _MANY_TIMES * bucket.most_per_s * window.window_s
        evidence = self._evidence
        is_quick = evidence.longest_block_s() < 0.05 * evidence.span_s()
        return is_slower and evidence.is_first and (is_quick or self._refusals > 2)

    def _take(self, rate: Rate, now_s: float) -> None:
        self._rest_s, self._hold = None, Hold(rate, now_s, self._burst)

    def _grow_from(self, per_s: float) -> None:
        self._rest_s = None
        self._per_s = max(min(per_s, 0.8 * self._per_s), _SLOWEST_PER_S)
        self._is_careful = True

    def _change(self, now_s: float) -> bool:
        self._level = Level(now_s, now_s)
        return True


def _surely_full_s(retry_after_s: float) -> float:
    """Returns the seconds for which a server that asks for this wait certainly refuses calls.

    Whole seconds may have been rounded up. Of any other wait, up to a twentieth may have passed
    while the response was on its way.
    """
    is_whole = retry_after_s == int(retry_after_s)
    return retry_after_s - 1.0 if is_whole else 0.95 * retry_after_s
