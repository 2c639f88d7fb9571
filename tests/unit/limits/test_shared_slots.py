"""Slots that processes share, in virtual time: each has a table of its own over the same memory."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from redline.limits.shared import LOOK_S, Demand, SharedCount, SharedSlots, Sharer
from redline.process import SharedTable
from redline.testing import VirtualClock, VirtualLoop
from support.catching import assert_caught

Main = Callable[[Sequence[SharedSlots], SharedTable], Coroutine[Any, Any, None]]


class Alone(SharedCount):
    """Counts only what this process uses."""

    @property
    def used(self) -> int:
        return self._words[self._own]


def run(
    main: Main,
    *,
    most: int,
    demands: Sequence[int] = (1, 1),
    bounds: Sequence[int] = (),
    count: type[SharedCount] = SharedCount,
) -> None:
    """Runs `main` with the slots of each process. bounds: of what they take beside them."""

    async def within() -> None:
        clock = VirtualClock(asyncio.get_running_loop())
        first = SharedTable.make(len(demands))
        tables = [first, *(SharedTable(first.fd) for _ in demands[1:])]
        slots = []
        for number, (table, demand) in enumerate(zip(tables, demands, strict=True)):
            sharer = Sharer(table, number, lambda _, demand=demand: Demand(share=demand), clock)
            own = [count(sharer, "a", most)]
            own += [count(sharer, f"bound {at}", bound) for at, bound in enumerate(bounds)]
            slots.append(SharedSlots(sharer, own))
        try:
            await main(slots, first)
        finally:
            for one in slots:
                one.close()
            os.close(first.fd)

    with asyncio.Runner(loop_factory=lambda: VirtualLoop(start_s=10.0)) as runner:
        runner.run(within())


class Work:
    """Calls through slots: how many run at once, and how many were done by each process."""

    def __init__(self) -> None:
        self.running = self.most = 0
        self.done = Counter[int]()

    async def call(self, slots: SharedSlots, process: int, took_s: float) -> None:
        await slots.acquire()
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await asyncio.sleep(took_s)
        finally:
            self.running -= 1
            self.done[process] += 1
            slots.release()

    async def repeat(self, slots: SharedSlots, process: int, took_s: float) -> None:
        while True:
            await self.call(slots, process, took_s)


async def worked(
    work: Work, slots: Sequence[SharedSlots], calls: Sequence[int], for_s: float
) -> None:
    """So many callers in each process, which go on calling for a time."""
    tasks = [
        asyncio.create_task(work.repeat(own, process, 0.1))
        for process, (own, count) in enumerate(zip(slots, calls, strict=True))
        for _ in range(count)
    ]
    await asyncio.sleep(for_s)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


def check_bound(count: type[SharedCount] = SharedCount) -> None:
    work = Work()

    async def main(slots: Sequence[SharedSlots], _: SharedTable) -> None:
        await worked(work, slots, (20, 20), 3.0)
        assert work.most == 5
        assert [one.in_use for one in slots] == [0, 0]
        assert all(one.is_free for one in slots)

    run(main, most=5, count=count)


def test_processes_together_use_all_slots_and_no_more() -> None:
    check_bound()


def test_slots_that_each_process_has_for_itself_are_noticed() -> None:
    assert_caught(check_bound, SharedCount, Alone)


def test_one_process_may_use_all_slots() -> None:
    work = Work()

    async def main(slots: Sequence[SharedSlots], _: SharedTable) -> None:
        await worked(work, slots, (30, 0), 10.0)
        assert work.most == 8
        # As if they were its own.
        assert work.done[0] >= 8 * 99

    run(main, most=8)


def test_slots_are_taken_by_demand_and_hardly_idle() -> None:
    work = Work()

    async def main(slots: Sequence[SharedSlots], _: SharedTable) -> None:
        await worked(work, slots, (60, 20), 20.0)
        assert 0.7 < work.done[0] / work.done.total() < 0.8
        assert work.done.total() > 0.97 * 8 * 200

    run(main, most=8, demands=(60, 20))


def test_two_processes_take_turns_with_a_single_slot() -> None:
    work = Work()

    async def main(slots: Sequence[SharedSlots], _: SharedTable) -> None:
        await worked(work, slots, (5, 5), 20.0)
        assert work.most == 1
        assert 0.4 < work.done[0] / work.done.total() < 0.6

    run(main, most=1, demands=(5, 5))


def test_a_bound_beside_the_slots_holds_for_all() -> None:
    work = Work()

    async def main(slots: Sequence[SharedSlots], _: SharedTable) -> None:
        await worked(work, slots, (20, 20), 3.0)
        assert work.most == 3

    run(main, most=5, bounds=(3,))


def test_a_process_hears_of_a_slot_that_another_gives_back() -> None:
    async def main(slots: Sequence[SharedSlots], _: SharedTable) -> None:
        told: list[float] = []
        clock = VirtualClock(asyncio.get_running_loop())
        slots[1].tell(lambda: told.append(clock.now_s()))
        assert slots[0].take_free()
        assert not slots[1].has_room()
        await asyncio.sleep(1.0)
        assert not told
        slots[0].release()
        began_s = clock.now_s()
        await asyncio.sleep(1.0)
        assert len(told) == 1
        assert told[0] - began_s < 1.01 * LOOK_S
        assert slots[1].has_room()
        assert not slots[1].has_room(1)

    run(main, most=1)


def test_a_lost_process_holds_nothing() -> None:
    async def main(slots: Sequence[SharedSlots], table: SharedTable) -> None:
        assert all(slots[0].take_free() for _ in range(3))
        waiting = asyncio.create_task(slots[1].acquire())
        await asyncio.sleep(1.0)
        assert not waiting.done()
        table.forget(0)
        await asyncio.sleep(2 * LOOK_S)
        assert waiting.done()
        assert slots[1].has_room(1)
        assert not slots[1].has_room(2)

    run(main, most=3)


def test_waiters_that_are_cancelled_leave_nothing_behind() -> None:
    async def main(slots: Sequence[SharedSlots], _: SharedTable) -> None:
        assert slots[0].take_free()
        waiting = [asyncio.create_task(slots[1].acquire()) for _ in range(5)]
        await asyncio.sleep(0.1)
        slots[0].release()
        for task in waiting[:4]:
            task.cancel()
        await asyncio.sleep(0.1)
        assert waiting[4].done()
        slots[1].release()
        assert slots[0].take_free()
        slots[0].release()
        assert [one.in_use for one in slots] == [0, 0]

    run(main, most=1)
