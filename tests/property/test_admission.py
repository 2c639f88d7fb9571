"""A gate keeps its bounds and loses no call, whatever its callers do."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redline.calls import Call, Request
from redline.errors import ServerFailed
from redline.route import Pool
from redline.serve.admission import ClassLoad, ClassSettings, Gate, Overloaded, Place, QueueFull
from redline.testing import virtual_run
from support.admitting import CLOCK, PRIORITIES, assert_empty, pool_of
from support.catching import assert_caught
from support.fleet import ModelServer

SLOTS = 4
RESERVED = 0.25
CLASSES = (
    ClassSettings(name="high", priority=0, reserved=RESERVED, most_waiting=6, most_waiting_each=4),
    ClassSettings(
        name="normal", priority=10, most_waiting=5, most_waiting_each=3, longest_wait_s=2.0
    ),
    ClassSettings(name="low", priority=20, most_waiting=8, longest_wait_s=math.inf),
)


@dataclass(frozen=True)
class Caller:
    """cancel_after_s, deadline_in_s: of its arrival; infinite for never."""

    arrive_s: float
    klass: str
    tenant: str
    tokens: float
    used: float | None
    work_s: float
    cancel_after_s: float
    deadline_in_s: float
    avoid: frozenset[str]


def seconds(*usual: float) -> st.SearchStrategy[float]:
    return st.sampled_from(usual) | st.floats(0.0, 4.0)


callers = st.builds(
    Caller,
    arrive_s=seconds(0.0, 0.0, 1.0),
    klass=st.sampled_from(["high", "normal", "low"]),
    tenant=st.sampled_from("abc"),
    tokens=st.sampled_from([0.0, 1.0, 100.0, 5000.0, math.inf]),
    used=st.sampled_from([None, 0.0, 100.0, 20_000.0]),
    work_s=seconds(0.0, 0.5, 1.0),
    cancel_after_s=st.just(math.inf) | seconds(0.0, 1.0),
    deadline_in_s=st.just(math.inf) | seconds(0.0),
    avoid=st.sampled_from([(), (), ("server-0",), ("server-1",)]).map(frozenset),
)


class Boundless(Pool):
    """Always takes another call."""

    def has_room(self, now_s: float, coming: int = 0, avoid: Collection[str] = frozenset()) -> bool:
        return True

    def slots(self, now_s: float) -> int:
        return 0


def assert_within_bounds(classes: Sequence[ClassLoad]) -> None:
    assert sum(one.in_flight for one in classes) <= SLOTS
    for one, stated in zip(classes, CLASSES, strict=True):
        assert one.in_flight >= 0
        assert 0 <= one.waiting <= stated.most_waiting
        assert one.oldest_wait_s <= stated.longest_wait_s + 1e-9


def assert_says_when(error: QueueFull | Overloaded) -> None:
    assert error.retry_after_s is not None
    assert 0 < error.retry_after_s < math.inf


def assert_all_end(plans: list[Caller], kind: type[Pool] = Pool) -> None:
    ends = dict.fromkeys(("answered", "refused", "cancelled", "given up"), 0)
    # Callers that have not got in yet, by class and tenant.
    outside = Counter[tuple[str, str]]()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        servers = [
            ModelServer(
                f"server-{number}",
                slots=SLOTS // 2,
                bound=SLOTS // 2,
                fails=lambda at_s, number: (
                    ServerFailed("HTTP 500", status=500) if not number % 7 else None
                ),
            )
            for number in range(2)
        ]
        pool = pool_of(servers, kind=kind)
        gate = Gate(pool, CLASSES, clock=CLOCK)

        async def enter(plan: Caller) -> Place:
            outside[plan.klass, plan.tenant] += 1
            try:
                return await gate.enter(
                    plan.klass,
                    tenant=plan.tenant,
                    tokens=plan.tokens,
                    deadline_s=loop.time() + plan.deadline_in_s,
                    avoid=plan.avoid,
                )
            except asyncio.CancelledError:
                ends["given up"] += 1
                raise
            finally:
                outside[plan.klass, plan.tenant] -= 1

        async def call(plan: Caller) -> None:
            await asyncio.sleep(plan.arrive_s)
            try:
                with await enter(plan) as place:
                    assert_within_bounds(gate.classes())
                    call = Call(priority=PRIORITIES[plan.klass], avoid=plan.avoid)
                    await pool.send(Request(body={"work": plan.work_s}), call)
                    if plan.used is not None:
                        place.settle(plan.used)
            except (QueueFull, Overloaded) as error:
                assert_says_when(error)
                ends["refused"] += 1
            except asyncio.CancelledError:
                ends["cancelled"] += 1
                raise
            else:
                ends["answered"] += 1

        async def watch() -> None:
            while True:
                await asyncio.sleep(0.0173)
                classes = gate.classes()
                assert_within_bounds(classes)
                for one, stated in zip(classes, CLASSES, strict=True):
                    waiting = [count for (klass, _), count in outside.items() if klass == one.name]
                    assert sum(waiting) == one.waiting
                    assert max(waiting, default=0) <= stated.of_a_tenant
                if classes[0].waiting:
                    # It waits because there is no room for it.
                    assert sum(one.in_flight for one in classes) == SLOTS or not (
                        pool.has_room(loop.time(), 0, frozenset({"server-0"}))
                        and pool.has_room(loop.time(), 0, frozenset({"server-1"}))
                    )

        watching = asyncio.create_task(watch())
        tasks = [asyncio.create_task(call(plan)) for plan in plans]
        for plan, task in zip(plans, tasks, strict=True):
            if plan.cancel_after_s < math.inf:
                loop.call_later(plan.arrive_s + plan.cancel_after_s, task.cancel)
        await asyncio.wait(
            [watching, asyncio.gather(*tasks, return_exceptions=True)],
            return_when=asyncio.FIRST_COMPLETED,
        )
        assert not watching.done() or watching.result()
        watching.cancel()
        for task in tasks:
            if not task.cancelled():
                task.result()
        assert_empty(gate)
        classes = gate.classes()
        assert sum(sum(one.refused.values()) for one in classes) == ends["refused"]
        given_up = ends.pop("given up")
        assert sum(ends.values()) <= len(plans)
        passed = ends["answered"] + ends["cancelled"]
        # A call that is cancelled in the turn in which it starts has been admitted.
        assert passed - given_up <= sum(one.admitted for one in classes) <= passed
        await pool.aclose()

    virtual_run(main())


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.lists(callers, min_size=1, max_size=30))
def test_a_gate_keeps_its_bounds_and_loses_no_call(plans: list[Caller]) -> None:
    assert_all_end(plans)


def test_a_pool_without_bounds_is_noticed() -> None:
    plan = Caller(0.0, "high", "a", 1.0, None, 1.0, math.inf, math.inf, frozenset())

    def check(kind: type[Pool]) -> None:
        assert_all_end([plan] * 8, kind)

    assert_caught(check, Pool, Boundless)
