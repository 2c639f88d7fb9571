"""Finds the steady windows of a run, and the rate of answers in them.

If calls take many seconds, one second may bring no answer, and another the answers to all calls
that were sent together. Therefore the rate of answers comes from Little's law (A Proof for the
Queuing Formula L = lambda W, Operations Research 9, 1961): calls in flight divided by mean latency.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec

from redline.timeline import Sketch, Window, errors_of, merged

# A window is steady if, for a time before it, the number of calls in flight stayed within this
# factor of the window's own. The time is this quantile of its latencies, but at least _LEAST_S.
_SAME = math.log(1.25)
_MOST_CALLS = 0.9
_LEAST_S = 1.0
# A steady window has at most this share of failed attempts, and of samples in which no call could
# be sent.
_MOST_FAILED = _MOST_IDLE = 0.1
_IDLE = ("parked", "down", "backoff", "rest", "batch")
# Windows whose calls in flight are within this factor form one level, if they have enough answers.
_LEVEL = 1.15
_LEAST_ANSWERS = 10
# The smallest standard error of a rate from Little's law: the calls in flight are only sampled, and
# latencies are exact to one per cent.
_LEAST_ERROR = 0.01


class Level(msgspec.Struct, frozen=True, kw_only=True):
    """The endpoint's rate of answers with this number of calls in flight.

    in_flight: the mean number. per_s: answers per second. error: the standard error of the
    logarithm of `per_s`.
    """

    in_flight: float
    per_s: float
    error: float


def steady(windows: Sequence[Window]) -> list[Window]:
    """Returns the steady windows of one run, in order."""
    return [window for index, window in enumerate(windows) if _is_steady(windows, index)]


def level_of(windows: Sequence[Window]) -> Level | None:
    """Returns these windows as one level; None if there are too few answers."""
    if not windows:
        return None
    whole = merged(windows)
    answers = whole.latency.count
    if answers < _LEAST_ANSWERS or whole.in_flight <= 0:
        return None
    mean_s, deviation_s = _mean_s(whole.latency)
    if mean_s <= 0:
        return None
    return Level(
        in_flight=whole.in_flight,
        # Some of the calls in flight will end with an error instead of an answer.
        per_s=whole.in_flight / mean_s * (1.0 - _failed(whole)),
        error=math.hypot(_LEAST_ERROR, deviation_s / mean_s / math.sqrt(answers)),
    )


def levels_of(runs: Iterable[Sequence[Window]]) -> list[Level]:
    """Returns the levels at which runs were steady, ascending. runs: the windows of each run."""
    found = sorted((one for run in runs for one in steady(run)), key=lambda one: one.in_flight)
    groups: list[list[Window]] = []
    for window in found:
        if groups and window.in_flight <= _LEVEL * groups[-1][0].in_flight:
            groups[-1].append(window)
        else:
            groups.append([window])
    levels = map(level_of, groups)
    return [level for level in levels if level is not None]


def is_alike(one: Window, other: Window) -> bool:
    """Whether about the same number of calls is in flight in both windows; both must have some."""
    return abs(math.log(one.in_flight / other.in_flight)) <= _SAME


def _is_steady(windows: Sequence[Window], index: int) -> bool:
    window = windows[index]
    if not window.samples or window.in_flight <= 0 or _failed(window) > _MOST_FAILED:
        return False
    idle = sum(count for held, count in window.held.items() if held in _IDLE)
    if idle > _MOST_IDLE * window.samples:
        return False
    longest_s = max(_LEAST_S, window.latency.quantile_s(_MOST_CALLS) or 0.0)
    since_s = window.begin_s - longest_s
    for at in range(index - 1, -1, -1):
        before = windows[at]
        if not before.samples or before.in_flight <= 0 or not is_alike(before, window):
            return False
        if before.begin_s <= since_s:
            return True
    return False


def _failed(window: Window) -> float:
    """Returns the share of attempts that ended with an error, 0 to 1."""
    failed = errors_of([window]).total()
    return failed / max(1, failed + window.answered)


def _mean_s(sketch: Sketch) -> tuple[float, float]:
    """Returns the mean and the standard deviation in seconds; the sketch must not be empty."""
    count = sketch.count
    mean_s = sum(value_s * each for value_s, each in sketch.values_s()) / count
    square = sum((value_s - mean_s) ** 2 * each for value_s, each in sketch.values_s()) / count
    return mean_s, math.sqrt(square)
