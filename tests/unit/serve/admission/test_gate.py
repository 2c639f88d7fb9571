"""A gate lets calls start in the order of their classes, and refuses those that come too late."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from redline.calls import Call, Load, Request
from redline.errors import ConfigError, Withdrawn
from redline.limits.shared import Demand
from redline.serve.admission import ClassSettings, Gate, Gated, Overloaded, Place, QueueFull
from redline.testing import VirtualClock, virtual_run
from support.admitting import CLOCK, Site, assert_empty, error_of, pool_of, servers
from support.fleet import ModelServer

PLAIN = (
    ClassSettings(name="high", priority=0),
    ClassSettings(name="normal", priority=10),
    ClassSettings(name="low", priority=20),
)


def gate_of(slots: int, *classes: ClassSettings) -> Gate:
    """In front of one server; with the usual three classes unless others are given."""
    return Gate(pool_of(servers(1, slots=slots)), classes or PLAIN, clock=CLOCK)


def in_flight(gate: Gate) -> int:
    return sum(one.in_flight for one in gate.classes())


def now_s() -> float:
    return asyncio.get_running_loop().time()


async def settled() -> None:
    """All that can go on without time passing has gone on."""
    for _ in range(5):
        await asyncio.sleep(0)


def entering(gate: Gate, klass: str = "normal", **asked: Any) -> asyncio.Task[Place]:
    return asyncio.create_task(gate.enter(klass, **asked))


def in_virtual_time(main: Coroutine[Any, Any, None]) -> None:
    virtual_run(main)


def test_a_call_starts_at_once_while_slots_are_free() -> None:
    async def main() -> None:
        gate = gate_of(2)
        first, second = gate.try_enter("low"), gate.try_enter("high")
        assert first is not None
        assert second is not None
        assert gate.try_enter("high") is None
        assert in_flight(gate) == 2
        first.leave()
        first.leave()
        assert in_flight(gate) == 1
        with second:
            pass
        assert_empty(gate)

    in_virtual_time(main())


def test_the_highest_class_goes_first_and_each_class_in_order() -> None:
    async def main() -> None:
        gate, order = gate_of(1), list[str]()

        async def call(klass: str, name: str) -> None:
            with await gate.enter(klass):
                order.append(name)
                await asyncio.sleep(1.0)

        first = gate.try_enter("normal")
        assert first is not None
        async with asyncio.TaskGroup() as group:
            for name in ("low-1", "normal-1", "high-1", "low-2", "normal-2", "high-2"):
                group.create_task(call(name.partition("-")[0], name))
            await settled()
            first.leave()
        assert order == ["high-1", "high-2", "normal-1", "normal-2", "low-1", "low-2"]
        assert_empty(gate)

    in_virtual_time(main())


def test_a_new_call_does_not_pass_those_that_wait() -> None:
    async def main() -> None:
        gate = gate_of(1)
        first = gate.try_enter("normal")
        assert first is not None
        waiting = entering(gate, "normal")
        await settled()
        first.leave()
        # The slot is the waiting call's, before its task has run.
        assert gate.try_enter("normal") is None
        (await waiting).leave()
        assert_empty(gate)

    in_virtual_time(main())


def test_lower_classes_leave_the_share_that_is_reserved() -> None:
    async def main() -> None:
        high = ClassSettings(name="high", priority=0, reserved=0.25)
        gate = gate_of(8, high, ClassSettings(name="low", priority=20))
        first = gate.try_enter("high")
        assert first is not None
        first.leave()
        await asyncio.sleep(1.0)
        low = [gate.try_enter("low") for _ in range(7)]
        assert [place is not None for place in low] == [True] * 6 + [False]
        assert gate.try_enter("high") is not None
        assert gate.try_enter("high") is not None
        assert gate.try_enter("high") is None

    in_virtual_time(main())


@pytest.mark.parametrize(("slots", "for_low"), [(2, 2), (4, 4), (5, 4), (11, 9)])
def test_a_slot_is_kept_free_if_lower_classes_then_have_four_fifths(
    slots: int, for_low: int
) -> None:
    async def main() -> None:
        high = ClassSettings(name="high", priority=0, reserved=0.15)
        gate = gate_of(slots, high, ClassSettings(name="low", priority=20))
        first = gate.try_enter("high")
        assert first is not None
        first.leave()
        await asyncio.sleep(1.0)
        assert sum(gate.try_enter("low") is not None for _ in range(slots)) == for_low

    in_virtual_time(main())


def test_nothing_is_kept_free_for_a_class_that_is_not_used() -> None:
    async def main() -> None:
        high = ClassSettings(name="high", priority=0, reserved=0.25)
        gate = gate_of(8, high, ClassSettings(name="low", priority=20))
        low = [gate.try_enter("low") for _ in range(8)]
        assert all(low)
        for place in low:
            assert place is not None
            place.leave()
        first = gate.try_enter("high")
        assert first is not None
        first.leave()
        await asyncio.sleep(1.0)
        assert sum(gate.try_enter("low") is not None for _ in range(8)) == 6
        # Ten minutes later it is as if there were no such class.
        await asyncio.sleep(660.0)
        assert sum(gate.try_enter("low") is not None for _ in range(8)) == 2

    in_virtual_time(main())


def test_what_a_class_uses_is_not_kept_free_beside_it() -> None:
    async def main() -> None:
        high = ClassSettings(name="high", priority=0, reserved=0.25)
        gate = gate_of(8, high, ClassSettings(name="low", priority=20))
        assert all(gate.try_enter("high") for _ in range(4))
        for _ in range(60):
            await asyncio.sleep(1.0)
            gate.classes()
        # It has used 4 of 8 for long: a quarter of the others is 1.
        low = [gate.try_enter("low") for _ in range(4)]
        assert [place is not None for place in low] == [True] * 3 + [False]

    in_virtual_time(main())


def test_a_stated_bound_counts_beside_the_endpoints() -> None:
    async def main() -> None:
        gate = Gate(pool_of(servers(1, slots=8), most=2), PLAIN, clock=CLOCK)
        assert [gate.try_enter("high") is None for _ in range(3)] == [False, False, True]

    in_virtual_time(main())


def test_a_full_queue_is_429_and_only_for_whom_it_is_full() -> None:
    async def main() -> None:
        only = ClassSettings(name="normal", priority=0, most_waiting=3, most_waiting_each=2)
        gate = gate_of(1, only)
        assert gate.try_enter("normal")
        tasks = [entering(gate, tenant="greedy") for _ in range(3)]
        await settled()
        assert tasks[2].done()
        error = error_of(tasks[2])
        assert isinstance(error, QueueFull)
        assert error.status == 429
        assert error.retry_after_s
        assert "2 calls of tenant greedy" in error.what
        tasks.append(entering(gate, tenant="other"))
        await settled()
        assert not tasks[3].done()
        tasks.append(entering(gate, tenant="third"))
        await settled()
        assert "class normal" in error_of(tasks[4]).what
        (state,) = gate.classes()
        assert state.waiting == 3
        assert state.refused == {"tenant": 1, "class": 1}
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        assert gate.classes()[0].waiting == 0

    in_virtual_time(main())


def test_a_call_that_has_waited_for_as_long_as_it_may_is_503() -> None:
    async def main() -> None:
        only = ClassSettings(name="normal", priority=0, longest_wait_s=5.0)
        gate = gate_of(1, only)
        place = gate.try_enter("normal")
        assert place is not None
        begun_s = now_s()
        slow = entering(gate)
        hasty = entering(gate, deadline_s=begun_s + 2.0)
        past = entering(gate, deadline_s=begun_s)
        await settled()
        assert error_of(past).status == 503
        assert error_of(past).what == "the call cannot start at once, and no wait is allowed"
        await asyncio.wait([hasty])
        assert now_s() - begun_s == pytest.approx(2.0)
        assert isinstance(error_of(hasty), Overloaded)
        await asyncio.wait([slow])
        assert now_s() - begun_s == pytest.approx(5.0)
        assert error_of(slow).status == 503
        assert gate.classes()[0].refused == {"wait": 1, "late": 2}
        place.leave()
        assert_empty(gate)

    in_virtual_time(main())


def test_a_call_that_would_wait_too_long_is_refused_at_once_and_told_when_to_come() -> None:
    async def main() -> None:
        site = Site(count=1, slots=4)  # 4 calls a second
        async with asyncio.TaskGroup() as group:
            for _ in range(100):
                group.create_task(site.call("normal", 1.0))
            await asyncio.sleep(5.5)
            # 76 wait, which takes 19 s.
            state = site.gate.classes()[1]
            assert state.waiting == 76
            assert state.oldest_wait_s == pytest.approx(5.5)
            refused = entering(site.gate, deadline_s=now_s() + 10.0)
            await settled()
            error = error_of(refused)
            assert isinstance(error, Overloaded)
            assert error.retry_after_s == pytest.approx(9.0, abs=2.0)
            # Another tenant has its turn much sooner.
            other = entering(site.gate, tenant="other", deadline_s=now_s() + 10.0)
            begun_s = now_s()
            (await other).leave()
            assert now_s() - begun_s < 2.0
        assert len(site.latencies_s["normal"]) == 100
        assert_empty(site.gate)

    in_virtual_time(main())


def test_calls_that_are_sent_away_leave_in_the_order_of_their_arrival_and_nothing_behind() -> None:
    async def main() -> None:
        gate = gate_of(1, *PLAIN)
        first = gate.try_enter("normal")
        assert first is not None
        ended = list[str]()

        async def enter(klass: str, tenant: str, name: str) -> None:
            try:
                await gate.enter(klass, tenant=tenant)
            except Withdrawn:
                ended.append(name)

        async with asyncio.TaskGroup() as group:
            for klass, tenant, name in (
                ("normal", "a", "1st"),
                ("normal", "b", "2nd"),
                ("low", "a", "of the lower class"),
                ("normal", "a", "3rd"),
            ):
                group.create_task(enter(klass, tenant, name))
                await settled()
            cancelled = entering(gate, "low")
            await settled()
            gate.move()
            cancelled.cancel()
        assert ended == ["1st", "2nd", "3rd", "of the lower class"]
        assert gate.try_enter("high") is None
        first.leave()
        assert_empty(gate)
        last = gate.try_enter("low")
        assert last is not None

    in_virtual_time(main())


@pytest.mark.parametrize("moment", ["waiting", "given", "late"])
def test_a_cancelled_call_leaves_nothing_behind(moment: str) -> None:
    async def main() -> None:
        gate = gate_of(1, ClassSettings(name="normal", priority=0, longest_wait_s=3.0))
        first = gate.try_enter("normal")
        assert first is not None
        task = entering(gate)
        await settled()
        if moment == "given":
            first.leave()
        elif moment == "late":
            # Its timer has rung, and its task has not run yet.
            asyncio.get_running_loop().call_later(3.0, task.cancel)
        if moment != "late":
            task.cancel()
        await asyncio.wait([task])
        first.leave()
        assert_empty(gate)
        last = gate.try_enter("normal")
        assert last is not None

    in_virtual_time(main())


def test_an_endpoint_that_is_full_holds_back_only_the_calls_that_need_it() -> None:
    async def main() -> None:
        pool = pool_of(servers(2, slots=1))
        gate = Gate(pool, PLAIN, clock=CLOCK)

        async def call(tenant: str, avoid: str) -> float:
            names = frozenset({avoid})
            with await gate.enter("high", tenant=tenant, avoid=names):
                await pool.send(Request(body={"work": 10.0}), Call(avoid=names))
            return now_s()

        begun_s = now_s()
        async with asyncio.TaskGroup() as group:
            on_first = [group.create_task(call("a", "server-1")) for _ in range(3)]
            await asyncio.sleep(1.0)
            on_second = group.create_task(call("a", "server-0"))
        assert on_second.result() - begun_s == pytest.approx(11.0)
        assert [one.result() - begun_s for one in on_first] == pytest.approx([10.0, 20.0, 30.0])
        assert_empty(gate)

    in_virtual_time(main())


@pytest.mark.parametrize("waiting", [2, 3])
def test_calls_that_wait_for_one_endpoint_have_no_call_of_another_refused(waiting: int) -> None:
    klass = ClassSettings(name="normal", priority=10, most_waiting_each=3)

    async def main() -> None:
        pool = pool_of(servers(2, slots=1))
        gate = Gate(pool, (klass,), clock=CLOCK)
        first, second = frozenset({"server-1"}), frozenset({"server-0"})

        async def call(work_s: float, avoid: frozenset[str]) -> None:
            tokens = 1000 * work_s
            with await gate.enter("normal", tenant="a", tokens=tokens, avoid=avoid):
                await pool.send(Request(body={"work": work_s}), Call(avoid=avoid))

        stuck = [asyncio.create_task(call(1000.0, first)) for _ in range(1 + waiting)]
        await settled()
        for _ in range(8):
            # One starts at once. Another one waits for it, unless as many wait as may.
            await asyncio.gather(*(call(1.0, second) for _ in range(4 - waiting)))
        assert [one.waiting for one in gate.classes()] == [waiting]
        for task in stuck:
            task.cancel()
        await asyncio.wait(stuck)
        assert_empty(gate)

    in_virtual_time(main())


def test_a_call_that_would_wait_too_long_for_one_endpoint_is_refused_at_once() -> None:
    async def main() -> None:
        pool = pool_of(servers(2, slots=1))
        gate = Gate(pool, PLAIN, clock=CLOCK)
        first, second = frozenset({"server-1"}), frozenset({"server-0"})

        async def call(work_s: float, avoid: frozenset[str]) -> None:
            with await gate.enter("normal", avoid=avoid):
                await pool.send(Request(body={"work": work_s}), Call(avoid=avoid))

        async with asyncio.TaskGroup() as group:
            for _ in range(25):
                group.create_task(call(1.0, first))
                group.create_task(call(2.0, second))
            await asyncio.sleep(8.5)
            # 16 wait for 1 s each, and 20 for 2 s.
            begun_s = now_s()
            refused = [
                entering(gate, deadline_s=begun_s + 5.0, avoid=avoid) for avoid in (first, second)
            ]
            await asyncio.wait(refused)
            assert now_s() == begun_s
            waits_s = [error_of(one).retry_after_s for one in refused]
            assert waits_s == pytest.approx([11.0, 35.0], rel=0.25)
        assert_empty(gate)

    in_virtual_time(main())


class Rooms:
    """Endpoints of which each has room for so many calls."""

    def __init__(self, **free: int) -> None:
        self.free = free
        self.on_room: Callable[[], None] = lambda: None

    def has_room(self, now_s: float, coming: int = 0, avoid: frozenset[str] = frozenset()) -> bool:
        return sum(free for name, free in self.free.items() if name not in avoid) > coming

    def slots(self, now_s: float) -> int:
        return 0

    def load(self, now_s: float, request: Request | None = None) -> Load:
        return Load()

    def held_by(self, on_room: Callable[[], None]) -> None:
        self.on_room = on_room


def test_a_call_does_not_pass_a_higher_one_while_another_is_about_to_start() -> None:
    async def main() -> None:
        rooms = Rooms(a=0, b=0)
        gate = Gate(rooms, PLAIN, clock=CLOCK)
        of_a = entering(gate, "high", avoid=frozenset({"b"}))
        of_b = entering(gate, "high", avoid=frozenset({"a"}))
        await settled()
        for name in rooms.free:
            rooms.free[name] = 1
            rooms.on_room()
        assert gate.try_enter("low") is None
        await asyncio.wait([of_a, of_b])

    in_virtual_time(main())


def test_a_call_about_to_start_holds_back_no_call_of_another_endpoint() -> None:
    async def main() -> None:
        rooms = Rooms(a=0, b=0)
        gate = Gate(rooms, PLAIN, clock=CLOCK)
        of_a = [entering(gate, avoid=frozenset({"b"})) for _ in range(2)]
        await settled()
        rooms.free["a"] = 1
        rooms.on_room()
        rooms.free["b"] = 2
        assert gate.try_enter("normal", frozenset({"a"})) is not None
        for task in of_a:
            task.cancel()
        await asyncio.wait(of_a)

    in_virtual_time(main())


class Unstated(ModelServer):
    """Says whether it has room, and not how many slots. parked_until_s: it has none before."""

    parked_until_s = 0.0

    def has_room(self, now_s: float, coming: int = 0) -> bool:
        return now_s >= self.parked_until_s and super().has_room(now_s, coming)

    def load(self, now_s: float, request: Request | None = None) -> Load:
        return Load(in_flight=self.in_flight, parked_until_s=self.parked_until_s)


def test_without_stated_slots_room_decides_and_nothing_waits_in_the_pool() -> None:
    async def main() -> None:
        pool = pool_of([Unstated("server-0", slots=2, bound=2)])
        gate = Gate(pool, PLAIN, clock=CLOCK)
        backend, begun_s = Gated(pool, gate, clock=CLOCK), now_s()
        outcomes = await asyncio.gather(
            *(backend.send(Request(body={"work": 1.1}), Call()) for _ in range(6))
        )
        assert now_s() - begun_s == pytest.approx(3.3)
        assert not pool.traffic.waits
        assert all(one.is_success for one in outcomes)

    in_virtual_time(main())


def test_calls_start_as_soon_as_an_endpoint_is_not_parked_any_more() -> None:
    async def main() -> None:
        server = Unstated("server-0", slots=2, bound=2)
        pool = pool_of([server])
        gate = Gate(pool, PLAIN, clock=CLOCK)
        server.parked_until_s = begun_s = now_s() + 1.13
        places = [entering(gate) for _ in range(2)]
        hasty = entering(gate, deadline_s=now_s() + 0.5)
        await settled()
        # Until then nothing can start, which is known.
        assert error_of(hasty).retry_after_s == pytest.approx(0.63)
        for place in places:
            (await place).leave()
            assert now_s() == pytest.approx(begun_s)
        await pool.aclose()

    in_virtual_time(main())


def test_a_call_that_one_about_to_start_holds_back_starts_in_the_same_moment() -> None:
    async def main() -> None:
        pool = pool_of(servers(2, slots=1))
        gate = Gate(pool, PLAIN, clock=CLOCK)
        starts_s = list[float]()

        async def call(avoid: str) -> None:
            names = frozenset({avoid})
            with await gate.enter("high", avoid=names):
                starts_s.append(now_s())
                await pool.send(Request(body={"work": 1.1}), Call(avoid=names))

        begun_s = now_s()
        async with asyncio.TaskGroup() as group:
            for _ in range(3):
                group.create_task(call("server-0"))
                group.create_task(call("server-1"))
        waits_s = [at_s - begun_s for at_s in starts_s]
        assert waits_s == pytest.approx([0.0, 0.0, 1.1, 1.1, 2.2, 2.2])

    in_virtual_time(main())


def test_calls_of_one_tenant_start_in_order_whatever_they_avoid() -> None:
    async def main() -> None:
        gate, order = gate_of(1), list[int]()

        async def call(number: int, *avoid: str) -> None:
            with await gate.enter("high", avoid=frozenset(avoid)):
                order.append(number)
                await asyncio.sleep(1.0)

        async with asyncio.TaskGroup() as group:
            for number, avoid in enumerate([(), ("x",), (), ("y",), ("x",), ()]):
                group.create_task(call(number, *avoid))
        assert order == [0, 1, 2, 3, 4, 5]

    in_virtual_time(main())


def test_time_in_which_nothing_waits_says_nothing_of_the_rate() -> None:
    async def main() -> None:
        site = Site(count=1, slots=4)
        for _ in range(3):
            async with asyncio.TaskGroup() as group:
                for _ in range(40):
                    group.create_task(site.call("normal", 1.0))
                await asyncio.sleep(5.5)
                # 16 wait, which takes 4 s.
                refused = entering(site.gate, deadline_s=now_s() + 1.0)
                await settled()
                assert error_of(refused).retry_after_s == pytest.approx(3.0, rel=0.25)
            await asyncio.sleep(1000.0)

    in_virtual_time(main())


def test_a_gated_backend_has_the_class_of_the_priority_and_fails_what_is_refused() -> None:
    async def main() -> None:
        pool = pool_of(servers(1, slots=1))
        only = ClassSettings(name="low", priority=20, most_waiting=1)
        gate = Gate(pool, (ClassSettings(name="high", priority=0), only), clock=CLOCK)
        backend = Gated(pool, gate, clock=CLOCK)
        sends = [
            asyncio.create_task(backend.send(Request(body={"work": 1.0}), Call(priority=priority)))
            for priority in (0, 20, 20, 7)
        ]
        await settled()
        outcomes = [await send for send in sends]
        assert [one.status for one in outcomes] == [
            "succeeded",
            "succeeded",
            "exhausted",
            "exhausted",
        ]
        assert all(isinstance(one.error, QueueFull) for one in outcomes[2:])
        assert outcomes[1].tried[0].queued_s is not None
        assert_empty(gate)

    in_virtual_time(main())


def test_who_waits_for_an_endpoint_is_known_without_a_look_at_each_tenant() -> None:
    class Name(str):
        """The name of an endpoint; looked_up: how often it was looked for in a set."""

        __slots__ = ()
        looked_up = 0

        def __hash__(self) -> int:
            Name.looked_up += 1
            return super().__hash__()

    async def main() -> None:
        gate = gate_of(1)
        first = gate.try_enter("normal")
        assert first is not None
        calls = [
            entering(gate, tenant=str(number), weight=2.0, avoid=frozenset(avoid))
            for number in range(200)
            for avoid in (["a"], ["b"], ["a", "b"])
        ]
        await settled()
        assert gate.waits_for(Name("a"))
        assert gate.waits_for(Name("c"))
        assert Name.looked_up < 20
        # All may use it, so that all the weights count.
        assert gate.demand(Name("c")) == Demand(10, 400.0)
        assert Name.looked_up < 40
        assert gate.demand("a") == Demand(10, 400.0)
        for call in calls:
            call.cancel()
        await settled()
        assert not gate.waits_for("c")
        first.leave()
        assert_empty(gate)

    in_virtual_time(main())


def test_classes_and_weights_are_checked() -> None:
    async def main() -> None:
        for classes in [(), (PLAIN[0], PLAIN[0])]:
            with pytest.raises(ConfigError):
                Gate(pool_of(servers(1, slots=1)), classes, clock=CLOCK)
        with pytest.raises(ConfigError, match="reserved"):
            ClassSettings(name="high", priority=0, reserved=1.0)
        gate = gate_of(1)
        with pytest.raises(ConfigError, match="urgent"):
            gate.try_enter("urgent")
        assert gate.try_enter("high")
        for weight in (0.0, -1.0, math.inf):
            with pytest.raises(ConfigError, match="weight"):
                await gate.enter("high", tenant="a", weight=weight)
        assert [gate.class_of(priority) for priority in (-5, 0, 1, 10, 20, 99)] == [
            *("high", "high", "normal", "normal", "low", "low")
        ]

    in_virtual_time(main())


def test_an_hour_in_which_the_process_was_stopped_does_not_count_as_a_slow_hour() -> None:
    class Stopped(VirtualClock):
        stopped_s = 0.0

        def now_s(self) -> float:
            return super().now_s() + self.stopped_s

    async def main() -> None:
        clock = Stopped(asyncio.get_running_loop())
        gate = Gate(pool_of(servers(1, slots=4)), PLAIN, clock=clock)

        async def call() -> None:
            with await gate.enter("normal"):
                await asyncio.sleep(1.0)

        async with asyncio.TaskGroup() as group:
            for _ in range(60):
                group.create_task(call())
            await asyncio.sleep(5.5)
            clock.stopped_s = 3600.0
            refused = entering(gate, deadline_s=clock.now_s() + 1.0)
            await settled()
            assert error_of(refused).retry_after_s < 100.0

    in_virtual_time(main())
