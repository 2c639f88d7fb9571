"""Classes and tenants over several workers: gates that share the slots of an endpoint."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import pytest

from redline.limits.shared import SharedCount, SharedFlights, SharedSlots, Sharer
from redline.process import SharedTable
from redline.serve.admission import Gate
from redline.testing import VirtualClock, VirtualLoop
from redline.waist import Load, Request

SLOTS = 16
WORK_S = 0.4


class SharedRoom:
    """Endpoints of a worker, by name: slots, some of which others use."""

    def __init__(self, slots: dict[str, SharedSlots]) -> None:
        self._slots = slots

    def has_room(self, now_s: float, coming: int = 0, avoid: frozenset[str] = frozenset()) -> bool:
        usable = (slots for name, slots in self._slots.items() if name not in avoid)
        return any(slots.has_room(coming) for slots in usable)

    def slots(self, now_s: float) -> int:
        return SLOTS * len(self._slots)

    def load(self, now_s: float, request: Request | None = None) -> Load:
        return Load()

    def held_by(self, on_room: Callable[[], None]) -> None:
        for slots in self._slots.values():
            slots.tell(on_room)


class Worker:
    """A gate and what it shares. done: calls by tenant. waits_s: of high calls."""

    def __init__(
        self, table: SharedTable, number: int, clock: VirtualClock, endpoints: tuple[str, ...]
    ) -> None:
        self._calls = {
            name: SharedFlights(table, f"tenant/{name}", number) for name in ("one", "other")
        }
        sharer = Sharer(table, number, lambda endpoint: self.gate.demand(endpoint), clock)
        self.slots = {
            name: SharedSlots(sharer, [SharedCount(sharer, name, SLOTS, name)])
            for name in endpoints
        }
        self.gate = Gate(
            SharedRoom(self.slots),
            flights=lambda name: SharedFlights(table, f"class/{name}", number),
            want=self._want,
            clock=clock,
        )
        self.done = Counter[str]()
        self.waits_s: list[float] = []

    def _want(self) -> None:
        for name, slots in self.slots.items():
            if self.gate.waits_for(name):
                slots.want()

    async def call(self, klass: str, tenant: str, endpoint: str = "endpoint") -> None:
        calls, loop = self._calls[tenant], asyncio.get_running_loop()
        calls.add(1)
        came_s = loop.time()
        weight = calls.own / calls.count
        avoid = frozenset(self.slots) - {endpoint}
        with await self.gate.enter(klass, tenant=tenant, weight=weight, avoid=avoid):
            assert self.slots[endpoint].take_free()
            if klass == "high":
                self.waits_s.append(loop.time() - came_s)
            await asyncio.sleep(WORK_S)
            self.slots[endpoint].release()
        calls.add(-1)
        self.done[tenant] += 1

    async def keep(
        self, klass: str, tenant: str, within_s: float, endpoint: str = "endpoint"
    ) -> None:
        """One call after the other."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + within_s
        while loop.time() < until_s:
            await self.call(klass, tenant, endpoint)


def run(
    main: Callable[[Worker, Worker], Coroutine[Any, Any, None]],
    endpoints: tuple[str, ...] = ("endpoint",),
) -> None:
    async def within() -> None:
        clock = VirtualClock(asyncio.get_running_loop())
        first = SharedTable.make(2)
        tables = (first, SharedTable(first.fd))
        workers = [Worker(one, n, clock, endpoints) for n, one in enumerate(tables)]
        try:
            await main(*workers)
        finally:
            for worker in workers:
                for slots in worker.slots.values():
                    slots.close()
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


@pytest.mark.parametrize("klass", ["normal", "high"])
def test_calls_that_wait_for_one_endpoint_hold_back_none_of_another(klass: str) -> None:
    """Both endpoints are in one pool, and each worker has calls for one of them alone."""

    async def main(one: Worker, other: Worker) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(3 * SLOTS):
                group.create_task(one.keep(klass, "one", 40, "y"))
            for _ in range(SLOTS - 2):
                group.create_task(other.keep("normal", "other", 40, "x"))
        assert one.done["one"] > 0.9 * SLOTS * 40 / WORK_S
        assert other.done["other"] > 0.9 * (SLOTS - 2) * 40 / WORK_S

    run(main, ("x", "y"))
