"""What the sampler sees of a run's endpoints."""

from __future__ import annotations

import random

import pytest

from redline.calls import Endpoint, Health, HttpBackend, Load, Reply, Request
from redline.job.work import Endpoints, Moment, holder_of
from redline.limits import Limits
from redline.route import Pool, Seat, strategy_of
from redline.testing import ManualClock, ScriptedBackend, virtual_run

CLOCK = ManualClock()


def pool_of(count: int) -> Pool:
    """Endpoints with 4 slots each."""

    def seat(number: int) -> Seat:
        endpoint = Endpoint(
            base_url=f"http://127.0.0.1:{1_000 + number}/v1",
            name=f"s{number}",
            limits=Limits(concurrency=4),
            proxy="",
        )
        return Seat(
            name=endpoint.name,
            make=lambda on_room: HttpBackend(endpoint, clock=CLOCK, on_room=on_room),
        )

    seats = [seat(number) for number in range(count)]
    return Pool(seats, strategy_of("p2c", random.Random(1)), clock=CLOCK)


def slots_of(endpoints: Endpoints) -> int:
    loads, _ = endpoints.loads(CLOCK.now_s())
    return endpoints.slots(loads)


@pytest.mark.parametrize("count", [2, 64, 65, 200])
def test_the_slots_of_a_fleet_are_those_of_all_its_endpoints(count: int) -> None:
    async def main() -> None:
        pool = pool_of(count)
        endpoints = Endpoints(pool)
        assert [slots_of(endpoints) for _ in range(4)] == [4 * count] * 4
        await pool.aclose()

    virtual_run(main())


def test_an_endpoint_that_fails_has_no_slots_and_the_others_keep_theirs() -> None:
    async def main() -> None:
        pool = pool_of(3)
        endpoints = Endpoints(pool)
        breaker = pool.members[0].breaker
        for _ in range(50):
            breaker.failed(breaker.began(CLOCK.now_s()), CLOCK.now_s())
        assert not breaker.is_working
        assert slots_of(endpoints) == 8
        await pool.aclose()

    virtual_run(main())


class Other(ScriptedBackend):
    """A backend that reports no more than `stated`."""

    def __init__(self, stated: Load) -> None:
        super().__init__([Reply(output="ok")])
        self.stated = stated

    def load(self, now_s: float, request: Request | None = None) -> Load:
        return self.stated


@pytest.mark.parametrize(
    ("stated", "held"),
    [
        (Load(in_flight=4, slots=4, waiting=3), "slots"),
        (Load(in_flight=3, slots=4, waiting=3), "limit"),
        (Load(in_flight=3, waiting=3), "limit"),
        (Load(in_flight=4, slots=4, state=Health.DEGRADED), "slots"),
        (Load(in_flight=4, slots=4, state=Health.GONE), "down"),
        (Load(in_flight=1, slots=4), "client"),
    ],
)
def test_a_backend_of_another_kind_is_judged_by_its_slots(stated: Load, held: str) -> None:
    loads, limits = Endpoints(Other(stated)).loads(CLOCK.now_s())
    assert holder_of(Moment(now_s=CLOCK.now_s(), loads=loads, has_ready=True)) == held
    assert not limits
