"""The steady windows of a run, and its rate of answers in them.

With calls of many seconds, a second may contain no answer, or the answers to all calls that were
sent together. Therefore the rate of answers comes from Little's law (A Proof for the Queuing
Formula L = lambda W, Operations Research 9, 1961): calls in flight divided by the mean latency.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec

from redline.timeline import Sketch, Window, errors_of, merged

# A window is steady if the number of calls in flight was equal within this factor for as long
# before it as most calls take.
_SAME = math.log(1.25)
_MOST_CALLS = 0.9
_LEAST_S = 1.0
# Maximum shares of failed attempts, and of samples in which no call could be sent.
_MOST_FAILED = _MOST_IDLE = 0.1
_IDLE = ("parked", "down", "backoff", "rest", "batch")
# Windows whose calls in flight differ by less than this factor are one level.
_LEVEL = 1.15
_LEAST_ANSWERS = 10
# Least standard error of a rate by Little's law: mean calls in flight are sampled, and latencies
# are exact to one per cent.
_LEAST_ERROR = 0.01


class Level(msgspec.Struct, frozen=True, kw_only=True):
    """The rate of the endpoint's answers at this number of calls in flight.

    in_flight: the mean. per_s: answers per second. error: standard error of its logarithm.
    """

    in_flight: float
    per_s: float
    error: float


def steady(windows: Sequence[Window]) -> list[Window]:
    """The steady windows of one run, in order."""
    return [window for index, window in enumerate(windows) if _is_steady(windows, index)]


def level_of(windows: Sequence[Window]) -> Level | None:
    """These windows as one level; None if there are too few answers."""
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
        # Some of the calls in flight end with an error.
        per_s=whole.in_flight / mean_s * (1.0 - _failed(whole)),
        error=math.hypot(_LEAST_ERROR, deviation_s / mean_s / math.sqrt(answers)),
    )


def levels_of(runs: Iterable[Sequence[Window]]) -> list[Level]:
    """The levels at which runs were steady, ascending. runs: the windows of each."""
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
    """Whether about as many calls are in flight in both; each must have some."""
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
    """The share of attempts that ended with an error."""
    failed = errors_of([window]).total()
    return failed / max(1, failed + window.answered)


def _mean_s(sketch: Sketch) -> tuple[float, float]:
    """Mean and standard deviation, in seconds; the sketch is not empty."""
    count = sketch.count
    mean_s = sum(value_s * each for value_s, each in sketch.values_s()) / count
    square = sum((value_s - mean_s) ** 2 * each for value_s, each in sketch.values_s()) / count
    return mean_s, math.sqrt(square)
