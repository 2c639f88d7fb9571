"""Clocks in virtual time: they ring late by a millisecond at most, and never early."""

from __future__ import annotations

import asyncio
import gc
import math
import time
import tracemalloc
import weakref
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from redline.calls.wire import Deadline, Stops, TaskTimeout
from redline.clock import SYSTEM
from redline.testing import Deadlock, VirtualClock, virtual_run

LATE_S = 0.001
# Times are kept as floats: at a day's worth of seconds they are this far apart, and more.
SLACK_S = 1e-6


def rung(times_s: list[float], *, start_s: float) -> list[tuple[float, float]]:
    """Each clock's time and when it rang, in the order of ringing."""
    found: list[tuple[float, float]] = []

    async def main() -> None:
        clock = VirtualClock(asyncio.get_running_loop())
        stops = Stops(clock)
        for time_s in times_s:
            when_s = start_s + time_s
            alarm = Deadline(stops, lambda when_s=when_s: found.append((when_s, clock.now_s())))
            alarm.ring_at(when_s)
        await asyncio.sleep(max(times_s) + 1)

    virtual_run(main(), start_s=start_s)
    return found


@pytest.mark.parametrize("start_s", [0.0, 0.05, 1234.5678, 86_400.03])
def test_clocks_near_and_far_ring_in_time(start_s: float) -> None:
    times_s = [0.0, 0.001, 0.05, 0.15, 0.3, 1.0, 15.99, 16.0, 16.97, 17.0, 17.03, 18.0, 600.01]
    for order in (times_s, times_s[::-1]):
        found = rung(order, start_s=start_s)
        assert len(found) == len(times_s)
        for when_s, rang_s in found:
            assert when_s <= rang_s <= when_s + LATE_S + SLACK_S


@settings(max_examples=150, deadline=None)
@given(
    start_s=st.floats(0, 1e6),
    times_s=st.lists(st.floats(0, 100), min_size=1, max_size=20),
)
@example(start_s=0.0, times_s=[0.15000000000000002])
@example(start_s=0.0, times_s=[0.1, 0.2, 0.30000000000000004, 0.7, 17.15])
def test_a_clock_rings_once_never_early_and_hardly_late(
    start_s: float, times_s: list[float]
) -> None:
    found = rung(times_s, start_s=start_s)
    assert sorted(when_s for when_s, _ in found) == sorted(start_s + time_s for time_s in times_s)
    for when_s, rang_s in found:
        assert when_s <= rang_s <= when_s + LATE_S + SLACK_S


class FewReadings(VirtualClock):
    """Fails when it is read again and again."""

    left = 30

    def now_s(self) -> float:
        self.left -= 1
        assert self.left, "it looks again and again before its time"
        return super().now_s()


@pytest.mark.slow
def test_it_does_not_look_again_and_again_before_a_clocks_time() -> None:
    for number in range(1, 340):
        exact_s = number * 0.05
        for when_s in (math.nextafter(exact_s, 0), exact_s, math.nextafter(exact_s, math.inf)):

            async def main(when_s: float = when_s) -> None:
                stops = Stops(FewReadings(asyncio.get_running_loop()))
                rang = asyncio.Event()
                Deadline(stops, rang.set).ring_at(when_s)
                await rang.wait()
                assert when_s <= asyncio.get_running_loop().time() <= when_s + LATE_S + SLACK_S

            virtual_run(main())


# Clocks that are set anew or stopped.


def test_stopped_and_moved_clocks_ring_as_they_were_told() -> None:
    async def main() -> None:
        found: list[str] = []
        clock = VirtualClock(asyncio.get_running_loop())
        stops = Stops(clock)
        alarms: dict[str, Any] = {}

        def ring(name: str) -> None:
            found.append(name)
            # The others that are due must hear of this in time.
            for other in alarms.keys() - {name}:
                alarms[other].ring_at(math.inf) if other < "c" else alarms[other].leave()

        for name in ("a", "b", "c", "d"):
            alarms[name] = Deadline(stops, lambda name=name: ring(name))
            alarms[name].ring_at(1.0)
        stopped = Deadline(stops, lambda: found.append("stopped"))
        stopped.ring_at(1.0)
        stopped.leave()
        stopped.leave()
        moved = Deadline(stops, lambda: found.append("moved"))
        moved.ring_at(1.0)
        moved.ring_at(3.0)
        sooner = Deadline(stops, lambda: found.append("sooner"))
        sooner.ring_at(40.0)
        sooner.ring_at(2.0)
        never = Deadline(stops, lambda: found.append("never"))
        never.ring_at(1.0)
        never.ring_at(math.inf)
        await asyncio.sleep(1.5)
        assert found in (["a"], ["b"], ["c"], ["d"])
        await asyncio.sleep(60)
        assert found[1:] == ["sooner", "moved"]

    virtual_run(main())


def test_a_clock_may_be_set_again_by_its_own_ring() -> None:
    async def main() -> None:
        clock = VirtualClock(asyncio.get_running_loop())
        stops = Stops(clock)
        found: list[float] = []

        def ring() -> None:
            found.append(clock.now_s())
            if len(found) < 5:
                # At once, a little later, and much later.
                alarm.ring_at(clock.now_s() + (0.0, 0.01, 20.0, 0.3)[len(found) - 1])

        alarm = Deadline(stops, ring)
        alarm.ring_at(0.2)
        await asyncio.sleep(60)
        assert len(found) == 5
        assert found == sorted(found)
        assert found[3] >= found[2] + 20

    virtual_run(main())


def test_a_clock_that_was_stopped_for_good_may_be_set_again() -> None:
    async def main() -> None:
        clock = VirtualClock(asyncio.get_running_loop())
        stops = Stops(clock)
        found: list[float] = []
        alarm = Deadline(stops, lambda: found.append(clock.now_s()))
        alarm.ring_at(1.0)
        alarm.leave()
        await asyncio.sleep(2)
        assert not found
        alarm.ring_at(4.0)
        await asyncio.sleep(3)
        assert found == [pytest.approx(4.0, abs=LATE_S)]

    virtual_run(main())


def test_a_clock_that_is_set_again_and_again_holds_little() -> None:
    async def main() -> None:
        clock = VirtualClock(asyncio.get_running_loop())
        stops = Stops(clock)
        found: list[float] = []
        alarm = Deadline(stops, lambda: found.append(clock.now_s()))
        tracemalloc.start()
        for _ in range(5_000):
            alarm.ring_at(clock.now_s() + 30)
            await asyncio.sleep(0.01)
            alarm.ring_at(math.inf)
        held_bytes, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert held_bytes < 50_000
        assert not found
        alarm.ring_at(clock.now_s() + 30)
        due_s = clock.now_s() + 30
        await asyncio.sleep(40)
        assert len(found) == 1
        assert due_s <= found[0] <= due_s + LATE_S + SLACK_S

    virtual_run(main())


def test_very_many_clocks_leave_nothing_behind() -> None:
    async def main() -> None:
        clock = VirtualClock(asyncio.get_running_loop())
        stops = Stops(clock)
        tracemalloc.start()
        for number in range(20_000):
            alarm = Deadline(stops, lambda: None)
            alarm.ring_at(clock.now_s() + 0.2 + number % 30)
            alarm.leave()
            if number % 10 == 0:
                await asyncio.sleep(0.01)
        held_bytes, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert held_bytes < 100_000
        await asyncio.sleep(40)
        # No timer is left that could ever end this.
        await asyncio.Future()

    with pytest.raises(Deadlock, match="no timer is set"):
        virtual_run(main())


def test_a_timeout_that_is_over_is_freed_without_a_garbage_collection() -> None:
    async def main() -> weakref.ref[object]:
        async with TaskTimeout(Stops(VirtualClock(asyncio.get_running_loop())), 10) as alarm:
            alarm.ring_at(20)
            kept: weakref.ref[object] = weakref.ref(alarm)
        del alarm
        return kept

    gc.disable()
    try:
        assert virtual_run(main())() is None
    finally:
        gc.enable()


def test_after_a_block_no_clock_rings_for_as_long_as_the_first_was_late() -> None:
    async def main() -> None:
        stops, found = Stops(SYSTEM), dict[str, float]()
        begun_s = SYSTEM.now_s()

        def clock(name: str) -> Deadline:
            return Deadline(stops, lambda: found.setdefault(name, SYSTEM.now_s() - begun_s))

        # Due long before the end of the block, just before it, and just after it.
        for name, in_s in (("first", 0.1), ("last", 0.49), ("next", 0.51)):
            clock(name).ring_at(begun_s + in_s)
        late = clock("late")
        late.ring_at(begun_s + 60)
        time.sleep(0.5)
        await asyncio.sleep(0.1)
        # As the clock of an answer whose first byte comes after the block.
        late.ring_at(begun_s + 0.2)
        await asyncio.sleep(0.7)
        assert found.keys() == {"first", "last", "next", "late"}
        assert all(rang_s >= 0.9 for rang_s in found.values()), found

    asyncio.run(main())


def test_a_loop_that_is_blocked_again_and_again_does_not_keep_a_clock_from_ringing() -> None:
    async def main() -> None:
        found: list[float] = []
        stops = Stops(SYSTEM)
        Deadline(stops, lambda: found.append(SYSTEM.now_s())).ring_at(SYSTEM.now_s() + 0.02)
        # Each block but the first holds the end of the grace that the one before has given.
        for _ in range(3):
            time.sleep(0.3)
            await asyncio.sleep(0.05)
        assert len(found) == 1

    asyncio.run(main())
