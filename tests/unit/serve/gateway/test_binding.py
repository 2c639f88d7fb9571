"""What a gateway says holds its calls back."""

from __future__ import annotations

import math
from typing import Any

import pytest

from redline.route.member import PoolMember, Seat
from redline.serve.gateway.binding import Facts, binding_of, state_of
from redline.waist import Health, Load
from support.fleet import ModelServer

NOW_S = 100.0
READY = Load(slots=4, in_flight=2)
FULL = Load(slots=4, in_flight=4, room_s=math.ulp(0.0), binds="4 calls in flight")
LIMITED = Load(slots=4, room_s=0.5, binds="50/1s requests")
PARKED = Load(room_s=9, parked_until_s=NOW_S + 9, binds="the endpoint asked redline to wait")
# Between two of its own tries to connect, and at the moment of one.
LOST = Load(
    state=Health.DEGRADED,
    room_s=0.2,
    parked_until_s=NOW_S + 0.2,
    binds="the endpoint is out of reach",
)
TRIED = Load(state=Health.DEGRADED, parked_until_s=NOW_S, binds="the endpoint is out of reach")


def cause_and_text(*endpoints: Load, **facts: Any) -> tuple[str, str]:
    """Of a gateway with these endpoints in one pool, at which calls wait."""
    usual: dict[str, Any] = {
        "loads": [min(endpoints, key=lambda one: one.room_s)],
        "most": None,
        "waiting": 20,
        "answers_per_s": 50.0,
        "busy": 0.1,
        "now_s": NOW_S,
        "states": [one.state for one in endpoints],
        "working": [one for one in endpoints if not one.is_down],
    }
    found = binding_of(Facts(**(usual | facts)))
    return found.cause, found.sentence


def test_an_endpoint_that_is_down_is_not_called_a_limit() -> None:
    for down in (LOST, TRIED):
        assert cause_and_text(down, FULL) == cause_and_text(FULL)
        assert cause_and_text(down, LIMITED) == cause_and_text(LIMITED)
        assert cause_and_text(down, PARKED) == cause_and_text(PARKED)
        assert cause_and_text(down, READY)[0] == "endpoints"
        assert cause_and_text(down)[0] == "down"
        for one in (down, READY, FULL):
            cause, text = cause_and_text(one, READY, most=8)
            assert (cause, "-c allows 8 calls in flight. 20 calls wait" in text) == (
                "concurrency",
                True,
            )


@pytest.mark.parametrize("state", [Health.DEGRADED, Health.GONE])
def test_an_endpoint_that_is_down_is_shown_with_a_reason(state: Health) -> None:
    load = Load(state=state, binds="the endpoint is out of reach")
    member = PoolMember(
        Seat(name="a", make=lambda _: ModelServer("a")), lambda _: None, lambda _: 0.0
    )
    assert state_of(member, load, NOW_S) == (state.value, "the endpoint is out of reach")


def test_a_limit_holds_a_call_that_an_endpoint_beside_it_has_asked_to_wait_with() -> None:
    assert cause_and_text(FULL)[0] == "endpoints"
    cause, text = cause_and_text(PARKED, LIMITED)
    assert cause == "limit"
    assert "A rate limit holds back the next call: 50/1s requests." in text
    assert cause_and_text(PARKED, FULL)[0] == "endpoints"
    assert cause_and_text(PARKED, PARKED)[0] == "parked"


def test_nothing_is_said_to_hold_back_calls_that_start_at_once() -> None:
    assert cause_and_text(READY, waiting=0)[0] == "nothing"
    assert cause_and_text(LIMITED, waiting=0)[0] == "nothing"


def test_what_has_calls_refused_for_long_is_named_although_none_waits() -> None:
    cause, text = cause_and_text(PARKED, waiting=0)
    assert (cause, text.endswith(" s. No call waits.")) == ("parked", True)
    spent = Load(slots=4, room_s=3600, binds="10k/1d requests")
    cause, text = cause_and_text(spent, waiting=0)
    assert (cause, "10k/1d requests" in text) == ("limit", True)
    assert cause_and_text(spent, READY, waiting=0)[0] == "nothing"


def test_endpoints_that_fail_often_and_still_answer_are_not_said_to_be_down() -> None:
    failing = Load(slots=64, in_flight=3)
    facts: dict[str, Any] = {"states": [Health.DEGRADED] * 2, "working": [], "waiting": 0}
    cause, text = cause_and_text(failing, LOST, answering=1, **facts)
    assert (cause, "still go to 1 of 2" in text) == ("failing", True)
    cause, text = cause_and_text(LOST, LOST, **facts)
    assert (cause, text) == ("down", "No endpoint works: degraded. No call waits.")


def test_slots_are_not_said_to_be_taken_while_an_endpoint_warms_up() -> None:
    warming = Load(slots=64, in_flight=2)
    cause, text = cause_and_text(warming, warming=1)
    assert (cause, text.startswith("1 endpoint warms up")) == ("warming", True)
    assert "slot" not in text
    cause, text = cause_and_text(warming, FULL, warming=1)
    assert (cause, "1 other endpoint takes no call either." in text) == ("endpoints", True)
    assert cause_and_text(FULL)[1].startswith("Every slot of 1 endpoint is taken.")
    assert "slot" not in cause_and_text(READY)[1]
