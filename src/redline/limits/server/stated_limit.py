"""Parses one limit as a server states it: its counts, its times, and its window."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache

import msgspec

from redline.limits.rule import KINDS, MAX_COUNT, Kind

# No rate has a longer window (see Rate), so a later reset is a mistake in the header.
_LONGEST_S = 31 * 86_400.0
# A bare number from this one on is a time since 1970, not a duration; 1e8 s is three years.
_FIRST_MOMENT_S = 1e8
# Until the year 5138, a time in seconds is below this: a larger number is in milliseconds.
_FIRST_MOMENT_MS = 1e11
# A Date is in whole seconds and arrives late: the clocks count as different only if it is more than
# this many seconds from the local time.
_SAME_CLOCK_S = 3.0
# The longest known text of a time has 32 characters. The bound also limits the cache.
_LONGEST_TIME = 64

# The kinds of limits as most servers write them, such as `input-tokens`.
WRITTEN_KINDS: dict[str, Kind] = {kind.replace("_", "-"): kind for kind in KINDS}

_NUMBER = r"([0-9]+(?:\.[0-9]+)?)"
_DURATION = re.compile(
    rf"(?:{_NUMBER}d)?(?:{_NUMBER}h)?(?:{_NUMBER}m(?!s))?(?:{_NUMBER}s)?(?:{_NUMBER}ms)?"
)
# Windows that people set, in seconds, and the likely ones among them: a limit is taken for one of
# these until the server's counts show another. A refill time within the share `_NEAR` of one
# matches it.
_USUAL_S = (
    *(1.0, 2.0, 5.0, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 900.0, 1800.0, 3600.0),
    *(7200.0, 21_600.0, 43_200.0, 86_400.0),
)
_LIKELY_S = (1.0, 10.0, 60.0, 3600.0, 86_400.0)
_NEAR = 0.15
# In APIs that state no window, a limit is per minute.
_DEFAULT_WINDOW_S = 60.0
# A reset that is within this share of a whole window was stated at the window's beginning.
_EARLY = 0.01
# If at most this share of a limit is used, a window that was guessed too short shows in time.
_LITTLE = 0.25
# A measured window within this share of a usual one is that one.
_SAME = 0.03
# Counts are compared at most about this many times among the sends of one window.
_LOOKS = 64
# A round takes at least _LEAST_LOOKS looks and, unless the limit is known to count in windows, at
# least 1 / _TRIAL of a window.
_LEAST_LOOKS, _TRIAL = 4, 8
# A shorter window is tried only if the limit has at least this count, if at most this share of it
# is used, and if the window is at least this many times as long as counts take to become known.
_LEAST_TRIED, _FREE, _DELAYS = 8, 0.4, 4
# A trial fails if the count grows by this much more than the pace.
_MORE = 1.1
# Calls overtake each other, so counts may differ by this much from those of a bucket, and a bucket
# may seem to refill this many times as fast at one time as at another.
_BLUR, _STEEPER = 4, 1.5


class Stated(msgspec.Struct, frozen=True):
    """One limit as a server states it. None means not stated.

    limit: per window, 1 to 10^12. remaining: 0 or more. reset_s: seconds from now until the limit
    is fully available again; 0 for a past time. window_s: from a header, or from the provider's
    documentation. name: of its policy, or the part that its header names share; "" if neither
    exists. late_s: by how much reset_s may be too long. is_assumed: window_s is the usual one of
    this API, so the server may mean another.
    """

    kind: Kind
    limit: int | None = None
    remaining: int | None = None
    reset_s: float | None = None
    window_s: float | None = None
    name: str = ""
    late_s: float = 0.0
    is_assumed: bool = False


def read_count(text: str | None) -> int | None:
    """Returns a count of 0 to 10^12; None for anything else, such as `-1` for an unknown limit.

    A fraction is dropped.
    """
    if text is None:
        return None
    try:
        count = int(text)
    except ValueError:
        try:
            count = int(float(text))
        except (ValueError, OverflowError):
            return None
    return count if 0 <= count <= MAX_COUNT else None


def read_number(text: str | None) -> float | None:
    """Returns a finite number, 0 or more; None for anything else."""
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if 0 <= number < math.inf else None


@lru_cache(maxsize=256)  # a limit rarely changes between replies
def read_limit(text: str | None) -> int | None:
    """Returns a count of 1 to 10^12; None for anything else.

    0 is no limit: by 0, some gateways mean "not enforced".
    """
    return read_count(text) or None


def read_window_s(text: str | None) -> float | None:
    """Returns a window's length from a bare number of seconds, up to 31 days; otherwise None."""
    count = read_count(text)
    return float(count) if count and count <= _LONGEST_S else None


def read_reset_s(text: str | None, wall_s: float) -> float | None:
    """Returns the seconds from `wall_s` until the time in the text: 0 for a past time.

    The text is a bare number of seconds (`12`, `33011.38`), a duration as Go writes it (`6m0s`),
    seconds or milliseconds since 1970, or an RFC 3339 time. None for anything else, and above 31
    days.
    """
    if text is None or len(text) > _LONGEST_TIME:
        return None
    time_s = _time_s(text)
    if time_s is None:
        return None
    if time_s >= _FIRST_MOMENT_S:
        time_s = max(0.0, time_s - wall_s)
    return time_s if time_s <= _LONGEST_S else None


def lateness_s(text: str | None) -> float:
    """Returns by how many seconds a reset may be stated too late.

    That is 1 for a time since 1970, because slowapi adds a second; otherwise 0.
    """
    moment_s = None if text is None or len(text) > _LONGEST_TIME else _time_s(text)
    return 0.0 if moment_s is None or moment_s < _FIRST_MOMENT_S else 1.0


def server_wall_s(headers: Mapping[str, str], wall_s: float) -> float:
    """Returns the server's time when it answered, the reference for the times that it states.

    headers: looked up in lower case. wall_s: the local time, which may be wrong; it is returned if
    it agrees with `Date`, which is in whole seconds, or if there is no `Date`.
    """
    date_s = read_date_s(headers.get("date"))
    return wall_s if date_s is None or abs(date_s - wall_s) <= _SAME_CLOCK_S else date_s


@lru_cache(maxsize=16)  # a Date changes once a second
def read_date_s(text: str | None) -> float | None:
    """Returns the seconds since 1970 of an HTTP date; None for anything else."""
    # Imported here: `import redline` reads this file.
    from email.utils import parsedate_to_datetime

    try:
        date = parsedate_to_datetime(text or "")
    except (ValueError, OverflowError):
        return None
    if date.tzinfo is None:
        # The old asctime form names no zone; an HTTP date is always UTC (RFC 9110, 5.6.7).
        date = date.replace(tzinfo=UTC)
    return date.timestamp()


def read_duration_s(text: str) -> float | None:
    """Returns the seconds of a text like `114ms`, `1.5s` or `24h0m0s`; None for anything else."""
    found = _DURATION.fullmatch(text)
    if found is None or not text:
        return None
    days, hours, minutes, seconds, millis = map(float, found.groups("0"))
    return seconds + millis / 1000 + 60 * minutes + 3600 * hours + 86_400 * days


@lru_cache(maxsize=1024)  # a server repeats its resets; parsing one takes as long as ten look-ups
def _time_s(text: str) -> float | None:
    """Returns seconds: a duration below `_FIRST_MOMENT_S`, or a time since 1970 from there on."""
    duration_s = read_duration_s(text)
    if duration_s is not None:
        return duration_s if duration_s < _FIRST_MOMENT_S else None
    number = read_number(text)
    if number is None:
        return _moment_s(text)
    return number if number < _FIRST_MOMENT_MS else number / 1000


def _moment_s(text: str) -> float | None:
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return max(_FIRST_MOMENT_S, moment.timestamp())
    except (ValueError, OverflowError):
        # The zone may move the time out of the years 1 to 9999.
        return None


class WindowGuess(msgspec.Struct):
    """Measures a window that no header states, by what the server counts.

    A server that counts in windows counts the sends of one window, so the age of the oldest send
    that it counts shows the window's length; its resets are hardly longer. At an even pace, a
    bucket looks like a very short window. So unless the limit is known not to be a bucket, a
    shorter window is tried: the count of a window then rises in proportion to the pace, while that
    of a bucket keeps rising, and the trial ends.

    since_s: when the present round of observations began. kind: only counts of requests are exact
    enough for trials. The fields from `_looks` to `_delay_s` describe the round.
    """

    since_s: float
    kind: Kind
    _looked_s: float = -math.inf  # the time of the call whose answer was examined last
    _skipped: int = 0  # the amount of the answered calls since then
    _others: int = 0  # see `seen`
    _looks: int = 0
    _most: int = 0  # the largest count
    _most_s: float = 0.0  # when it was reached
    _young_s: float = 0.0  # the window is at least this long
    _old_s: float = 0.0  # a window is at most this long; 0 if unknown
    _reset_s: float = 0.0  # the longest reset
    _excess_s: float = 0.0  # the most by which a reset exceeded that of a bucket
    _delay_s: float = 0.0  # the longest time until a count was known
    _safe_s: float = 0.0  # the window before a trial; 0 without one
    _safe_most: int = 0  # the largest count in the last round
    _failed_s: float = 0.0  # the window of a trial that drained a bucket
    _is_window: bool = False  # whether the limit is known not to be a bucket
    _refill: _Refill = msgspec.field(default_factory=lambda: _Refill())

    def is_due(self, sent_s: float, amount: int, held: int) -> bool:
        """Whether the answer to a call of `amount` sent at `sent_s` must be passed to `seen`.

        held: the amount sent within the last window, to which the time of a comparison is
        proportional.
        """
        if sent_s < max(self.since_s, self._looked_s):
            return False
        self._skipped += amount
        return self._skipped * _LOOKS > held

    @property
    def is_trying(self) -> bool:
        """Whether a shorter window is being tried, so that a bucket may be drained."""
        return self._safe_s > 0

    def seen(
        self,
        window_s: float,
        one: Stated,
        sends: Sequence[tuple[float, int]],
        others: int,
        now_s: float,
    ) -> float:
        """Returns the window to use from now on, in seconds. window_s: the one in use.

        sends: those up to the answered call, as (time, amount), oldest first. others: how much of
        their total was other clients'.
        """
        assert one.limit is not None
        assert one.remaining is not None
        used, reset_s = max(0, one.limit - one.remaining), one.reset_s or 0.0
        # A sliding-window counter is full again after two windows.
        windows = 2 if self._is_window or one.is_assumed else 1
        if reset_s - one.late_s > windows * window_s + min(1.0, window_s / 2):
            return self._next_round(now_s, _usual_s(reset_s / windows))
        if not sends:
            return window_s  # under the profile `bucket`, none are kept
        self._look(used, reset_s, sends, others, now_s)
        full_s = used * window_s / one.limit
        self._excess_s = max(self._excess_s, reset_s - one.late_s - full_s)
        if self._safe_s and used > _MORE * self._safe_s / window_s * self._safe_most + 2:
            # More than a window would count: a bucket is being drained.
            self._failed_s, self._safe_most = window_s, self._most
            return self._next_round(now_s, self._safe_s)
        lasts_s = self._young_s + max(self._young_s, self._reset_s - 1)
        if not self._is_window:
            lasts_s = max(lasts_s, window_s / _TRIAL, 2 * (self._most_s - self.since_s))
        if self._looks < _LEAST_LOOKS or self._looked_s - self.since_s < lasts_s:
            return window_s
        is_scaled = self._safe_s > 0 and self._most >= max(4, 1.3 * self._safe_most)
        self._is_window |= is_scaled or self._excess_s > 1.0
        revised_s, is_trial = self._revised_s(window_s, one.limit)
        self._safe_most = self._most
        return self._next_round(now_s, revised_s, window_s if is_trial else 0.0)

    def _look(
        self,
        used: int,
        reset_s: float,
        sends: Sequence[tuple[float, int]],
        others: int,
        now_s: float,
    ) -> None:
        """Compares the server's count with what was sent."""
        at_s = sends[-1][0]
        if self.kind == "requests":
            sent = sum(amount for sent_s, amount in sends if sent_s > self._looked_s)
            self._is_window |= self._refill.is_uneven(used, sent - others + self._others, at_s)
        self._looked_s, self._others = at_s, others
        left, older = used, 2
        for sent_s, amount in reversed(sends):
            if left > 0:
                self._young_s = max(self._young_s, at_s - sent_s)
                left -= amount
            else:
                # One more, because the window may just have begun.
                older -= 1
                if not older:
                    self._old_s = max(self._old_s, at_s - sent_s)
                    break
        self._skipped = 0
        self._looks += 1
        if used > self._most:
            self._most, self._most_s = used, at_s
        self._reset_s = max(self._reset_s, reset_s)
        self._delay_s = max(self._delay_s, now_s - at_s)

    def _revised_s(self, window_s: float, limit: int) -> tuple[float, bool]:
        """Returns the window after a round at the pace of `window_s`, and whether it is a trial."""
        least_s = self._young_s * (1 - _SAME)
        most_s = min(self._old_s or math.inf, self._reset_s or math.inf) * (1 + _SAME)
        # Rejected calls, which the server does not count, would make the window seem shorter, as
        # would slow answers, because only the sends of the last window are known.
        is_unsure = self._most >= limit or 2 * self._delay_s > window_s
        if least_s <= window_s <= most_s or is_unsure:
            return window_s, False
        fits = [usual_s for usual_s in _USUAL_S if least_s <= usual_s <= most_s]
        measured_s = max(fits, default=_usual_s(least_s))
        if measured_s >= window_s or self._is_window:
            return min(measured_s, window_s), False
        steps_s = [usual_s for usual_s in _USUAL_S if usual_s < window_s * (1 - _SAME)]
        if not self._failed_s:
            steps_s = [step_s for step_s in steps_s if step_s <= window_s / 2]
        tried_s = max(measured_s, _DELAYS * self._delay_s, *steps_s[-1:])
        is_safe = limit >= _LEAST_TRIED and self._most <= limit * _FREE
        if self.kind == "requests" and is_safe and self._failed_s < tried_s < window_s:
            return tried_s, True
        return window_s, False

    def _next_round(self, now_s: float, window_s: float, safe_s: float = 0.0) -> float:
        self.since_s, self._looks, self._most = now_s, 0, 0
        self._young_s = self._old_s = self._reset_s = self._excess_s = self._delay_s = 0.0
        self._safe_s = safe_s
        return window_s


class _Refill(msgspec.Struct):
    """Detects that a limit cannot be a bucket, which refills steadily until it is full."""

    _since_s: float = math.inf
    _freed: int = 0
    _used: int = 0
    _least_per_s: float = 0.0
    _most_per_s: float = math.inf

    def is_uneven(self, used: int, sent: int, at_s: float) -> bool:
        """Whether the server's counts since the limit was full cannot be those of a bucket.

        sent: the amount since the last call of this method.
        """
        self._freed += sent - (used - self._used)
        self._used = used
        lasts_s = at_s - self._since_s
        if lasts_s > 0:
            self._least_per_s = max(self._least_per_s, (self._freed - _BLUR) / lasts_s)
        is_uneven = self._least_per_s > _STEEPER * self._most_per_s
        if used < 2 or self._freed < -_BLUR or lasts_s < 0:
            # The bucket may be full, or other clients use it.
            self._since_s, self._freed = at_s, 0
            self._least_per_s, self._most_per_s = 0.0, math.inf
        elif lasts_s > 0:
            self._most_per_s = min(self._most_per_s, (self._freed + _BLUR) / lasts_s)
        return is_uneven


def window_s_of(one: Stated) -> float:
    """Returns the window of a limit: the stated one, or a guess from the limit's reset.

    A bucket is full again after (limit - remaining) x W / limit seconds; a window is full again at
    its end at the latest. A usual W for which a bucket explains the reset is returned if it is at
    most a minute, or if no usual window has just begun; otherwise the shortest usual window that
    explains the reset: if that is too short, calls are sent too fast, and the reset soon grows.
    Without a reset, or if nothing is used, the guess is a minute.
    """
    if one.window_s is not None:
        return one.window_s
    if one.limit and one.reset_s and one.remaining is not None and one.remaining < one.limit:
        used = one.limit - one.remaining
        used_share = used / one.limit
        refill_s, reset_s = one.reset_s / used_share, one.reset_s - one.late_s
        # A bucket that lacks between one and two calls is stated to lack two.
        slowest_s = refill_s * used / (used - 1) if used > 1 else refill_s
        steady = [
            usual_s
            for usual_s in _LIKELY_S
            if refill_s <= (1 + _NEAR) * usual_s and slowest_s >= (1 - _NEAR) * usual_s
        ]
        if not steady and not one.late_s:
            if reset_s < 1 - _NEAR <= refill_s:
                # No usual window is that short, so this is a bucket.
                return min(_USUAL_S, key=lambda usual_s: abs(math.log(usual_s / refill_s)))
            if reset_s % 1 == 0:
                # The reset may have been rounded up.
                rounded = (60.0, 10.0)
                steady = [each for each in rounded if reset_s - 1 < each * used_share <= reset_s]
        # A reset that is stated late in a long window seems to be that of a short window, until the
        # next window corrects the guess.
        shortest_s = _usual_s(reset_s, _USUAL_S if used_share <= _LITTLE else _LIKELY_S)
        is_begun = reset_s >= shortest_s * (1 - _EARLY)
        if steady and (steady[0] <= _DEFAULT_WINDOW_S or not is_begun):
            return steady[0]
        return shortest_s
    return _DEFAULT_WINDOW_S


def _usual_s(reset_s: float, usual: tuple[float, ...] = _USUAL_S) -> float:
    """Returns the shortest usual window that explains reset_s; reset_s itself if none does.

    A server may have rounded reset_s up.
    """
    least_s = reset_s - min(1.0, reset_s / 10)
    return next((usual_s for usual_s in usual if usual_s >= least_s), reset_s)
