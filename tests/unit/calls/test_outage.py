"""An endpoint that is down: pauses that double, patience that ends."""

from __future__ import annotations

import math

import pytest

from redline.calls.http import Outage, is_unreachable
from redline.errors import BadReply, Disconnected, RateLimited, TimedOut


def test_pauses_double_up_to_a_quarter_of_a_minute() -> None:
    outage, now_s, pauses = Outage(), 100.0, []
    for _ in range(9):
        outage.refused(now_s)
        pauses.append(outage.again_s - now_s)
        now_s += pauses[-1]
    assert pauses == [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 15.0, 15.0]


def test_failures_within_one_pause_count_as_one() -> None:
    outage = Outage()
    for _ in range(50):
        outage.refused(100.0)
    assert outage.again_s == 100.25


@pytest.mark.parametrize(("has_answered", "patience_s"), [(False, 5.0), (True, 300.0)])
def test_patience_is_longer_with_a_server_that_has_answered(
    has_answered: bool, patience_s: float
) -> None:
    outage = Outage()
    if has_answered:
        outage.answered()
    outage.refused(100.0)
    assert not outage.is_over(100.0 + patience_s - 0.01)
    assert outage.is_over(100.0 + patience_s)
    assert outage.lasted_s(100.0 + patience_s) == patience_s


def test_any_answer_ends_it() -> None:
    outage = Outage()
    outage.refused(100.0)
    outage.refused(101.0)
    outage.answered()
    assert outage.again_s == -math.inf
    assert not outage.is_down
    assert outage.lasted_s(200.0) == 0
    outage.refused(300.0)
    assert outage.again_s == 300.25
    assert outage.is_down


def test_only_a_connection_that_never_came_about_is_an_outage() -> None:
    refused = Disconnected("no connection")
    refused.was_sent = False
    assert is_unreachable(refused)
    assert is_unreachable(TimedOut("connect", 1.0))
    others = [Disconnected("x"), TimedOut("first_byte", 1.0), RateLimited("x"), BadReply("x"), None]
    assert not any(is_unreachable(error) for error in others)
