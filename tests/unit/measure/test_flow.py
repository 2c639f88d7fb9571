"""Work over time: nothing is lost, and rates do not hang on where a window begins."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redline.measure.flow import Flow, rate

CALLS = st.lists(st.tuples(st.floats(0, 500), st.floats(0, 60), st.floats(0, 100)), max_size=60)


@settings(max_examples=30)
@given(CALLS)
def test_all_that_comes_is_in_the_slices(calls: list[tuple[float, float, float]]) -> None:
    flow = Flow()
    for begin_s, takes_s, amount in calls:
        flow.add(begin_s, begin_s + takes_s, amount)
    end_s = max((begin_s + takes_s for begin_s, takes_s, _ in calls), default=1.0)
    everything = sum(amount for _, _, amount in calls)
    assert sum(flow.slices()) == pytest.approx(everything, abs=1e-6)
    last = int(end_s / flow.width_s) + 1
    assert sum(flow.slices()[last:]) == pytest.approx(0.0, abs=1e-6)


def test_waves_of_calls_have_one_rate_in_any_window() -> None:
    # 16 users whose calls take 1 s each begin and end together.
    flow = Flow()
    for wave in range(12):
        for _ in range(16):
            flow.add(float(wave), wave + 1.0, 1)
    for begin_s, end_s in ((0.0, 12.0), (1.5, 9.2), (2.99, 10.01)):
        found = rate(flow, begin_s, end_s, call_s=0.3)
        assert found.per_s == pytest.approx(16.0, rel=0.01)
        assert found.error == pytest.approx(0.0, abs=0.3)


def test_a_window_that_ends_after_the_last_call_counts_whole() -> None:
    flow = Flow()
    for number in range(30):
        flow.add(number / 100, number / 100 + 0.01, 1)
    assert rate(flow, 0.0, 3.0).per_s == pytest.approx(10.0, rel=0.01)
    assert rate(flow, 1.0, 3.0).per_s == pytest.approx(0.0, abs=1e-6)


def test_a_window_of_few_calls_has_no_interval() -> None:
    flow = Flow()
    for number in range(4):
        flow.add(float(number), number + 1.0, 1)
    assert rate(flow, 0.0, 4.0, call_s=1.0).error is None


def test_the_interval_covers_a_rate_that_varies() -> None:
    flow = Flow()
    for second in range(100):
        for _ in range(8 if second // 10 % 2 else 12):
            flow.add(second, second + 0.5, 1)
    found = rate(flow, 0.0, 100.0, call_s=0.5)
    assert found.per_s == pytest.approx(10.0, rel=0.01)
    assert found.error is not None
    # The means of ten parts are 12 and 8 in turn: 2.262 * 2.108 / sqrt(10).
    assert found.error == pytest.approx(1.508, rel=0.02)
