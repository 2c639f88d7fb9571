"""One limit as a server states it: its counts, its times, and its window."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache

import msgspec

from redline.limits.rule import KINDS, MAX_COUNT, Kind

# No rate has a longer window (see Rate), so that a later reset is a mistake in the header.
_LONGEST_S = 31 * 86_400.0
# A bare number from here on is a moment since 1970, not a duration; 1e8 s are three years.
_FIRST_MOMENT_S = 1e8
# A moment in seconds stays below this until the year 5138: a larger one counts milliseconds.
_FIRST_MOMENT_MS = 1e11
# A Date counts whole seconds and travels; one further from our clock shows that the clocks differ.
_SAME_CLOCK_S = 3.0
# The longest known text of a time has 32 characters. The bound limits the cache as well.
_LONGEST_TIME = 64

# What limits count, as most servers write it: `input-tokens`.
WRITTEN_KINDS: dict[str, Kind] = {kind.replace("_", "-"): kind for kind in KINDS}

_NUMBER = r"([0-9]+(?:\.[0-9]+)?)"
_DURATION = re.compile(
    rf"(?:{_NUMBER}d)?(?:{_NUMBER}h)?(?:{_NUMBER}m(?!s))?(?:{_NUMBER}s)?(?:{_NUMBER}ms)?"
)
# The windows that providers state their limits for.
_USUAL_S = (1.0, 10.0, 60.0, 3600.0, 86_400.0)
_NEAR = 0.15
# In APIs that state no window, a limit refers to a minute.
_DEFAULT_WINDOW_S = 60.0
# Of this many resets, one is close to the whole window.
_MANY_LOOKS = 8
# A reset that is this near to a whole window was stated at its beginning.
_EARLY = 0.01


class Stated(msgspec.Struct, frozen=True):
    """One limit as a server states it. None means not stated.

    limit: per window, 1 to 10^12. remaining: 0 or more. reset_s: seconds from now until the limit
    is full again, 0 for a past time. window_s: stated by the header, or documented. name: of its
    policy, or what its headers share; empty if it has none.
    """

    kind: Kind
    limit: int | None = None
    remaining: int | None = None
    reset_s: float | None = None
    window_s: float | None = None
    name: str = ""


def read_count(text: str | None) -> int | None:
    """A count of 0 to 10^12; None for anything else, such as the `-1` of an unknown limit.

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
    """A finite number, 0 or more; None for anything else."""
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if 0 <= number < math.inf else None


@lru_cache(maxsize=256)  # a limit stays the same from reply to reply
def read_limit(text: str | None) -> int | None:
    """A count of 1 to 10^12; None for 0, by which some gateways mean `unenforced`."""
    return read_count(text) or None


def read_window_s(text: str | None) -> float | None:
    """A window's length above 0 s and up to 31 days, from a bare number of seconds."""
    count = read_count(text)
    return float(count) if count and count <= _LONGEST_S else None


def read_reset_s(text: str | None, wall_s: float) -> float | None:
    """Seconds from `wall_s` until the time in the text, 0 for a past one, at most 31 days.

    The text is a bare number of seconds (`12`, `33011.38`), a duration as Go writes it (`6m0s`),
    seconds or milliseconds since 1970, or RFC 3339; None for anything else.
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
    """The time by the server's clock when it answered, with which its moments are compared.

    headers: looked up in lower case. wall_s: ours, which may be wrong. Returned if it agrees with
    `Date`, which is in whole seconds.
    """
    date_s = read_date_s(headers.get("date"))
    return wall_s if date_s is None or abs(date_s - wall_s) <= _SAME_CLOCK_S else date_s


@lru_cache(maxsize=16)  # it changes once a second
def read_date_s(text: str | None) -> float | None:
    """Seconds since 1970 of an HTTP date; None for anything else."""
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
    """Seconds from `114ms`, `1.5s`, `6m0s` or `24h0m0s`; None for anything else."""
    found = _DURATION.fullmatch(text)
    if found is None or not text:
        return None
    days, hours, minutes, seconds, millis = map(float, found.groups("0"))
    return seconds + millis / 1000 + 60 * minutes + 3600 * hours + 86_400 * days


@lru_cache(maxsize=1024)  # a server repeats its resets, and reading one costs ten look-ups
def _time_s(text: str) -> float | None:
    """A span below `_FIRST_MOMENT_S`, or a moment since 1970 from there on."""
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
        # A zone may lead out of the years 1 to 9999.
        return None


class WindowGuess(msgspec.Struct):
    """The resets of one limit over time. since_s: when its window was last guessed."""

    since_s: float
    _longest_s: float = 0.0
    _looks: int = 0

    def revised_s(self, window_s: float, reset_s: float, now_s: float, *, is_window: bool) -> float:
        """The window that is likely by now. window_s: the guess so far.

        is_window: the limit has turned out not to refill steadily as a bucket does.
        """
        self._longest_s = max(self._longest_s, reset_s)
        self._looks += 1
        revised_s = window_s
        # A sliding-window counter is full again after two windows.
        if reset_s > 2 * window_s + 1:
            revised_s = _usual_s(reset_s / 2)
        elif is_window and self._longest_s > 0:
            # It was taken for a bucket at first, whose resets are shorter than its window. Among
            # many resets of a real window, the longest shows its length, since it has restarted.
            shorter_s = _usual_s(self._longest_s)
            lasts_s = 2 * shorter_s if self._looks >= _MANY_LOOKS else window_s
            if now_s >= self.since_s + lasts_s:
                revised_s = min(window_s, shorter_s)
        if revised_s != window_s:
            self.since_s, self._longest_s, self._looks = now_s, 0.0, 0
        return revised_s


def window_s_of(one: Stated) -> float:
    """The window of a limit that the server states: explicitly, or by the time it takes to refill.

    A bucket is full again after (limit - remaining) x W / limit; a window, at its end at most. If
    both explain the reset, a minute, otherwise the shorter: if that is too short, calls are sent
    too fast, and the reset soon grows.
    """
    if one.window_s is not None:
        return one.window_s
    if one.limit and one.reset_s and one.remaining is not None and one.remaining < one.limit:
        refill_s = one.reset_s * one.limit / (one.limit - one.remaining)
        steady = [usual_s for usual_s in _USUAL_S if abs(refill_s - usual_s) <= _NEAR * usual_s]
        # Resets in whole seconds are rounded up. One that is stated late in a long window reads as
        # a short one, until the next window corrects it.
        shortest_s = _usual_s(one.reset_s)
        is_begun = one.reset_s >= shortest_s * (1 - _EARLY)
        if steady and (steady[0] <= _DEFAULT_WINDOW_S or not is_begun):
            return steady[0]
        return shortest_s
    return _DEFAULT_WINDOW_S


def _usual_s(reset_s: float) -> float:
    """The shortest usual window that may reset after reset_s, which some round up to seconds."""
    return next((usual_s for usual_s in _USUAL_S if usual_s >= reset_s - 1), reset_s)
