"""Turns by tenant, and the room that batches take at a backend."""

from __future__ import annotations

import asyncio
from collections import Counter

from redline.calls import Call, Load, Outcome, Reply, Request, Sink
from redline.serve.batches.turns import Shared, Turns
from redline.testing import VirtualClock, virtual_run


class Holder:
    """Takes turns for tenants, and notes in which order they come."""

    def __init__(self, turns: Turns) -> None:
        self.turns = turns
        self.order: list[str] = []

    def ask(self, tenant: str, times: int = 1) -> list[asyncio.Task[None]]:
        return [asyncio.create_task(self._ask(tenant)) for _ in range(times)]

    async def _ask(self, tenant: str) -> None:
        await self.turns.acquire(tenant)
        self.order.append(tenant)


async def settle() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


def test_tenants_take_turns_however_many_wait() -> None:
    async def main() -> None:
        holder = Holder(Turns(lambda: 1))
        holder.ask("a", 10)
        await settle()
        holder.ask("b", 3)
        holder.ask("c", 3)
        await settle()
        for tenant in "aabcabcabcaaaaaa":
            assert holder.order[-1] == tenant
            holder.turns.release(tenant)
            await settle()

    virtual_run(main())


def test_no_tenant_has_more_than_its_share() -> None:
    async def main() -> None:
        holder = Holder(Turns(lambda: 5, 2))
        holder.ask("a", 4)
        await settle()
        holder.ask("b", 4)
        holder.ask("c", 4)
        await settle()
        assert Counter(holder.order) == {"a": 2, "b": 2, "c": 1}
        holder.turns.release("a")
        holder.turns.release("b")
        holder.turns.release("b")
        await settle()
        # Of the three, one turn for each.
        assert Counter(holder.order) == {"a": 3, "b": 3, "c": 2}
        assert holder.turns.held == 5
        for _ in range(2):
            holder.turns.release("c")
        await settle()
        # `a` has two already.
        assert Counter(holder.order) == {"a": 3, "b": 4, "c": 3}

    virtual_run(main())


def test_who_is_cancelled_takes_no_turn() -> None:
    async def main() -> None:
        holder = Holder(Turns(lambda: 1))
        (first,) = holder.ask("a")
        await settle()
        waiting = holder.ask("a", 2) + holder.ask("b", 2)
        await settle()
        waiting[0].cancel()
        waiting[2].cancel()
        await settle()
        holder.turns.release("a")
        await settle()
        assert holder.turns.held == 1
        # Given and cancelled in the same turn of the loop.
        holder.turns.release(holder.order[-1])
        waiting[1].cancel()
        waiting[3].cancel()
        await settle()
        assert first.done()
        while holder.turns.held:
            holder.turns.release(holder.order[-1])
        assert holder.turns.held == 0
        holder.ask("z")
        await settle()
        assert holder.order[-1] == "z"

    virtual_run(main())


def test_room_that_comes_about_is_given_out_when_somebody_looks() -> None:
    async def main() -> None:
        most = [1]
        holder = Holder(Turns(lambda: most[0]))
        holder.ask("a", 3)
        await settle()
        most[0] = 3
        assert len(holder.order) == 1
        holder.turns.look()
        await settle()
        assert len(holder.order) == 3

    virtual_run(main())


class Sized:
    """A backend that says how many calls it takes at once."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.in_flight = 0
        self.most = 0

    def load(self, now_s: float, request: Request | None = None) -> Load:
        return Load(slots=self.slots)

    async def send(self, request: Request, call: Call, sink: Sink | None = None) -> Outcome:
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        await asyncio.sleep(1.0)
        self.in_flight -= 1
        return Outcome(status="succeeded", reply=Reply(output=""))

    async def aclose(self) -> None:
        raise AssertionError("it is its owner's")


def test_a_backend_has_a_few_calls_more_than_it_can_take() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        for slots, expected in ((4, 20), (100, 150), (1000, 512), (0, 512)):
            backend = Sized(slots)
            shared = Shared(backend, 512, VirtualClock(loop))
            calls = [shared.send(Request(), Call(tenant=str(n % 7))) for n in range(2000)]
            await asyncio.gather(*calls)
            assert backend.most == expected
            assert shared.turns.held == 0
            await shared.aclose()

    virtual_run(main())


def test_a_backend_that_grows_is_given_more() -> None:
    async def main() -> None:
        backend = Sized(10)
        shared = Shared(backend, 512, VirtualClock(asyncio.get_running_loop()))
        working = [asyncio.create_task(shared.send(Request(), Call())) for _ in range(500)]
        await asyncio.sleep(0.5)
        assert backend.most == 26
        backend.slots = 200
        await asyncio.sleep(1.0)
        assert backend.most == 300
        await asyncio.gather(*working)

    virtual_run(main())
