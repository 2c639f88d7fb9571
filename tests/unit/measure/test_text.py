"""The lines about figures."""

from __future__ import annotations

import msgspec
import pytest

from redline.measure import Figures, figures_lines
from redline.measure.flow import Rate
from redline.timeline import Spread

FIGURES = Figures(
    target="t",
    load="closed loop of 1",
    concurrency=1,
    seconds=10.0,
    scheduled=20,
    succeeded=20,
    failed=0,
    unsent=0,
    cut=0,
    warm_up=0,
    requests=Rate(per_s=2.0),
)


@pytest.mark.parametrize(
    ("spent_usd", "shown"),
    [
        (1.0, "; spent $1.00"),
        (0.0, "; spent $0.00"),
        (1234.5, "; spent $1,234.50"),
        (0.25, "; spent $0.2500"),
        (0.00012, "; spent $0.000120"),
        (None, ""),
    ],
)
def test_the_cost_is_an_amount_of_dollars(spent_usd: float | None, shown: str) -> None:
    lines = figures_lines(msgspec.structs.replace(FIGURES, spent_usd=spent_usd))
    assert f"in flight   0.0 on average{shown}" in lines


@pytest.mark.parametrize("name", ["latency", "ttft", "inter_token", "tpot"])
@pytest.mark.parametrize(("count", "is_noted"), [(100_000, False), (100_001, True)])
def test_estimated_quantiles_are_noted(name: str, count: int, is_noted: bool) -> None:
    spread = Spread()
    spread.extend([0.5] * count)
    measured = msgspec.structs.replace(FIGURES, **{name: spread.quantiles()})
    assert (
        "note: quantiles are within 1% of the exact ones" in figures_lines(measured)
    ) is is_noted
