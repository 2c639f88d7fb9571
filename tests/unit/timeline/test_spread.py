"""Quantiles: exact at first, then within the stated error."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redline.timeline import MOST_EXACT, Spread
from redline.timeline import SKETCH_ERROR as ERROR


@given(st.lists(st.floats(0, 1e4), min_size=1, max_size=200), st.floats(0, 1))
def test_few_values_have_exact_quantiles(values: list[float], q: float) -> None:
    spread = Spread()
    spread.extend(values)
    ordered = sorted(values)
    rank = q * (len(values) - 1)
    found = spread.quantile(q)
    assert ordered[int(rank)] - 1e-9 <= found <= ordered[min(int(rank) + 1, len(values) - 1)] + 1e-9
    assert spread.quantile(0) == ordered[0]
    assert spread.quantile(1) == ordered[-1]


def test_many_values_are_within_the_stated_error() -> None:
    draw = random.Random(3).lognormvariate
    values = [draw(-3, 1.5) for _ in range(MOST_EXACT + 1000)]
    spread = Spread()
    spread.extend(values[:MOST_EXACT])
    exact = spread.quantiles()
    assert exact is not None
    assert exact.error == 0.0
    for value in values[MOST_EXACT:]:
        spread.add(value)
    found = spread.quantiles()
    assert found is not None
    assert (found.count, found.error) == (len(values), ERROR)
    assert found.max_s == max(values)
    assert found.mean_s == pytest.approx(sum(values) / len(values))
    ordered = sorted(values)
    for q, shown in ((0.5, found.p50_s), (0.95, found.p95_s), (0.99, found.p99_s)):
        assert shown == pytest.approx(ordered[int(q * len(values))], rel=1.01 * ERROR)


def test_nothing_has_no_quantiles() -> None:
    assert Spread().quantiles() is None
