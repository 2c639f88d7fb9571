"""Classes and tenants over several workers: gates that share the slots of an endpoint."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from redline.limits.shared import SharedCount, SharedFlights, SharedSlots, Sharer
from redline.process import SharedTable
from redline.serve.admission import Gate
from redline.testing import VirtualClock, VirtualLoop
from redline.waist import Load, Request

SLOTS = 16
WORK_S = 0.4


class SharedRoom:
    """An endpoint of a worker: slots, some of which others use."""

    def __init__(self, slots: SharedSlots) -> None:
        self._slots = slots

    def has_room(self, now_s: float, coming: int = 0, avoid: frozenset[str] = frozenset()) -> bool:
        return self._slots.has_room(coming)

    def slots(self, now_s: float) -> int:
        return SLOTS

    def load(self, now_s: float, request: Request | None = None) -> Load:
        return Load()

    def held_by(self, on_room: Callable[[], None]) -> None:
        self._slots.tell(on_room)


class Worker:
    """A gate and what it shares. done: calls by tenant. waits_s: of high calls."""

    def __init__(self, table: SharedTable, number: int, clock: VirtualClock) -> None:
        self._calls = {
            name: SharedFlights(table, f"tenant/{name}", number) for name in ("one", "other")
        }
        sharer = Sharer(table, number, lambda _: self.gate.demand(), clock)
        self.slots = SharedSlots(sharer, [SharedCount(sharer, "endpoint", SLOTS)])
        self.gate = Gate(
            SharedRoom(self.slots),
            flights=lambda name: SharedFlights(table, f"class/{name}", number),
            want=self.slots.want,
            clock=clock,
        )
        self.done = Counter[str]()
        self.waits_s: list[float] = []

    async def call(self, klass: str, tenant: str) -> None:
        calls, loop = self._calls[tenant], asyncio.get_running_loop()
        calls.add(1)
        came_s = loop.time()
        weight = calls.own / calls.count
        async with self.gate.admitted(klass=klass, tenant=tenant, weight=weight):
            assert self.slots.take_free()
            if klass == "high":
                self.waits_s.append(loop.time() - came_s)
            await asyncio.sleep(WORK_S)
            self.slots.release()
        calls.add(-1)
        self.done[tenant] += 1

    async def keep(self, klass: str, tenant: str, within_s: float) -> None:
        """One call after the other."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + within_s
        while loop.time() < until_s:
            await self.call(klass, tenant)


def run(main: Callable[[Worker, Worker], Coroutine[Any, Any, None]]) -> None:
    async def within() -> None:
        clock = VirtualClock(asyncio.get_running_loop())
        first = SharedTable.make(2)
        workers = [Worker(first, 0, clock), Worker(SharedTable(first.fd), 1, clock)]
        try:
            await main(*workers)
        finally:
            for worker in workers:
                worker.slots.close()
            os.close(first.fd)

    with asyncio.Runner(loop_factory=partial(VirtualLoop, start_s=10.0)) as runner:
        runner.run(within())


def test_a_higher_class_goes_first_whichever_worker_has_its_calls() -> None:
    async def main(one: Worker, other: Worker) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(40):
                group.create_task(one.keep("low", "one", 40))
            for _ in range(12):
                group.create_task(other.keep("high", "other", 40))
        # As many as their own slots would allow, but for the moments in which they look.
        assert other.done["other"] > 0.9 * 12 * 40 / WORK_S
        assert one.done["one"] > 0.8 * (SLOTS - 12) * 40 / WORK_S

    run(main)


def test_tenants_have_equal_shares_however_their_connections_are_spread() -> None:
    async def main(one: Worker, other: Worker) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(40):
                group.create_task(one.keep("normal", "one", 40))
            for _ in range(12):
                group.create_task(other.keep("normal", "other", 40))
        few = other.done["other"]
        assert 0.45 < few / (few + one.done["one"]) < 0.55

    run(main)


def test_a_tenant_on_both_workers_has_no_more_than_one_that_is_on_one() -> None:
    async def main(one: Worker, other: Worker) -> None:
        async with asyncio.TaskGroup() as group:
            for worker in (one, other):
                for _ in range(20):
                    group.create_task(worker.keep("normal", "one", 40))
            for _ in range(20):
                group.create_task(other.keep("normal", "other", 40))
        both, single = one.done["one"] + other.done["one"], other.done["other"]
        assert 0.45 < single / (both + single) < 0.55

    run(main)


def test_slots_that_are_reserved_stay_free_of_the_low_calls_of_all_workers() -> None:
    async def main(one: Worker, other: Worker) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(one.call("high", "one"))
            await asyncio.sleep(5)
            for worker in (one, other):
                for _ in range(24):
                    group.create_task(worker.keep("low", "one", 30))
            await asyncio.sleep(2)
            for number in range(20):
                await (one, other)[number % 2].call("high", "other")
        # None has waited for a low call to end; both workers' low calls have run.
        waits_s = sorted((*one.waits_s, *other.waits_s))
        assert waits_s[-1] < 0.05
        low = one.done["one"], other.done["one"]
        assert min(low) > 0.35 * sum(low)

    run(main)
