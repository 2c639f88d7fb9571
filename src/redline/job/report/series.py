"""Reduces a job's timeline to a bounded number of points: all runs on one axis, with gaps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise

import msgspec

from redline.observe import Binding, summary_of
from redline.timeline import Timeline, Window, errors_of, merged, merged_phases

# The points of one output: a page then has at most about 300 kB of data.
MOST_POINTS = 600
# The most lines in the chart of limits, and the most kinds of errors with a line of their own.
_MOST_LINES = 6
# A phase has a line if calls spend at least this share of their time in it.
_LEAST_PHASE = 0.01
# On the axis, a pause between two runs takes at most this share of all running time.
_LONGEST_PAUSE = 0.04
# A longer time between two windows counts as a gap.
LEAST_GAP_S = 0.05
_DIGITS = 4
OTHER = "other"

Column = tuple[float | None, ...]


class LimitSeries(msgspec.Struct, frozen=True, kw_only=True):
    """The use of one rate limit. count, window_s: the limit's own.

    used: for each point, how much of `count` was in use at the end of the point; None if unknown.
    """

    name: str
    count: int
    window_s: float
    used: tuple[int | None, ...]


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """Columns of equal length, with a value for each point; None if a value is unknown.

    begin_s, end_s: seconds on the axis, where runs follow each other with shortened pauses. If a
    point begins after the end of the previous point, nothing was recorded in between.

    Means over a point: rows_per_s, rows done or failed; in_flight and slots, the calls in flight
    and their maximum; input_tokens_per_s; output_tokens_per_s; retries_per_s; errors, failed
    attempts per second by kind; phases, the seconds per second that calls spent in each phase,
    counted when a call ends. Of the answers in a point: latency_p50_s, latency_p95_s. spent_usd:
    spent by all runs until the end of a point. limits: the limits that held calls back most often
    come first.
    """

    begin_s: tuple[float, ...] = ()
    end_s: tuple[float, ...] = ()
    rows_per_s: Column = ()
    in_flight: Column = ()
    slots: Column = ()
    latency_p50_s: Column = ()
    latency_p95_s: Column = ()
    input_tokens_per_s: Column = ()
    output_tokens_per_s: Column = ()
    retries_per_s: Column = ()
    spent_usd: Column = ()
    phases: dict[str, Column] = {}
    limits: tuple[LimitSeries, ...] = ()
    errors: dict[str, Column] = {}

    def strokes(self, column: Column) -> list[list[tuple[float, float]]]:
        """Returns the lines that draw a column as steps: each a list of (seconds, value) points.

        An unknown value or a gap between points ends a line.
        """
        lines: list[list[tuple[float, float]]] = []
        last_s: float | None = None
        for begin_s, end_s, value in zip(self.begin_s, self.end_s, column, strict=True):
            if value is None:
                last_s = None
                continue
            if last_s is None or begin_s - last_s > LEAST_GAP_S:
                lines.append([])
            lines[-1] += ((begin_s, value), (end_s, value))
            last_s = end_s
        return lines


class Point(msgspec.Struct, frozen=True):
    """A window from begin_s to end_s on the axis. run: the number of its run, from 0.

    binding: what held the job back for the largest part of that time.
    """

    run: int
    begin_s: float
    end_s: float
    window: Window
    binding: Binding


def offsets_of(timeline: Timeline) -> list[float]:
    """Returns the seconds on the axis at which each run begins."""
    runs = timeline.runs
    longest_s = _LONGEST_PAUSE * sum(run.last_s for run in runs)
    offsets = [0.0] if runs else []
    for before, run in pairwise(runs):
        # The clock may have been set back.
        pause_s = run.facts.at - before.facts.at - before.last_s
        pause_s = max(2 * LEAST_GAP_S, min(longest_s, pause_s))
        offsets.append(offsets[-1] + before.last_s + pause_s)
    return offsets


def points_of(timeline: Timeline, bound: Sequence[Sequence[Binding]], most: int) -> list[Point]:
    """Returns at most `most` points, plus one for each run and each gap.

    bound: for each run, what held it back in each of its windows.
    """
    longest_s = 2 * sum(run.last_s for run in timeline.runs) / most
    points = []
    runs = zip(timeline.runs, bound, offsets_of(timeline), strict=True)
    for number, (run, found, offset_s) in enumerate(runs):
        first = 0
        for count in _counts(run.windows, longest_s):
            window = merged(run.windows[first : first + count])
            longest = summary_of(found[first : first + count]).shares[0]
            begin_s, end_s = offset_s + window.begin_s, offset_s + window.end_s
            binding = Binding(longest.cause, longest.what, longest.evidence, begin_s, end_s)
            points.append(Point(number, begin_s, end_s, window, binding))
            first += count
    return points


def _counts(windows: Sequence[Window], longest_s: float) -> list[int]:
    """Returns the number of windows in each point.

    A point has no gap, and lasts at most `longest_s` seconds unless it is a single window.
    """
    counts: list[int] = []
    begin_s = end_s = 0.0
    for window in windows:
        is_next = counts and window.begin_s - end_s <= LEAST_GAP_S
        if is_next and window.end_s - begin_s <= longest_s:
            counts[-1] += 1
        else:
            counts.append(1)
            begin_s = window.begin_s
        end_s = window.end_s
    return counts


def band_of(points: Sequence[Point]) -> list[Binding]:
    """Returns what held the job back over time; adjacent points with the same cause are merged."""
    band: list[Binding] = []
    for one in (point.binding for point in points):
        if band and band[-1].is_same(one) and one.begin_s - band[-1].end_s <= LEAST_GAP_S:
            band[-1] = msgspec.structs.replace(band[-1], end_s=one.end_s)
        else:
            band.append(one)
    return band


def series_of(points: Sequence[Point], budgeted: Sequence[bool]) -> Series:
    """Returns the columns for these points. budgeted: see `JobFiles`."""
    windows = [point.window for point in points]
    spent = ((point.run, point.window) for point in points)

    def per_s(count: Callable[[Window], float]) -> Column:
        return tuple(rounded(count(one) / (one.span_s or 1.0)) for one in windows)

    def sampled(value: Callable[[Window], float]) -> Column:
        return tuple(rounded(value(one)) if one.samples else None for one in windows)

    return Series(
        begin_s=tuple(round(point.begin_s, 2) for point in points),
        end_s=tuple(round(point.end_s, 2) for point in points),
        rows_per_s=per_s(lambda one: one.done + one.failed),
        in_flight=sampled(lambda one: one.in_flight),
        slots=sampled(lambda one: one.slots),
        latency_p50_s=tuple(rounded(one.latency.quantile_s(0.5)) for one in windows),
        latency_p95_s=tuple(rounded(one.latency.quantile_s(0.95)) for one in windows),
        input_tokens_per_s=per_s(lambda one: one.input_tokens),
        output_tokens_per_s=per_s(lambda one: one.output_tokens),
        retries_per_s=per_s(lambda one: one.retries),
        spent_usd=tuple(map(rounded, spent_until(spent, budgeted))),
        phases={name: per_s(_phase(name)) for name in _phases(windows)},
        limits=_limits(windows),
        errors={kind: per_s(_counter(kinds)) for kind, kinds in _kinds(windows).items()},
    )


def rounded(value: float | None) -> float | None:
    """Returns the value rounded to four significant digits, more than a chart shows."""
    return None if value is None else float(f"{value:.{_DIGITS}g}")


def spent_until(
    windows: Iterable[tuple[int, Window]], budgeted: Sequence[bool]
) -> Iterator[float | None]:
    """Yields the dollars that all runs spent until the end of each window; None if unknown.

    windows: each with the number of its run. budgeted: for each run, whether it had a budget in
    money. A run with a budget records what all runs with a budget have spent so far; a run without
    one records only what it spent itself.
    """
    last_run, before_usd, account_usd, total_usd = -1, 0.0, 0.0, 0.0
    for run, window in windows:
        spent_usd = window.totals.spent_usd
        if spent_usd is None:
            yield None
            continue
        if run != last_run:
            last_run = run
            # A lower amount than before means a new account: the job was started over.
            is_continued = budgeted[run] and spent_usd >= account_usd
            before_usd = total_usd - account_usd if is_continued else total_usd
        if budgeted[run]:
            account_usd = spent_usd
        total_usd = before_usd + spent_usd
        yield total_usd


def _phases(windows: Sequence[Window]) -> list[str]:
    """Returns the phases in which calls spent at least a hundredth of their time."""
    whole = merged_phases([one.phases for one in windows])
    names = msgspec.structs.asdict(whole)
    return [name for name, spent_s in names.items() if spent_s >= _LEAST_PHASE * whole.total_s > 0]


def _phase(name: str) -> Callable[[Window], float]:
    return lambda window: float(getattr(window.phases, name))


def _limits(windows: Sequence[Window]) -> tuple[LimitSeries, ...]:
    found = merged(windows).limits[:_MOST_LINES] if windows else ()
    used = [{use.name: use.used for use in window.limits} for window in windows]
    return tuple(
        LimitSeries(
            name=use.name,
            count=use.count,
            window_s=use.window_s,
            used=tuple(one.get(use.name) for one in used),
        )
        for use in found
    )


def _kinds(windows: Sequence[Window]) -> dict[str, list[str]]:
    """Returns the lines of the chart of errors, each with its kinds, the most frequent first.

    Each frequent kind has its own line; the other kinds share the line OTHER.
    """
    kinds = [kind for kind, _ in errors_of(windows).most_common()]
    lines = {kind: [kind] for kind in kinds[:_MOST_LINES]}
    if kinds[_MOST_LINES:]:
        lines[OTHER] = kinds[_MOST_LINES:]
    return lines


def _counter(kinds: Sequence[str]) -> Callable[[Window], float]:
    return lambda window: sum(window.errors.get(kind, 0) for kind in kinds)
