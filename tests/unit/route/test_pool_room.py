"""A pool says whether it could take a call, and tells its holder when it could again."""

from __future__ import annotations

import asyncio

import pytest

from redline.calls import Call, Request
from redline.errors import CallError, Refused, ServerFailed
from redline.route import Pool, Seat
from redline.testing import virtual_run
from support.admitting import pool_of, servers
from support.fleet import LoopClock, ModelServer

CLOCK = LoopClock()


def now_s() -> float:
    return asyncio.get_running_loop().time()


def send(pool: Pool, work_s: float = 1.0) -> asyncio.Task[object]:
    return asyncio.create_task(pool.send(Request(body={"work": work_s}), Call()))


def room_of(pool: Pool, avoid: frozenset[str] = frozenset()) -> int:
    """Calls that it would take, one after the other, before any of them has come."""
    return next(coming for coming in range(100) if not pool.has_room(now_s(), coming, avoid))


class Holder:
    """Notes when it is told that there is room, and asks at once."""

    def __init__(self, pool: Pool) -> None:
        self.told_s: list[float] = []
        self._pool = pool
        pool.held_by(self.look)

    def look(self) -> None:
        if self._pool.has_room(now_s()):
            self.told_s.append(now_s())


@pytest.mark.parametrize("most", [None, 5])
def test_room_is_what_all_endpoints_have(most: int | None) -> None:
    async def main() -> None:
        pool = pool_of(servers(2, slots=4), most=most)
        free = most or 8
        assert room_of(pool) == free
        sends = [send(pool) for _ in range(3)]
        await asyncio.sleep(0.5)
        assert room_of(pool) == free - 3
        assert pool.slots(now_s()) == (most or 8)
        await asyncio.gather(*sends)
        assert room_of(pool) == free
        assert room_of(pool, frozenset({"server-0"})) == min(free, 4)
        assert room_of(pool, frozenset({"server-0", "server-1"})) == 0

    virtual_run(main())


@pytest.mark.parametrize("most", [None, 2])
@pytest.mark.parametrize("is_cancelled", [False, True])
def test_the_holder_is_told_when_a_call_has_ended(most: int | None, is_cancelled: bool) -> None:
    async def main() -> None:
        pool = pool_of(servers(1, slots=2 if most is None else 9), most=most)
        holder = Holder(pool)
        # The first calls have shown how the endpoint is.
        for _ in range(5):
            await send(pool, 0.1)
        assert not holder.told_s
        sends = [send(pool, 0.3), send(pool, 0.5)]
        await asyncio.sleep(0.1)
        begun_s = now_s()
        assert not pool.has_room(begun_s)
        if is_cancelled:
            sends[1].cancel()
            await asyncio.sleep(0)
            assert holder.told_s == [begun_s]
        else:
            await asyncio.sleep(0.25)
            assert holder.told_s == [pytest.approx(begun_s + 0.2)]
        await asyncio.wait(sends)

    virtual_run(main())


def test_another_bound_counts_the_calls_in_flight() -> None:
    async def main() -> None:
        pool = pool_of(servers(1, slots=9), most=4)
        holder = Holder(pool)
        sends = [send(pool, 2.0), send(pool, 2.0), send(pool, 4.0)]
        await asyncio.sleep(1.0)
        pool.most = 2
        assert (pool.is_full, room_of(pool), pool.slots(now_s())) == (True, 0, 2)
        waiting = send(pool, 1.0)
        await asyncio.sleep(2.0)
        # One of the three is left, and the call that waited has come.
        assert (pool.load(now_s()).in_flight, pool.queued) == (2, 0)
        assert room_of(pool) == 0
        begun_s = now_s()
        pool.most = 4
        assert (holder.told_s[-1], room_of(pool)) == (begun_s, 2)
        pool.most = None
        assert (room_of(pool), pool.slots(now_s())) == (7, 9)
        await asyncio.wait([*sends, waiting])

    virtual_run(main())


def test_the_holder_is_told_of_the_first_end_after_calls_that_were_coming_took_all_room() -> None:
    async def main() -> None:
        pool = pool_of(servers(1, slots=2))
        holder = Holder(pool)
        # Answers have shown how the endpoint is, and a review has taken them up.
        for _ in range(2):
            await send(pool, 0.01)
            await asyncio.sleep(1.1)
        begun_s = now_s()
        assert not pool.has_room(begun_s, coming=2)
        sends = [send(pool, 60.0), send(pool, 0.3)]
        await asyncio.sleep(0.5)
        assert holder.told_s == [pytest.approx(begun_s + 0.3)]
        await asyncio.wait(sends)
        await pool.aclose()

    virtual_run(main())


def test_the_holder_is_told_of_an_endpoint_that_is_added() -> None:
    async def main() -> None:
        one, other = servers(2, slots=1)
        pool = pool_of([one])
        holder = Holder(pool)
        sending = send(pool)
        await asyncio.sleep(0.1)
        assert not pool.has_room(now_s())
        pool.add(Seat(name=other.name, make=other.seated))
        assert holder.told_s == [now_s()]
        assert pool.slots(now_s()) == 2
        await sending

    virtual_run(main())


def test_the_holder_is_told_when_a_degraded_endpoint_may_be_tried() -> None:
    async def main() -> None:
        def fails(at_s: float, number: int) -> CallError | None:
            return ServerFailed("HTTP 500", status=500) if at_s < 10.0 else None

        broken = ModelServer("broken", slots=4, bound=4, fails=fails)
        works = ModelServer("works", slots=1, bound=1)
        pool = pool_of([broken, works])
        holder = Holder(pool)
        while room_of(pool, frozenset({"works"})):
            await asyncio.wait([send(pool, 0.01)])
        sending = send(pool, 60.0)
        await asyncio.sleep(0)
        assert not pool.has_room(now_s())
        # Only the slots of the one that works can be used.
        assert pool.slots(now_s()) == 1
        await asyncio.sleep(12.0)
        assert holder.told_s
        assert holder.told_s[0] < 10.0
        sending.cancel()
        await asyncio.wait([sending])
        await pool.aclose()

    virtual_run(main())


def test_a_pool_that_has_lost_all_endpoints_lets_calls_come_and_fail() -> None:
    async def main() -> None:
        def fails(at_s: float, number: int) -> CallError | None:
            return Refused("HTTP 401", status=401)

        pool = pool_of([ModelServer("one", slots=1, bound=1, fails=fails, fails_in_s=1.0)])
        holder = Holder(pool)
        sending = send(pool)
        await asyncio.sleep(0.5)
        assert not pool.has_room(now_s())
        await sending
        assert holder.told_s
        outcome = await pool.send(Request(body={"work": 1.0}), Call())
        assert isinstance(outcome.error, Refused)

    virtual_run(main())
