"""Reads the status of a job from its timeline, whether it is running, has ended or was killed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from redline.observe.binding import bindings, current
from redline.observe.causes import Binding, Cause
from redline.observe.eta import estimate
from redline.observe.prediction import Score, predictions, scores_of
from redline.observe.shares import Share, stretches, summary_of
from redline.timeline import (
    Prediction,
    Timeline,
    Totals,
    Window,
    errors_of,
    merged,
    merged_phases,
)

# Current figures cover the windows of the last seconds; latencies cover a longer span.
_LATELY_S, _LATENCY_S = 10.0, 60.0
# A run counts as silent if it has written nothing for this long: it writes a window every second.
SILENT_S = 5.0

State = Literal["running", "finished", "interrupted", "stopped", "dead"]


class LimitStatus(msgspec.Struct, frozen=True):
    """The use of one rate limit.

    used: how much of `count` was used in the last `window_s`. binds: whether it held calls back in
    at least half of the samples.
    """

    name: str
    used: int
    count: int
    window_s: float
    binds: bool


class BindingStatus(msgspec.Struct, frozen=True):
    """What binds now, or what bound at the end of the run. for_s: for how long, in seconds."""

    cause: Cause
    what: str
    evidence: str
    for_s: float


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """The status of a job.

    Of the latest run: state (`dead` if it was killed); begun and seen (when it began, and its last
    sign of life, both in seconds since 1970-01-01 UTC); elapsed_s; pid; host; has_budget (whether
    it has a budget in money, which all runs share; None if unknown); stopped (what ended it early,
    in words); errors (counts by kind); error (the last one in words); binding; bound (each
    constraint's share of the time); sentence (describes the largest share); phases (see
    `time_by_phase`).
    runs: the number of known runs. totals: the rows of the whole input, and the attempts and tokens
    of the latest run; the number of rows is a lower bound unless `totals.is_exact`. left: the rows
    still to be processed.
    Of the last ten recorded seconds, or of the whole latest run if its end is recorded: rows_per_s,
    tokens_per_s, in_flight, slots, waiting, retrying, parked_s, limits; likewise, of the last
    minute, latency_p50_s and latency_p95_s, None without answers. eta_s: None if unknown, or if the
    job is not running.
    helps: the predicted effects of other settings, from all runs; helps_unknown: the reason if
    there are none. scores: how well the predictions for runs came true.
    """

    state: State
    begun: float
    seen: float
    elapsed_s: float
    runs: int
    pid: int
    host: str
    has_budget: bool | None
    stopped: str
    totals: Totals
    left: int
    rows_per_s: float
    tokens_per_s: float
    in_flight: float
    slots: float
    waiting: float
    retrying: float
    parked_s: float
    latency_p50_s: float | None
    latency_p95_s: float | None
    eta_s: float | None
    limits: tuple[LimitStatus, ...]
    errors: dict[str, int]
    error: str
    binding: BindingStatus | None
    bound: tuple[Share, ...]
    sentence: str
    phases: dict[str, float]
    helps: tuple[Prediction, ...]
    helps_unknown: str
    scores: tuple[Score, ...]


def status_of(timeline: Timeline, now: float, *, is_running: bool) -> Status:
    """Returns the status of the job at the time `now`, in seconds since 1970-01-01 UTC.

    timeline: has at least one run. is_running: whether a process holds the job's output.
    """
    run = timeline.runs[-1]
    windows, end = run.windows, run.end
    # If the run has an end, a process that holds the output is about to begin another run.
    state: State = end.how if end is not None else "running" if is_running else "dead"
    whole = lately = _whole(windows)
    latency = whole.latency
    if end is None:
        lately = _whole(_last_of(windows, _LATELY_S))
        latency = _whole(_last_of(windows, _LATENCY_S)).latency
    span_s = lately.span_s or 1.0
    found = bindings(windows)
    bound = summary_of(found)
    helps = predictions(timeline.runs)
    return Status(
        state=state,
        begun=run.facts.at,
        seen=timeline.seen,
        elapsed_s=now - run.facts.at if state == "running" else run.last_s,
        runs=len(timeline.runs),
        pid=run.facts.pid,
        host=run.facts.host,
        has_budget=run.facts.has_budget,
        stopped="" if end is None else end.what,
        totals=whole.totals,
        left=whole.totals.left,
        rows_per_s=(lately.done + lately.failed) / span_s,
        tokens_per_s=(lately.input_tokens + lately.output_tokens) / span_s,
        in_flight=lately.in_flight,
        slots=lately.slots,
        waiting=lately.waiting,
        retrying=lately.retrying,
        parked_s=lately.parked_s,
        latency_p50_s=latency.quantile_s(0.5),
        latency_p95_s=latency.quantile_s(0.95),
        eta_s=estimate(windows).eta_s if state == "running" else None,
        limits=_limits(lately),
        errors=dict(errors_of(windows).most_common()),
        error=whole.error,
        binding=_binding(windows, found),
        bound=bound.shares,
        sentence=bound.sentence,
        phases=time_by_phase(windows),
        helps=() if isinstance(helps, str) else tuple(helps),
        helps_unknown=helps if isinstance(helps, str) else "",
        scores=tuple(scores_of(timeline.runs)),
    )


def time_by_phase(windows: Sequence[Window]) -> dict[str, float]:
    """Returns the seconds that the rows of a run spent in each phase in total, longest first.

    A phase has the name of its field in `Phases`, without the unit. Only calls that have ended
    count. The wait for the disk comes after a row has its outcome.
    """
    phases = msgspec.structs.asdict(merged_phases([window.phases for window in windows]))
    found = {name.removesuffix("_s"): seconds for name, seconds in phases.items() if seconds}
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _last_of(windows: Sequence[Window], seconds: float) -> list[Window]:
    """Returns the latest windows of one run that cover `seconds`; at least one if any exists."""
    return [window for window in windows if window.end_s > windows[-1].end_s - seconds]


def _whole(windows: Sequence[Window]) -> Window:
    return merged(windows) if windows else Window(begin_s=0.0, end_s=0.0)


def _limits(window: Window) -> tuple[LimitStatus, ...]:
    most = max((use.held for use in window.limits), default=0)
    least = max(1, most / 2, window.samples / 2)
    return tuple(
        LimitStatus(use.name, use.used, use.count, use.window_s, use.held >= least)
        for use in window.limits
    )


def _binding(windows: Sequence[Window], found: Sequence[Binding]) -> BindingStatus | None:
    """Returns what binds in the last seconds. found: what bound in each of the windows."""
    now = current(windows)
    if now is None:
        return None
    last = stretches(found)[-1]
    begin_s = last.begin_s if last.is_same(now) else now.begin_s
    return BindingStatus(now.cause, now.what, now.evidence, now.end_s - begin_s)
