"""A pool of real servers that die and fail, and calls given up at random: nothing is left."""

from __future__ import annotations

import asyncio

import pytest
import uvloop

from redline.calls.cost import Amount, Spending
from support.disturbed_pool import SERVER, SERVERS, disturbed
from support.sim_process import fleet_of

pytestmark = [pytest.mark.real, pytest.mark.timeout(90)]


def played(calls: int, seed: int) -> list[str]:
    with (
        fleet_of(SERVERS, *SERVER) as servers,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        found = runner.run(disturbed(servers, calls=calls, at_once=48, seed=seed))
    assert found["met"]["answered"] > calls / 3
    assert found["met"]["cancelled"] > calls / 20
    left: list[str] = found["left"]
    return left


def test_nothing_is_left_when_calls_servers_and_keys_are_lost_at_random() -> None:
    assert played(1_000, 2) == []


def test_a_reservation_that_is_kept_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    reserve = Spending.reserve

    def twice(self: Spending, worst: Amount) -> bool:
        return reserve(self, worst) and reserve(self, worst)

    monkeypatch.setattr(Spending, "reserve", twice)
    assert [words.split(":")[0] for words in played(200, 1)] == ["reserved"]
