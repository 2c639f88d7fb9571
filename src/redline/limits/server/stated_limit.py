"""Parses one limit as a server states it: its counts, its times, and its window."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache

import msgspec

from redline.limits.rule import KINDS, MAX_COUNT, Kind

# No rate has a longer window (see Rate), so a later reset is a mistake in the header.
_LONGEST_S = 31 * 86_400.0
# A bare number from this one on is a time since 1970, not a duration; 1e8 s are three years.
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
# The usual windows of providers' limits, in seconds; a refill time within this share matches.
_USUAL_S = (1.0, 10.0, 60.0, 3600.0, 86_400.0)
_NEAR = 0.15
# In APIs that state no window, a limit is per minute.
_DEFAULT_WINDOW_S = 60.0
# Among this many resets, one is probably close to the whole window.
_MANY_LOOKS = 8
# A reset that is within this share of a whole window was stated at its beginning.
_EARLY = 0.01


class Stated(msgspec.Struct, frozen=True):
    """One limit as a server states it. None means not stated.

    limit: per window, 1 to 10^12. remaining: 0 or more. reset_s: seconds from now until the limit
    is fully available again; 0 for a past time. window_s: from a header, or from the provider's
    documentation. name: of its policy, or the part that its headers share; "" if neither exists.
    """

    kind: Kind
    limit: int | None = None
    remaining: int | None = None
    reset_s: float | None = None
    window_s: float | None = None
    name: str = ""


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
    """Returns a count of 1 to 10^12; None for 0, by which some gateways mean "not enforced"."""
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


def server_wall_s(headers: Mapping[str, str], wall_s: float) -> float:
    """Returns the time of the server's clock when it answered, to compare its times with.

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
    """Guesses a limit's window from its resets over time. since_s: when the guess last changed."""

    since_s: float
    _longest_s: float = 0.0
    _looks: int = 0

    def revised_s(self, window_s: float, reset_s: float, now_s: float, *, is_window: bool) -> float:
        """Returns the window that is likely by now, in seconds. window_s: the guess so far.

        is_window: whether the limit has turned out not to refill steadily as a bucket does.
        """
        self._longest_s = max(self._longest_s, reset_s)
        self._looks += 1
        revised_s = window_s
        # A sliding-window counter is full again after two windows.
        if reset_s > 2 * window_s + 1:
            revised_s = _usual_s(reset_s / 2)
        elif is_window and self._longest_s > 0:
            # At first the limit was taken for a bucket, whose resets are shorter than its window.
            # Among many resets of a real window, which has restarted, the longest shows its length.
            shorter_s = _usual_s(self._longest_s)
            lasts_s = 2 * shorter_s if self._looks >= _MANY_LOOKS else window_s
            if now_s >= self.since_s + lasts_s:
                revised_s = min(window_s, shorter_s)
        if revised_s != window_s:
            self.since_s, self._longest_s, self._looks = now_s, 0.0, 0
        return revised_s


def window_s_of(one: Stated) -> float:
    """Returns the window of a limit: the stated one, or a guess from the time until it is full.

    A bucket is full again after (limit - remaining) x W / limit seconds, a window at its end at the
    latest. A usual W for which a bucket explains the reset is returned if it is at most a minute,
    or if no usual window has just begun; otherwise the shortest usual window that explains the
    reset: if that is too short, calls are sent too fast, and the reset soon grows.
    """
    if one.window_s is not None:
        return one.window_s
    if one.limit and one.reset_s and one.remaining is not None and one.remaining < one.limit:
        refill_s = one.reset_s * one.limit / (one.limit - one.remaining)
        steady = [usual_s for usual_s in _USUAL_S if abs(refill_s - usual_s) <= _NEAR * usual_s]
        # Resets in whole seconds are rounded up. A reset that is stated late in a long window seems
        # to be that of a short window, until the next window corrects the guess.
        shortest_s = _usual_s(one.reset_s)
        is_begun = one.reset_s >= shortest_s * (1 - _EARLY)
        if steady and (steady[0] <= _DEFAULT_WINDOW_S or not is_begun):
            return steady[0]
        return shortest_s
    return _DEFAULT_WINDOW_S


def _usual_s(reset_s: float) -> float:
    """Returns the shortest usual window that may reset after reset_s, rounded up to seconds."""
    return next((usual_s for usual_s in _USUAL_S if usual_s >= reset_s - 1), reset_s)
