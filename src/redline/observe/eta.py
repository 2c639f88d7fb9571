"""Estimates when a run will end, from the windows of its timeline; a function without a clock.

The remaining rows are assumed to finish at the rate of the last half of the run, which ignores a
slow start and averages out chance. Rows often finish in waves, for example when a limit is used up
and then free again, or when calls were sent together; the rate is averaged over such waves. Long
standstills, in which the process was stopped, or the endpoint was down, failed or asked redline to
wait, are left out. During a standstill, the estimate keeps the value that it had when the
standstill began.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from redline.timeline import Window, merged_sketches

# The rate covers this share of the run, but at least this time and this number of rows, if the run
# has them.
_SHARE, _LEAST_S, _LEAST_ROWS = 0.5, 20.0, 100
# Shorter waves are ignored: the span averages them out anyway.
_LEAST_WAVE_S = 2.0
# The duration of calls is taken from this many of the latest windows with answers.
_CALL_WINDOWS = 5
# The smallest share of the run that the rate covers, in a run hardly longer than one wave.
_LEAST_SHARE = 0.05
# Shorter pauses are normal for some endpoints, such as one that does not report its limit per
# minute and only asks redline to wait.
_LEAST_HOLD_S = 65.0
_MAJORITY = 0.5


class Estimate(NamedTuple):
    """The estimated end of a run.

    eta_s: seconds from the end of the last window; None while unknown. is_on_hold: the run is at a
    standstill, and the estimate dates from the beginning of the standstill.
    """

    eta_s: float | None
    is_on_hold: bool


class _Point(NamedTuple):
    """The state of the run at the end of a window.

    active_s: seconds since the run began, without standstills. ended: the number of rows of this
    run that have their outcome.
    """

    active_s: float
    ended: int
    window: Window


def estimate(windows: Sequence[Window]) -> Estimate:
    """Returns the estimated end of the run, from all its windows so far, in order."""
    points, is_on_hold = _active(windows)
    return Estimate(_eta_s(points) if points else None, is_on_hold)


def _eta_s(points: Sequence[_Point]) -> float | None:
    last = points[-1]
    totals = last.window.totals
    if not totals.is_exact or not last.ended or last.window.share("batch") > _MAJORITY:
        return None
    span_s = _span_s(points)
    rows_per_s = _rows_per_s(points, span_s)
    return max(totals.left / rows_per_s, _limited_s(last, span_s)) if rows_per_s > 0 else None


def _active(windows: Sequence[Window]) -> tuple[list[_Point], bool]:
    """Returns the windows without long standstills, and whether the run is at a standstill now."""
    points, held = list[_Point](), list[Window]()
    active_s, ended = 0.0, 0
    for window in windows:
        if _is_standstill(window):
            held.append(window)
            continue
        is_pause = sum(one.span_s for one in held) < _LEAST_HOLD_S
        for each in (*held, window):
            ended += each.done + each.failed
            if is_pause or each is window:
                active_s += each.span_s
                points.append(_Point(active_s, ended, each))
        held = []
    return points, bool(held)


def _is_standstill(window: Window) -> bool:
    """Whether the process was stopped, or no call could be sent for most of the window.

    Pauses that the endpoint asks for, and waits for retries, count only if no row ended.
    """
    if not window.samples or window.stopped_s > _MAJORITY * window.span_s:
        return True
    held = window.share("down")
    if not (window.done or window.failed):
        held += window.share("parked") + window.share("backoff")
    return held > _MAJORITY


def _span_s(points: Sequence[_Point]) -> float:
    """Returns how far to look back from the last point, in seconds."""
    last = points[-1]
    enough = (one.active_s for one in reversed(points) if last.ended - one.ended >= _LEAST_ROWS)
    span_s = max(_SHARE * last.active_s, _LEAST_S, last.active_s - next(enough, 0.0))
    return min(span_s, last.active_s)


def _rows_per_s(points: Sequence[_Point], span_s: float) -> float:
    """Returns the rows per second over the span before the last point.

    If rows end in waves, this is the mean rate over all spans that end within the last wave: the
    crests and troughs of a wave then cancel out, regardless of the length of the span.
    """
    end_s = points[-1].active_s
    wave_s = _wave_s([point for point in points if point.active_s > end_s - span_s])
    if wave_s >= end_s:
        # The run is not longer than one wave: use all of it.
        wave_s, span_s = 0.0, end_s
    elif wave_s:
        span_s = min(span_s, max(end_s - wave_s, _LEAST_SHARE * end_s))
    rows = _mean_ended(points, end_s - wave_s, end_s)
    rows -= _mean_ended(points, end_s - wave_s - span_s, end_s - span_s)
    return rows / span_s


def _wave_s(lately: Sequence[_Point]) -> float:
    """Returns the length of the longest wave in which rows may end, in seconds; 0 if it is short.

    It is the window of a binding limit or the duration of the last calls, whichever is longer.
    """
    answered = [point.window.latency for point in lately if point.window.latency.pairs]
    call_s = merged_sketches(answered[-_CALL_WINDOWS:]).quantile_s(0.5) or 0.0
    samples = sum(point.window.samples for point in lately)
    held = Counter[float]()
    for point in lately:
        for use in point.window.limits:
            held[use.window_s] += use.held
    longest_s = max([call_s, *(wave_s for wave_s, count in held.items() if count > samples / 4)])
    return longest_s if longest_s >= _LEAST_WAVE_S else 0.0


def _mean_ended(points: Sequence[_Point], begin_s: float, end_s: float) -> float:
    """Returns the mean number of ended rows from begin_s to end_s, or at end_s if they are equal.

    Between two points, the number is interpolated; before the run, it is 0.
    """
    if begin_s >= end_s:
        return _ended_at(points, end_s)
    marks = [
        (begin_s, _ended_at(points, begin_s)),
        *((one.active_s, one.ended) for one in points if begin_s < one.active_s < end_s),
        (end_s, _ended_at(points, end_s)),
    ]
    area = sum((to - at) * (first + last) / 2 for (at, first), (to, last) in pairwise(marks))
    return area / (end_s - begin_s)


def _ended_at(points: Sequence[_Point], at_s: float) -> float:
    """Returns the number of rows of this run that had ended at `at_s`, interpolated."""
    place = bisect_left(points, at_s, key=lambda one: one.active_s)
    begin_s, before = (points[place - 1].active_s, points[place - 1].ended) if place else (0.0, 0)
    if place == len(points):
        return before
    after = points[place]
    share = max(0.0, at_s - begin_s) / (after.active_s - begin_s)
    return before + share * (after.ended - before)


def _limited_s(last: _Point, span_s: float) -> float:
    """Returns the seconds that the remaining rows need under limits with long windows.

    Long windows are those above `span_s`. The past does not show the effect of such a limit yet: a
    daily quota holds nothing back until it is used up.
    """
    totals, longest_s = last.window.totals, 0.0
    # The limits already count the calls in flight, whose rows have not ended.
    in_flight = last.window.in_flight
    unsent = max(0.0, totals.left - in_flight)
    per_row = {
        "requests": max(0.0, totals.attempts - in_flight),
        "tokens": totals.input_tokens + totals.output_tokens,
        "input tokens": totals.input_tokens,
        "output tokens": totals.output_tokens,
    }
    for use in last.window.limits:
        kind = use.name.partition(" ")[2]
        if use.window_s <= span_s or " at " in kind:
            continue
        spent = per_row.get(kind.partition("/")[0], 0)
        missing = unsent * spent / last.ended - max(0, use.count - use.used)
        longest_s = max(longest_s, missing / use.count * use.window_s)
    return longest_s
