"""A bound on calls in flight: order and cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redline.limits import Slots
from redline.testing import virtual_run


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_slots_are_taken_in_order_of_priority_and_arrival() -> None:
    async def main() -> list[str]:
        slots, order = Slots(1), []

        async def one(name: str, priority: int) -> None:
            await slots.acquire(priority)
            order.append(name)
            await asyncio.sleep(1)
            slots.release()

        async with asyncio.TaskGroup() as group:
            for name, priority in [("a", 9), ("b", 1), ("c", 0), ("d", 1), ("e", 0)]:
                group.create_task(one(name, priority))
        assert slots.in_use == 0
        return order

    assert virtual_run(main()) == ["a", "c", "e", "b", "d"]


def test_a_newcomer_does_not_pass_the_waiters() -> None:
    async def main() -> None:
        slots = Slots(1)
        await slots.acquire()
        waiting = asyncio.create_task(slots.acquire())
        await settled()
        slots.release()
        assert not slots.is_free
        newcomer = asyncio.create_task(slots.acquire())
        await settled()
        assert waiting.done()
        assert not newcomer.done()
        slots.release()
        await newcomer

    virtual_run(main())


@pytest.mark.parametrize("is_handed_over", [False, True])
def test_a_waiter_cancelled_in_the_tick_of_a_release_loses_no_slot(is_handed_over: bool) -> None:
    async def main() -> None:
        slots = Slots(1)
        await slots.acquire()
        waiting = asyncio.create_task(slots.acquire())
        await settled()
        steps = [slots.release, waiting.cancel]
        for step in steps if is_handed_over else reversed(steps):
            step()
        async with asyncio.timeout(1):
            # Comes before the cancelled task has run: it must not queue behind nobody.
            await slots.acquire()
        slots.release()
        await settled()
        assert slots.in_use == 0
        assert slots.is_free

    virtual_run(main())


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 3),
    st.lists(st.sampled_from([-1.0, 0.0, 0.5, 1.0, 1.5, 2.0]), max_size=20),
)
def test_never_more_than_the_count_and_none_lost(
    count: int, cancel_after_s: Iterable[float]
) -> None:
    async def main() -> None:
        slots = Slots(count)
        held = most = 0

        async def one() -> None:
            nonlocal held, most
            await slots.acquire()
            held += 1
            most = max(most, held)
            try:
                await asyncio.sleep(1)
            finally:
                held -= 1
                slots.release()

        tasks = []
        for after_s in cancel_after_s:
            tasks.append(asyncio.create_task(one()))
            if after_s >= 0:
                asyncio.get_running_loop().call_later(after_s, tasks[-1].cancel)
        await asyncio.gather(*tasks, return_exceptions=True)
        assert most <= count
        assert slots.in_use == 0
        for _ in range(count):
            assert slots.is_free
            await slots.acquire()
        assert not slots.is_free

    virtual_run(main())


def test_there_is_room_beside_those_who_come_first() -> None:
    async def main() -> None:
        slots = Slots(2)
        assert slots.has_room(1)
        assert not slots.has_room(2)
        await slots.acquire()
        assert slots.has_room()
        assert not slots.has_room(1)
        await slots.acquire()
        assert not slots.has_room()

    virtual_run(main())


def test_more_slots_go_to_those_who_wait_in_turn() -> None:
    async def main() -> None:
        slots, order = Slots(1), []

        async def one(name: str) -> None:
            await slots.acquire()
            order.append(name)

        await slots.acquire()
        tasks = [asyncio.create_task(one(name)) for name in "abc"]
        await settled()
        slots.resize(3)
        await settled()
        assert order == ["a", "b"]
        assert slots.in_use == 3
        tasks[2].cancel()
        await settled()
        slots.resize(4)
        assert slots.is_free

    virtual_run(main())


def test_fewer_slots_run_out_and_are_not_handed_on() -> None:
    async def main() -> None:
        slots = Slots(3)
        for _ in range(3):
            await slots.acquire()
        waiting = asyncio.create_task(slots.acquire())
        slots.resize(1)
        for _ in range(2):
            slots.release()
            await settled()
            assert not waiting.done()
        slots.release()
        await waiting
        assert slots.in_use == 1

    virtual_run(main())
