"""Objectives: how they are written, and what keeps them."""

from __future__ import annotations

import pytest

from redline.errors import ConfigError
from redline.measure import parse_objectives
from redline.measure.slo import keeps


def test_objectives_are_read() -> None:
    found = parse_objectives("ttft<500ms, latency<=3s,tpot<50ms")
    assert [(one.figure, one.most_s) for one in found] == [
        *(("ttft", 0.5), ("latency", 3.0), ("tpot", 0.05))
    ]
    assert ",".join(map(str, found)) == "ttft<500ms,latency<3s,tpot<50ms"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "states no objective"),
        ("ttft>500ms", "is not an objective: ttft>500ms"),
        ("latncy<3s", "has an unknown figure: latncy (.*)?did you mean latency"),
        ("latency<0s", "must be above 0 s"),
        ("latency<3h", "is not an objective"),
    ],
)
def test_what_is_no_objective_is_refused(text: str, error: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_objectives(text)
    assert error.partition(" (.")[0] in str(raised.value)
    assert error.rpartition("?")[2] in str(raised.value)


def test_an_answer_keeps_all_of_them_or_is_not_good() -> None:
    both = parse_objectives("ttft<500ms,latency<3s")
    assert keeps(both, 3.0, 0.5, None)
    assert not keeps(both, 3.1, 0.1, None)
    assert not keeps(both, 1.0, 0.6, None)
    # A whole answer has its first token with its last.
    assert not keeps(both, 1.0, None, None)
