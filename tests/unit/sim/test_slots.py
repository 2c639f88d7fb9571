"""The concurrency cap: in arrival order, bounded, and nothing leaks."""

from __future__ import annotations

import asyncio

from redline.sim import Slots


def test_slots_go_out_in_arrival_order_and_cancelled_waiters_leave() -> None:
    async def main() -> list[int]:
        slots = Slots(1, max_waiting=3)
        order: list[int] = []
        await slots.acquire()
        assert not slots.is_full

        async def wait(number: int) -> None:
            await slots.acquire()
            order.append(number)
            slots.release()

        tasks = [asyncio.create_task(wait(number)) for number in range(3)]
        await asyncio.sleep(0)
        assert slots.waiting == 3
        assert slots.is_full
        tasks[1].cancel()
        await asyncio.wait([tasks[1]])
        assert slots.waiting == 2
        assert not slots.is_full
        slots.release()
        await asyncio.gather(tasks[0], tasks[2])
        assert slots.waiting == 0
        await asyncio.wait_for(slots.acquire(), 10)
        return order

    assert asyncio.run(main()) == [0, 2]


def test_without_a_cap_nobody_waits() -> None:
    async def main() -> None:
        slots = Slots(None, max_waiting=0)
        for _ in range(100):
            await slots.acquire()
        assert not slots.is_full
        assert slots.waiting == 0
        slots.release()

    asyncio.run(main())
