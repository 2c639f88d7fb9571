"""A pool counts what has passed through it, and holds calls while it has no endpoint."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest

from redline.errors import Rejected
from redline.route import Pool, Seat, strategy_of
from redline.testing import virtual_run
from redline.waist import Call, Health, Request
from support.fleet import LoopClock, ModelServer

CLOCK = LoopClock()


def seat_of(server: ModelServer) -> Seat:
    def make(on_room: Callable[[], None]) -> ModelServer:
        server.on_room = on_room
        return server

    return Seat(name=server.name, make=make)


def empty_pool() -> Pool:
    draw = random.Random(1)
    return Pool([], strategy_of("p2c", draw), clock=CLOCK, seed=1, may_be_empty=True)


def sent(pool: Pool, work_s: float) -> asyncio.Task[object]:
    return asyncio.create_task(pool.send(Request(body={"work": work_s}), Call()))


def test_each_call_ends_once_in_whatever_way() -> None:
    async def main() -> None:
        rejected = Rejected("HTTP 400", status=400)
        server = ModelServer(
            "a", bound=1, fails=lambda _, number: rejected if number == 2 else None
        )
        pool = empty_pool()
        pool.add(seat_of(server))
        answered, refused = sent(pool, 4.0), sent(pool, 1.0)
        in_flight, waiting = sent(pool, 9.0), sent(pool, 1.0)
        await asyncio.sleep(5.0)
        waiting.cancel()
        in_flight.cancel()
        await asyncio.gather(answered, refused, in_flight, waiting, return_exceptions=True)
        traffic = pool.traffic
        assert (traffic.ended, traffic.answered) == (4, 1)
        assert traffic.served_s == pytest.approx(4.0)
        # Two of them had to wait and got their turn, after 4 s each.
        assert traffic.take_waits().total() == 2
        assert traffic.take_waits().total() == 0

    virtual_run(main())


def test_a_pool_without_endpoints_holds_calls_until_one_comes() -> None:
    async def main() -> None:
        pool = empty_pool()
        calls = [sent(pool, 1.0) for _ in range(3)]
        await asyncio.sleep(50.0)
        load = pool.load(CLOCK.now_s())
        assert (load.state, load.waiting, pool.queued) == (Health.GONE, 3, 3)
        assert list(pool.waits_s()) == pytest.approx([50.0] * 3)
        pool.add(seat_of(ModelServer("a", slots=4, bound=4)))
        await asyncio.gather(*calls)
        await pool.remove("a")
        calls = [sent(pool, 1.0) for _ in range(3)]
        await asyncio.sleep(1.0)
        pool.add(seat_of(ModelServer("b", slots=4, bound=4)))
        await asyncio.gather(*calls)
        assert pool.traffic.answered == 6

    virtual_run(main())


def test_calls_are_counted_while_they_come_and_when_their_endpoint_has_left() -> None:
    async def main() -> None:
        pool = empty_pool()
        for name in ("a", "b"):
            pool.add(seat_of(ModelServer(name, slots=4)))
        for at_once in (3, 50, 203):
            before = pool.traffic.answered
            await asyncio.gather(*[sent(pool, 0.01) for _ in range(at_once)])
            assert pool.traffic.answered == pool.traffic.ended == before + at_once
        await asyncio.gather(*[sent(pool, 0.01) for _ in range(53)])
        for name in ("a", "b"):
            await pool.remove(name)
        assert pool.traffic.answered == 309
        assert pool.load(CLOCK.now_s()).in_flight == 0

    virtual_run(main())
