"""Successes that are cut, empty or refused."""

from __future__ import annotations

from typing import Any

import pytest

from redline.errors import Rejected
from redline.journal import Result, flaws_of
from redline.sources import Row
from redline.waist import Outcome, Reply


def answered(reason: Any) -> Outcome:
    return Outcome(status="succeeded", reply=Reply(output="x", finish_reason=reason))


FAILED = Outcome(status="rejected", error=Rejected("no"), reply=Reply(finish_reason="length"))


@pytest.mark.parametrize(
    ("outcomes", "flaws"),
    [
        ([], {}),
        ([answered("stop"), answered(None)], {}),
        ([answered("stop"), answered("tool_calls")], {}),
        ([answered("stop"), answered("length"), answered("length")], {"length": 2}),
        ([answered(["stop", "empty"]), answered(["stop", None])], {"empty": 1}),
        ([Outcome(status="succeeded"), answered("refusal")], {"refusal": 1}),
        ([FAILED, answered("stop")], {}),
    ],
)
def test_flaws_are_counted_of_successes(outcomes: list[Outcome], flaws: dict[str, int]) -> None:
    row = Row(1, 1, {}, b"{}")
    ended = [Result(row, 1, None, outcome).in_brief() for outcome in outcomes]
    assert flaws_of(ended) == flaws
