"""What the sampler sees of a run's endpoints."""

from __future__ import annotations

import random

import pytest

from redline.calls import Endpoint, HttpBackend
from redline.job.work import Endpoints
from redline.limits import Limits
from redline.route import Pool, Seat, strategy_of
from redline.testing import ManualClock, virtual_run


@pytest.mark.parametrize("count", [2, 64, 65, 200])
def test_the_slots_of_a_fleet_are_those_of_all_its_endpoints(count: int) -> None:
    clock = ManualClock()

    def seat(number: int) -> Seat:
        endpoint = Endpoint(
            base_url=f"http://127.0.0.1:{1_000 + number}/v1",
            name=f"s{number}",
            limits=Limits(concurrency=4),
            proxy="",
        )
        return Seat(
            name=endpoint.name,
            make=lambda on_room: HttpBackend(endpoint, clock=clock, on_room=on_room),
        )

    async def main() -> list[int]:
        strategy = strategy_of("p2c", random.Random(1))
        pool = Pool([seat(number) for number in range(count)], strategy, clock=clock)
        endpoints = Endpoints(pool)
        seen = []
        for _ in range(4):
            backlogs, _ = endpoints.backlogs(clock.now_s())
            seen.append(endpoints.slots(backlogs))
        await pool.aclose()
        return seen

    assert virtual_run(main()) == [4 * count] * 4
