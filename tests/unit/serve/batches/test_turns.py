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
        holder = Holder(Turns(lambda: 5))
        holder.ask("a", 10)
        await settle()
        holder.ask("b", 3)
        holder.ask("c", 3)
        await settle()
        assert "".join(holder.order) == "aaaaabc"
        for _ in range(3):
            holder.turns.release("a")
            await settle()
        # Each keeps its first one.
        for tenant in "abcabcaaa":
            assert holder.order[-1] == tenant
            holder.turns.release(tenant)
            await settle()

    virtual_run(main())


def test_a_tenant_without_a_turn_waits_for_no_other() -> None:
    async def main() -> None:
        holder = Holder(Turns(lambda: 4, 2))
        holder.ask("a", 3)
        holder.ask("b", 3)
        await settle()
        assert holder.order == ["a", "a", "b", "b"]
        # Nothing of these ever ends.
        holder.ask("c", 2)
        await settle()
        assert holder.order == ["a", "a", "b", "b", "c"]
        for _ in range(2):
            holder.turns.release("a")
            await settle()
        assert Counter(holder.order) == {"a": 3, "b": 2, "c": 1}

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
        waiting = holder.ask("a", 4)
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
    """A backend that says how many calls to a model it takes at once.

    lasts_s: how long its calls take, by their model.
    """

    def __init__(self, slots: int, **lasts_s: float) -> None:
        self.slots = slots
        self.lasts_s = lasts_s
        self.in_flight = 0
        self.most = 0
        self.ended: Counter[str] = Counter()

    def load(self, now_s: float, request: Request | None = None) -> Load:
        return Load(slots=self.slots)

    async def send(self, request: Request, call: Call, sink: Sink | None = None) -> Outcome:
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        model = request.body["model"]
        await asyncio.sleep(self.lasts_s.get(model, 1.0))
        self.in_flight -= 1
        self.ended[model] += 1
        return Outcome(status="succeeded", reply=Reply(output=""))

    async def aclose(self) -> None:
        raise AssertionError("it is its owner's")


def asked(model: str = "m") -> Request:
    return Request(body={"model": model})


def test_a_backend_has_a_few_calls_more_than_it_can_take() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        for slots, expected in ((4, 20), (100, 150), (1000, 512), (0, 512)):
            backend = Sized(slots)
            shared = Shared(backend, 512, VirtualClock(loop))
            await asyncio.gather(*(shared.send(asked(), Call()) for _ in range(2000)))
            assert backend.most == expected
            assert shared.held == 0
            await shared.aclose()

    virtual_run(main())


def test_a_backend_that_grows_is_given_more() -> None:
    async def main() -> None:
        backend = Sized(10)
        shared = Shared(backend, 512, VirtualClock(asyncio.get_running_loop()))
        working = [asyncio.create_task(shared.send(asked(), Call())) for _ in range(500)]
        await asyncio.sleep(0.5)
        assert shared.held == backend.most == 26
        backend.slots = 200
        shared.look()
        await asyncio.sleep(0.1)
        assert shared.held == backend.most == 300
        await asyncio.gather(*working)

    virtual_run(main())


def test_calls_that_get_nowhere_hold_up_neither_other_tenants_nor_other_models() -> None:
    async def main() -> None:
        backend = Sized(10, stuck=3600.0)
        shared = Shared(backend, 512, VirtualClock(asyncio.get_running_loop()))
        stuck = [asyncio.create_task(shared.send(asked("stuck"), Call())) for _ in range(500)]
        await asyncio.sleep(0.1)
        others = [shared.send(asked("m"), Call(tenant=tenant)) for tenant in ("", "b") * 100]
        await asyncio.gather(*others)
        assert backend.ended == {"m": 200}
        for task in stuck:
            task.cancel()
        await asyncio.wait(stuck)
        assert shared.held == 0

    virtual_run(main())
