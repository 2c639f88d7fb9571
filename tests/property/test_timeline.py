"""Windows and sketches: what is merged says the same, and the file of any job stays small."""

from __future__ import annotations

import math
import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redline.timeline import (
    HOLDERS,
    MOST_BYTES,
    EndpointState,
    LimitUse,
    Phases,
    RunEnd,
    RunFacts,
    RunHistory,
    Sketch,
    Timeline,
    Totals,
    Window,
    merged,
    merged_sketches,
    shortened,
    without,
)

DURATIONS = st.lists(st.floats(1e-3, 3600), min_size=1, max_size=200)


@given(DURATIONS, st.floats(0, 1))
def test_a_quantile_is_within_one_percent(values_s: list[float], q: float) -> None:
    ordered, rank = sorted(values_s), q * (len(values_s) - 1)
    below, share = math.floor(rank), rank % 1
    exact_s = ordered[below] + share * (ordered[math.ceil(rank)] - ordered[below])
    assert Sketch.of(values_s).quantile_s(q) == pytest.approx(exact_s, rel=0.0101)
    assert Sketch.of(values_s).ranked_s(below) == pytest.approx(ordered[below], rel=0.0101)


@given(DURATIONS, DURATIONS)
def test_merged_sketches_are_the_sketch_of_all(some: list[float], others: list[float]) -> None:
    both = merged_sketches([Sketch.of(some), Sketch.of(others)])
    assert both == Sketch.of([*some, *others])
    assert without(both, Sketch.of(others)) == Sketch.of(some)
    assert both.count == len(some) + len(others)


def window(draw: random.Random, begin_s: float, end_s: float) -> Window:
    """A window full of everything, as a busy job with many limits and endpoints has it."""
    return Window(
        begin_s=begin_s,
        end_s=end_s,
        samples=10,
        sent=draw.randrange(200),
        answered=draw.randrange(200),
        done=draw.randrange(200),
        errors={"rate_limited": draw.randrange(9), "timed_out": 1},
        error="HTTP 503: " + "x" * draw.randrange(100),
        input_tokens=draw.randrange(100_000),
        in_flight=round(draw.random() * 64, 4),
        slots=64.0,
        held=dict.fromkeys(draw.sample(HOLDERS, 3), 1),
        limits=tuple(
            LimitUse(f"500 requests/min at {name}", draw.randrange(10), 17, 500, 60.0)
            for name in "abcd"
        ),
        endpoints=tuple(
            EndpointState(f"gpu-{number}", "ready", round(8 * draw.random(), 4), 16)
            for number in range(4)
        ),
        lag_s=round(draw.random(), 4),
        latency=Sketch.of(draw.lognormvariate(0, 1) for _ in range(draw.randrange(100))),
        phases=Phases(first_byte_s=round(draw.random(), 4), grant_s=1.5),
        totals=Totals(rows=10**6, done=draw.randrange(10**6)),
    )


def history(seconds: int, seed: int = 0) -> RunHistory:
    draw = random.Random(seed)
    windows = [window(draw, float(second), second + 1.0) for second in range(seconds)]
    return RunHistory(facts=RunFacts(v=1, at=0.0), windows=windows)


@given(st.integers(2, 40), st.data())
def test_it_does_not_matter_in_which_steps_windows_are_merged(
    count: int, data: st.DataObject
) -> None:
    windows = history(count, data.draw(st.integers(0, 9))).windows
    cut = data.draw(st.integers(1, count - 1))
    at_once = merged(windows)
    in_steps = merged([merged(windows[:cut]), merged(windows[cut:])])
    for name in ("sent", "answered", "errors", "error", "held", "latency", "totals", "lag_s"):
        assert getattr(at_once, name) == getattr(in_steps, name), name
    assert in_steps.in_flight == pytest.approx(at_once.in_flight, abs=1e-3)
    assert sum(at_once.held.values()) == sum(sum(one.held.values()) for one in windows)


@pytest.mark.parametrize("seconds", [1, 3_000])
def test_a_shortened_timeline_keeps_sums_and_the_latest_seconds(seconds: int) -> None:
    run = history(seconds)
    short = shortened(Timeline([run]), float(seconds), MOST_BYTES // 2)
    (kept,) = short.runs
    assert sum(len(msgspec.json.encode(one)) + 1 for one in kept.windows) <= MOST_BYTES // 2
    assert sum(one.sent for one in kept.windows) == sum(one.sent for one in run.windows)
    assert kept.windows[-1] == run.windows[-1]
    ends_s = [0.0, *(one.end_s for one in kept.windows)]
    assert [one.begin_s for one in kept.windows] == ends_s[:-1]
    assert ends_s[-1] == seconds
    # Older windows are at least as long as newer ones, but for what the grouping leaves over.
    if len(kept.windows) > 100:
        oldest, newest = kept.windows[:20], kept.windows[-20:]
        assert sum(w.span_s for w in oldest) > 2 * sum(w.span_s for w in newest)


def test_a_job_of_thousands_of_runs_keeps_the_latest() -> None:
    runs = [
        RunHistory(facts=RunFacts(v=1, at=100.0 * number), windows=history(3, number).windows)
        for number in range(200)
    ]
    runs[-1].end = RunEnd(at_s=3.0, how="finished")
    short = shortened(Timeline(runs), 100_000.0, 20_000)
    assert sum(len(msgspec.json.encode(w)) for run in short.runs for w in run.windows) <= 20_000
    assert short.runs[-1].facts == runs[-1].facts
    assert short.runs[-1].end == runs[-1].end
