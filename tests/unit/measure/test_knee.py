"""The knee of throughput over concurrency, and when a sweep ends."""

from __future__ import annotations

import pytest

from redline.measure import Figures, knee_of
from redline.measure.flow import Rate
from redline.measure.knee import levels, rises_no_more


def level(concurrency: int, per_s: float, error: float = 0.0, failed: int = 0) -> Figures:
    return Figures(
        target="t",
        load="",
        concurrency=concurrency,
        seconds=10.0,
        scheduled=100,
        succeeded=100 - failed,
        failed=failed,
        unsent=0,
        cut=0,
        warm_up=0,
        requests=Rate(per_s, error),
    )


SATURATED = [level(1, 10), level(2, 19), level(4, 36), level(8, 39), level(16, 40), level(32, 40)]


def test_the_knee_is_the_smallest_level_within_5_percent_of_the_best() -> None:
    knee = knee_of(SATURATED)
    assert knee is not None
    assert (knee.concurrency, knee.best, knee.is_open, knee.unsure) == (8, 16, False, ())
    assert knee.share == pytest.approx(39 / 40)


def test_levels_whose_interval_reaches_it_are_named() -> None:
    found = [level(1, 10), level(2, 19), level(4, 36, 1.5), level(8, 39, 1.0), level(16, 40, 1.0)]
    knee = knee_of(found)
    assert knee is not None
    assert (knee.concurrency, knee.unsure) == (8, (4,))


def test_a_throughput_that_still_rises_is_said_to() -> None:
    knee = knee_of([level(1, 10), level(2, 20), level(4, 40)])
    assert knee is not None
    assert (knee.concurrency, knee.is_open) == (4, True)


def test_nothing_has_no_knee() -> None:
    assert knee_of([]) is None
    assert knee_of([level(1, 0.0, failed=100)]) is None


def test_a_sweep_ends_after_two_levels_that_bring_nothing() -> None:
    ends = [rises_no_more(SATURATED[:count]) for count in range(len(SATURATED) + 1)]
    # 8 in flight have brought 8 % over 4; 16 and 32 bring less than 5 % over 8.
    assert ends == [False, False, False, False, False, False, True]
    assert rises_no_more([level(1, 10, failed=60)])


def test_levels_double_and_end_with_the_highest() -> None:
    assert list(levels(20)) == [1, 2, 4, 8, 16, 20]
    assert list(levels(1)) == [1]
