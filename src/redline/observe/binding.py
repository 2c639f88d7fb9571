"""Finds what binds in each window of a run, by the first rule that matches.

Samples record what held the next call back (`timeline.window`). If all slots are in use, that alone
does not show what binds: more calls in flight may bring more answers, or only queue at the
endpoint. Latency decides between the two. When the first calls of a run arrive, the endpoint has no
earlier calls of the run. If later calls take longer than the first ones, with as many in flight and
by more than chance explains, then calls queue at the endpoint, or it has become slower; either way
the endpoint binds. If c calls queue for k servers, the fastest quarter of the first c calls did not
wait, or waited for at most a quarter of the queue, whereas later calls wait for the whole queue:
the lower quartiles differ. With fewer than two calls per server, a quarter of the later calls may
not wait at all, although most do: then the medians differ.

If the number of calls in flight has changed during the run, as in a search for the best number,
latencies are compared at about the same number. The rates of answers at two such numbers count as
well: with spare capacity, the rate grows in proportion to the calls in flight. A search also tries
fewer calls than the endpoint can process at once. That more calls would then bring more answers
does not make concurrency the constraint: if calls queued at the endpoint when more calls were last
in flight, it is the endpoint that keeps their number from rising.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence

from redline.observe.causes import Binding, Cause
from redline.process import counted
from redline.timeline import (
    Holder,
    LimitUse,
    Sketch,
    Totals,
    Window,
    errors_of,
    merged,
    merged_sketches,
    without,
)

# A cause binds if it has at least this share of the samples, or of the time.
_MOST_OF = 0.5
# Without a majority, the cause of what held the most samples binds if its share is at least this.
_LEAST_SHARE = 1 / 3
# The client binds if the event loop's thread runs, or waits for a CPU, for this share of the time,
# unless a limit or the budget holds calls back in most samples.
_BUSY = 0.85
# It also binds if all threads, which share one interpreter, use this much CPU, and samples are late
# by this many seconds.
_CPU, _LAG_S = 0.9, 0.05
# How near another limit must come to the strictest one to count as nearly as strict: in the number
# of samples in which it held calls back, or in its used share.
_NEAR_HELD, _NEAR_USED = 0.75, 0.95
# The most endpoints that are named for one limit.
_MOST_NAMED = 3
# A limit has capacity to spare if less than _MOST_SPARE of it is used, and it has room for at least
# _LEAST_SPARE calls, while calls in flight or waiting for a limit take at least _FULL
# of the slots, and those that wait take less than _FEW_WAITING.
_MOST_SPARE, _LEAST_SPARE, _FEW_WAITING, _FULL = 0.9, 3, 0.25, 0.9
# A latency is taken from about this many answers: from the window in question, and from as many of
# the windows around it as needed.
_ENOUGH_ANSWERS = 60
# Answers needed at about the same number of calls in flight; with fewer, quartiles are noise.
_LEAST_ANSWERS = 16
# Calls queue at the endpoint if latency has grown by this factor and this many standard errors.
_GROWTH, _ERRORS = 1.25, 2.5
# The quantiles of the two latencies that are compared, and their names.
_COMPARED = {0.25: "lower quartile", 0.5: "median"}
# For n normal values with a standard deviation of 1: the standard error of a quartile, times
# sqrt(n) (the median's is smaller), and the distance between the two quartiles.
_QUARTILE_ERROR, _QUARTILES = 1.36, 1.349
# Numbers of calls in flight within a factor of 1.1 are one level; neighbouring levels count as
# alike, because a number may lie between the two. The endpoint binds if the rate of answers, plus
# two standard errors, grows by less than this power of the number of calls.
_LEVEL, _LEAST_POWER = math.log(1.1), 0.5
# What binds now is read from this many of the run's latest seconds, treated as one window.
_CURRENT_S = 3.0
# The number of a run's latest windows that are needed to find what binds now.
_RECENT = 60

Found = tuple[Cause, str, str]
# For each holder: the cause, what binds, and the evidence without the share of samples.
_HELD: dict[str, Found] = {
    "input": (Cause.INPUT, "the input", "workers wait for rows from the input"),
    "writer": (Cause.WRITER, "the disk", "no rows are read until more results are durable"),
    "taker": (Cause.WRITER, "the reader of the results", "answered rows wait until they are taken"),
    "memory": (
        Cause.CLIENT,
        "the memory for large rows",
        "no rows are read until large ones are done",
    ),
    "limit": (Cause.LIMIT, "a rate limit", "calls wait for their grant"),
    "budget": (
        Cause.LIMIT,
        "the budget",
        "calls wait for a part of the budget that other calls have reserved",
    ),
    "slots": (Cause.CONCURRENCY, "the concurrency", "all slots are in use"),
    "parked": (
        Cause.DOWN,
        "the endpoint's request to wait",
        "the endpoint asked redline to wait",
    ),
    "down": (Cause.DOWN, "the endpoint, which is down", "the endpoint is out of reach or fails"),
    "backoff": (Cause.DOWN, "the endpoint, which fails", "rows wait for a retry"),
    "batch": (Cause.NOTHING, "the Batch API", "rows are with the Batch API"),
    "rest": (Cause.NOTHING, "nothing", "no more rows begin"),
    "client": (Cause.CLIENT, "the client", "the client has rows that it has not sent"),
}


def bindings(windows: Sequence[Window]) -> list[Binding]:
    """Returns what bound in each of these windows of one run, in order."""
    run = _Run(windows)
    return [run.binding(index) for index in range(len(windows))]


def current(windows: Sequence[Window]) -> Binding | None:
    """Returns what binds in the last seconds of these windows of one run; None without windows."""
    if not windows:
        return None
    begin_s = windows[-1].end_s - _CURRENT_S
    first = next(i for i, window in enumerate(windows) if window.end_s > begin_s)
    latest = [*windows[:first], merged(windows[first:])]
    return _Run(latest).binding(len(latest) - 1)


def recent(windows: Sequence[Window]) -> list[Window]:
    """Returns the windows that `current` needs during a run, so that older ones can be dropped.

    These are the latest windows, and those with the run's first calls, which show how long an
    answer takes while the endpoint has no earlier calls of the run. Their number is bounded.
    """
    first = [window for window in windows[:-_RECENT] if window.first.pairs]
    return [*first, *windows[-_RECENT:]]


class _Run:
    """The windows of one run, and facts that no single window shows."""

    def __init__(self, windows: Sequence[Window]) -> None:
        self._windows = windows
        self._first = merged_sketches(window.first for window in windows)
        self._later = [without(window.latency, window.first) for window in windows]
        self._answered = list[int]()
        self._at_level = defaultdict[int, list[int]](list)
        for place, window in enumerate(windows):
            if self._later[place].pairs and _is_full(window):
                self._answered.append(place)
                self._at_level[_level_of(window.in_flight)].append(place)
        # If the number of slots was always the same, the calls in flight varied only by chance.
        is_searched = len({_level_of(windows[place].slots) for place in self._answered}) > 1
        # For each level, the number of answers and the time in seconds.
        self._sums = {
            level: (
                sum(self._later[place].count for place in places),
                sum(windows[place].span_s for place in places),
            )
            for level, places in self._at_level.items()
            if is_searched
        }

    def binding(self, index: int) -> Binding:
        window = self._windows[index]
        return Binding(*self._found(index, window), window.begin_s, window.end_s)

    def _found(self, index: int, window: Window) -> Found:
        if (halted := _halted(window)) is not None:
            return halted
        held, share = _most(window)
        if held is None:
            return _undetermined("the state of the run was not sampled")
        is_limited = held in ("limit", "budget") and share >= _MOST_OF
        if not is_limited and (busy := _busy_client(window)) is not None:
            return busy
        if share < _LEAST_SHARE:
            return _undetermined(_mixture(window))
        if held == "slots":
            return self._full_or_saturated(index, window)
        if held == "limit":
            if _has_spare(window):
                return self._full_or_saturated(index, window)
            return _limits(window, share)
        cause, what, _ = _HELD[held]
        return cause, what, _evidence(held, window, share)

    def _full_or_saturated(self, index: int, window: Window) -> Found:
        """Decides whether concurrency or the endpoint binds, when all slots are in use."""
        are = "is" if round(window.in_flight) == 1 else "are"
        calls = counted(round(window.slots), "call")
        full = f"{window.in_flight:,.0f} of {calls} {are} in flight"
        if window.waiting >= 0.5:
            waiting = counted(round(window.waiting), "waits for its", "wait for their")
            full += f", {waiting} grant from a rate limit that is not used up"
        later = self._latency_around(index)
        if not self._first.pairs or not later.pairs:
            return _undetermined(
                f"{full}, and too few were answered to say whether more calls bring more answers"
            )
        evidence = self._saturated(index, later)
        if evidence is None and (before := self._latest_saturated(index)) is not None:
            before_s = window.begin_s - before.begin_s
            more = f"{counted(round(before.in_flight), 'call')} had to queue"
            evidence = f"{before_s:.0f} s earlier, {more} at the endpoint"
        if evidence is not None:
            return Cause.ENDPOINT, "the endpoint", f"{full}, and {evidence}"
        evidence = f"{full}, rows wait, and answers take about as long as at first"
        return Cause.CONCURRENCY, "the concurrency", f"{evidence} {self._times(later)}"

    def _saturated(self, index: int, later: Sketch) -> str | None:
        """Returns the evidence that calls queue at the endpoint, in words; None if there is none.

        later: the latencies around this window.
        """
        for q in _COMPARED:
            alone_s, now_s, chance = _growth(self._first, later, q)
            if now_s > alone_s * max(_GROWTH, math.exp(chance)):
                times = f"answers take {now_s / alone_s:.1f} times as long as at first"
                return f"{times} {self._times(later, q)}"
        other = self._without_gain(_level_of(self._windows[index].in_flight))
        if other is not None:
            calls = round(math.exp(_LEVEL * other))
            bring = counted(calls, "call in flight brings", "calls in flight bring")
            return f"{bring} about as many answers a second"
        return None

    def _without_gain(self, level: int) -> int | None:
        """Returns a clearly different level with about the same rate; None if there is none.

        Such a level shows that calls queue at the endpoint.
        """
        if level not in self._sums:
            return None
        for other in sorted(self._sums, key=lambda one: -abs(one - level)):
            if abs(other - level) <= 1:
                break
            low, high = self._sums[min(level, other)], self._sums[max(level, other)]
            grown = _LEVEL * abs(other - level)
            gain = math.log(high[0] / high[1]) - math.log(low[0] / low[1])
            error = math.sqrt(1 / high[0] + 1 / low[0])
            if gain + 2 * error < _LEAST_POWER * grown:
                return other
        return None

    def _times(self, later: Sketch, q: float = 0.25) -> str:
        alone_s, now_s, _ = _growth(self._first, later, q)
        return f"({_COMPARED[q]} {now_s:.3g} s, for the first calls {alone_s:.3g} s)"

    def _latest_saturated(self, index: int) -> Window | None:
        """Returns an earlier window, with more calls in flight, in which calls had to queue.

        Examines the latest such window and, if calls did not queue there, the latest one before it
        with still more calls, and so on. None if calls queued in none of these.
        """
        place = self._latest_fuller(index)
        while place is not None:
            if self._saturated(place, self._latency_around(place)) is not None:
                return self._windows[place]
            place = self._latest_fuller(place)
        return None

    def _latest_fuller(self, index: int) -> int | None:
        """Returns the index of the latest earlier window with clearly more calls in flight."""
        level = _level_of(self._windows[index].in_flight) + 1
        latest = [
            places[before - 1]
            for other, places in self._at_level.items()
            if other > level and (before := bisect_left(places, index))
        ]
        return max(latest, default=None)

    def _latency_around(self, index: int) -> Sketch:
        """Returns the latencies of calls other than the first, in full windows around this one.

        Uses only windows with about as many calls in flight, if they have enough answers.
        """
        level = _level_of(self._windows[index].in_flight)
        alike = sorted(
            place
            for other in (level - 1, level, level + 1)
            for place in self._at_level.get(other, ())
        )
        found = self._nearest(alike, index)
        return found if found.count >= _LEAST_ANSWERS else self._nearest(self._answered, index)

    def _nearest(self, places: Sequence[int], index: int) -> Sketch:
        """Returns the latencies in the nearest of these windows, until there are enough."""
        after = bisect_left(places, index)
        sides = places[after:], reversed(places[:after])
        found: list[Sketch] = []
        count = 0
        for place in heapq.merge(*sides, key=lambda one: abs(one - index)):
            found.append(self._later[place])
            count += found[-1].count
            if count >= _ENOUGH_ANSWERS:
                break
        return merged_sketches(found)


def _undetermined(evidence: str) -> Found:
    return Cause.UNDETERMINED, "undetermined", evidence


def _level_of(calls: float) -> int:
    return round(math.log(max(1.0, calls)) / _LEVEL)


def _is_full(window: Window) -> bool:
    held = _most(window)[0]
    return held == "slots" or (held == "limit" and _has_spare(window))


def _most(window: Window) -> tuple[Holder | None, float]:
    """Returns what held calls back in the most samples, and the share of samples with its cause."""
    held = max(window.held, key=lambda one: window.held[one], default=None)
    if held is None or not window.samples:
        return None, 0.0
    cause = _HELD[held][0]
    alike = sum(count for one, count in window.held.items() if _HELD[one][0] is cause)
    return held, alike / window.samples  # type: ignore[return-value]  # the keys are of Holder


def _halted(window: Window) -> Found | None:
    """Returns the finding that the process was stopped or blocked; None otherwise."""
    if window.stopped_s >= _MOST_OF * window.span_s:
        ran = f"the event loop did not run for {window.stopped_s:.1f} of {window.span_s:.1f} s"
        return Cause.CLIENT, "the client, which was stopped or blocked", ran
    if window.write_s >= _MOST_OF * window.span_s:
        evidence = f"writing results took {window.write_s:.1f} of {window.span_s:.1f} s"
        return Cause.WRITER, "the disk", evidence
    return None


def _busy_client(window: Window) -> Found | None:
    """Returns the finding that the client's CPU is busy or its loop is blocked; None otherwise."""
    is_late = window.cpu >= _CPU and window.lag_s >= _LAG_S
    if window.busy >= _BUSY or is_late:
        evidence = f"the event loop was busy for {100 * min(1.0, window.busy):.0f} % of the time"
        if window.cpu < _CPU * min(1.0, window.busy):
            evidence += f", including waits for a CPU: the process had {window.cpu:.2f} of one"
        return Cause.CLIENT, "the client's CPU", evidence
    if window.late_s >= _MOST_OF * window.span_s:
        evidence = f"the event loop was blocked for {window.late_s:.1f} of {window.span_s:.1f} s"
        return Cause.CLIENT, "the client's event loop", evidence
    return None


def _limits(window: Window, share: float) -> Found:
    held = [use for use in window.limits if use.held]
    samples = f"in {100 * share:.0f} % of samples"
    if not held:
        return Cause.LIMIT, "a rate limit", f"calls wait for their grant {samples}"
    near = [use for use in held if _is_near(use, held[0], window.end_s)]
    # Sorted, because the order by strictness changes from one window to the next.
    near.sort(key=lambda use: use.name)
    groups = defaultdict[str, list[str]](list)
    for use in near:
        groups[use.name.partition(" at ")[0]].append(use.name)
    # Which of many endpoints are the strictest also changes, so they are not named.
    what = " and ".join(
        f"{limit} at several endpoints" if len(names) > _MOST_NAMED else " and ".join(names)
        for limit, names in groups.items()
    )
    calls = counted(max(1, round(window.waiting)), "call waits", "calls wait")
    waiting = f"{calls} for {'it' if len(near) == 1 else 'them'}"
    uses = [f"{use.used:,} of {use.count:,} in {use.window_s:g} s" for use in near]
    used = ", ".join([*uses[:_MOST_NAMED], "..."] if uses[_MOST_NAMED:] else uses)
    return Cause.LIMIT, what, f"{waiting}, {samples} (used: {used})"


def _has_spare(window: Window) -> bool:
    """Whether the limits that hold calls back have capacity to spare, with nearly all slots taken.

    A limit paced over its window makes each call wait a little, so one call is nearly always
    waiting; but more slots would use more of the limit.
    """
    is_at_work = window.in_flight + window.waiting >= _FULL * window.slots > 0
    if not is_at_work or not 0 < window.waiting < _FEW_WAITING * window.slots:
        return False
    held = [use for use in window.limits if use.held]
    return bool(held) and all(
        _used(use, window.end_s) < _MOST_SPARE
        and use.count - use.used >= _LEAST_SPARE * _size(use, window.totals)
        for use in held
    )


def _size(use: LimitUse, totals: Totals) -> float:
    """Returns how much of the limit a call uses: 1, or the mean number of tokens per row so far."""
    if "token" not in use.name or not totals.done_here:
        return 1.0
    input_tokens = 0 if "output" in use.name else totals.input_tokens
    output_tokens = 0 if "input" in use.name else totals.output_tokens
    return (input_tokens + output_tokens) / totals.done_here


def _is_near(use: LimitUse, strictest: LimitUse, age_s: float) -> bool:
    """Whether the limit is nearly as strict as the strictest one.

    age_s: the age of the run, which may be shorter than the window of a limit.
    """
    if use.held >= _NEAR_HELD * strictest.held:
        return True
    return _used(use, age_s) >= _NEAR_USED * _used(strictest, age_s)


def _used(use: LimitUse, age_s: float) -> float:
    """Returns the used share of what the limit has allowed so far."""
    return use.used / (use.count * min(1.0, age_s / use.window_s))


def _mixture(window: Window) -> str:
    top = sorted(window.held.items(), key=lambda item: -item[1])[:3]
    parts = ", ".join(f"{held} {100 * count / window.samples:.0f} %" for held, count in top)
    return f"no cause holds for most of the time: {parts}"


def _growth(first: Sketch, later: Sketch, q: float) -> tuple[float, float, float]:
    """Returns both q-quantiles in seconds, and how much of their ratio's logarithm may be chance.

    The last value is _ERRORS standard errors. With few first calls, their quantile is the nearest
    order statistic, and the quantile of the later calls is taken for the same probability. The
    spread is measured on the later latencies: without a queue, the first ones have the same spread.
    """
    count = first.count
    place = max(1, round((count + 1) * q))
    alone_s = first.ranked_s(place - 1)
    now_s = _lower_s(later, place / (count + 1))
    deviation = math.log(_lower_s(later, 0.75) / _lower_s(later, 0.25)) / _QUARTILES
    error = _QUARTILE_ERROR * deviation * math.sqrt(1 / count + 1 / later.count)
    return alone_s, now_s, _ERRORS * error


def _lower_s(sketch: Sketch, q: float) -> float:
    """Returns the order statistic at the quantile, or the next lower one, in seconds."""
    return sketch.ranked_s(math.floor(q * (sketch.count - 1)))


def _evidence(held: Holder, window: Window, share: float) -> str:
    cause, _, what = _HELD[held]
    if held == "rest":
        left = window.in_flight
        return f"{what}, and the last calls are in flight: {left:,.0f}" if left >= 0.5 else what
    if held == "parked" and window.parked_s >= 1:
        what += f", for another {window.parked_s:.1f} s"
    errors = _errors(window) if cause is Cause.DOWN else ""
    return f"{what}, in {100 * share:.0f} % of samples{errors}"


def _errors(window: Window) -> str:
    """Returns the failed attempts by kind, and the last error, in words; "" if there are none."""
    counts = ", ".join(f"{count:,} x {kind}" for kind, count in errors_of([window]).items())
    return f" ({counts}, the last: {window.error})" if counts else ""
