"""When calls are due, by rate, seed or record."""

from __future__ import annotations

import math
from itertools import islice, pairwise
from statistics import fmean, stdev

import pytest

from redline.errors import ConfigError
from redline.measure import recorded, schedule_of


def test_a_constant_rate_does_not_drift() -> None:
    times = list(islice(schedule_of(3.0, "constant", 0), 300_001))
    assert times[:3] == [0.0, 1 / 3, 2 / 3]
    assert times[300_000] == 100_000.0


def test_poisson_arrivals_have_exponential_gaps_and_their_seed_decides_them() -> None:
    times = list(islice(schedule_of(20.0, "poisson", 7), 20_000))
    assert times == list(islice(schedule_of(20.0, "poisson", 7), 20_000))
    assert times != list(islice(schedule_of(20.0, "poisson", 8), 20_000))
    gaps = [after - before for before, after in pairwise(times)]
    assert fmean(gaps) == pytest.approx(1 / 20, rel=0.03)
    assert stdev(gaps) == pytest.approx(1 / 20, rel=0.03)
    longer = sum(gap > 1 / 20 for gap in gaps) / len(gaps)
    assert longer == pytest.approx(math.exp(-1), rel=0.03)


def test_recorded_arrivals_begin_at_0_and_are_in_order() -> None:
    assert recorded([5.0, 4.0, 7.5]) == [0.0, 1.0, 3.5]


@pytest.mark.parametrize("rate", [0.0, -1.0, math.nan, math.inf])
def test_a_rate_that_is_none_is_refused(rate: float) -> None:
    with pytest.raises(ConfigError, match="above 0"):
        schedule_of(rate, "constant", 0)
