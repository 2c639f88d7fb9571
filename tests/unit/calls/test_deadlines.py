"""The timing wheel in virtual time: it rings late by 50 ms at most, and never early."""

from __future__ import annotations

import asyncio
import math
from types import ModuleType
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mutants import assert_caught, mutant
from redline.calls import deadlines
from redline.testing import VirtualClock, virtual_run

LATE_S = 0.05
# Times are kept as floats: at a day's worth of seconds they are this far apart, and more.
SLACK_S = 1e-6


def rung(module: ModuleType, times_s: list[float], *, start_s: float) -> list[tuple[float, float]]:
    """Each clock's time and when it rang, in the order of ringing."""
    found: list[tuple[float, float]] = []

    async def main() -> None:
        clock = VirtualClock(asyncio.get_running_loop())
        wheel = module.Deadlines(clock)
        for time_s in times_s:
            when_s = start_s + time_s
            alarm = wheel.alarm(lambda when_s=when_s: found.append((when_s, clock.now_s())))
            alarm.ring_at(when_s)
        await asyncio.sleep(max(times_s) + 1)
        wheel.close()

    virtual_run(main(), start_s=start_s)
    return found


def check_times(module: ModuleType) -> None:
    for start_s in (0.0, 0.05, 1234.5678, 86_400.03):
        times_s = [0.0, 0.001, 0.05, 0.15, 0.3, 1.0, 15.99, 16.0, 16.97, 17.0, 17.03, 18.0, 600.01]
        for order in (times_s, times_s[::-1]):
            found = rung(module, order, start_s=start_s)
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
    found = rung(deadlines, times_s, start_s=start_s)
    assert sorted(when_s for when_s, _ in found) == sorted(start_s + time_s for time_s in times_s)
    for when_s, rang_s in found:
        assert when_s <= rang_s <= when_s + LATE_S + SLACK_S


@pytest.mark.parametrize(
    ("line", "replacement"),
    [
        ("if deadline.when_s <= now_s:", "if True:"),
        ("at_s = math.ceil(when_s / _FINE_S) * _FINE_S", "at_s = math.ceil(when_s)"),
        (
            "at_s = math.floor(when_s / _COARSE_S) * _COARSE_S - _NEAR_S",
            "at_s = math.ceil(when_s) + _NEAR_S",
        ),
        ("if at_s < self._timer_s:", "if self._timer is None:"),
        ("if self._times_s and self._times_s[0] < self._timer_s:", "if False:"),
    ],
)
def test_a_wheel_that_is_early_late_or_silent_is_noticed(line: str, replacement: str) -> None:
    assert_caught(check_times, deadlines, mutant(deadlines, line, replacement))


def check_buckets(module: ModuleType) -> None:
    async def main() -> None:
        for number in range(1, 340):
            exact_s = number * 0.05
            for when_s in (math.nextafter(exact_s, 0), exact_s, math.nextafter(exact_s, math.inf)):
                wheel = module.Deadlines(VirtualClock(asyncio.get_running_loop()))
                wheel.alarm(lambda: None).ring_at(when_s)
                (at_s,) = wheel._buckets
                assert when_s <= at_s <= when_s + LATE_S + SLACK_S
                wheel.close()

    virtual_run(main())


def test_no_bucket_comes_before_its_clocks() -> None:
    # It would be looked at again and again until then, without end where time stands still.
    assert_caught(check_buckets, deadlines, mutant(deadlines, "if at_s < when_s:", "if at_s < 0:"))


# Clocks that are set anew or stopped.


def check_stops(module: ModuleType) -> None:
    async def main() -> None:
        found: list[str] = []
        wheel = module.Deadlines(VirtualClock(asyncio.get_running_loop()))
        alarms: dict[str, Any] = {}

        def ring(name: str) -> None:
            found.append(name)
            # The others of the same bucket must hear of this in time.
            for other in alarms.keys() - {name}:
                alarms[other].stop() if other < "c" else alarms[other].leave()

        for name in ("a", "b", "c", "d"):
            alarms[name] = wheel.alarm(lambda name=name: ring(name))
            alarms[name].ring_at(1.0)
        stopped = wheel.alarm(lambda: found.append("stopped"))
        stopped.ring_at(1.0)
        stopped.stop()
        stopped.stop()
        moved = wheel.alarm(lambda: found.append("moved"))
        moved.ring_at(1.0)
        moved.ring_at(3.0)
        sooner = wheel.alarm(lambda: found.append("sooner"))
        sooner.ring_at(40.0)
        sooner.ring_at(2.0)
        never = wheel.alarm(lambda: found.append("never"))
        never.ring_at(1.0)
        never.ring_at(math.inf)
        await asyncio.sleep(1.5)
        assert found in (["a"], ["b"], ["c"], ["d"])
        await asyncio.sleep(60)
        assert found[1:] == ["sooner", "moved"]
        wheel.close()

    virtual_run(main())


@pytest.mark.parametrize(
    ("line", "replacement"),
    [
        ("self.when_s = when_s", "self.when_s = max(when_s, self.when_s % 1e308)"),
        ("if when_s < self.seen_at_s:", "if self.bucket is None:"),
        ("elif deadline.when_s < math.inf:", "elif deadline.when_s == math.inf:"),
        ("while bucket:", "if bucket:"),
        ("bucket.add(deadline)", "return bucket.add(deadline)"),
    ],
)
def test_stopped_and_moved_clocks_ring_as_they_were_told(line: str, replacement: str) -> None:
    assert_caught(check_stops, deadlines, mutant(deadlines, line, replacement))


def test_a_clock_may_be_set_again_by_its_own_ring() -> None:
    async def main() -> None:
        clock = VirtualClock(asyncio.get_running_loop())
        wheel = deadlines.Deadlines(clock)
        found: list[float] = []

        def ring() -> None:
            found.append(clock.now_s())
            if len(found) < 5:
                # At once, a little later, and beyond the near buckets.
                alarm.ring_at(clock.now_s() + (0.0, 0.01, 20.0, 0.3)[len(found) - 1])

        alarm = wheel.alarm(ring)
        alarm.ring_at(0.2)
        await asyncio.sleep(60)
        assert len(found) == 5
        assert found == sorted(found)
        assert found[3] >= found[2] + 20
        wheel.close()

    virtual_run(main())


def test_closing_stops_every_clock_and_a_new_one_still_rings() -> None:
    async def main() -> None:
        clock = VirtualClock(asyncio.get_running_loop())
        wheel = deadlines.Deadlines(clock)
        found: list[str] = []
        wheel.alarm(lambda: found.append("old")).ring_at(1.0)
        wheel.close()
        await asyncio.sleep(2)
        wheel.alarm(lambda: found.append("new")).ring_at(4.0)
        await asyncio.sleep(3)
        assert found == ["new"]
        wheel.close()

    virtual_run(main())


def test_a_clock_that_is_set_again_and_again_stands_in_one_bucket() -> None:
    async def main() -> None:
        clock = VirtualClock(asyncio.get_running_loop())
        wheel = deadlines.Deadlines(clock)
        found: list[float] = []
        alarm = wheel.alarm(lambda: found.append(clock.now_s()))
        for _ in range(5_000):
            alarm.ring_at(clock.now_s() + 30)
            assert sum(map(len, wheel._buckets.values())) == 1
            await asyncio.sleep(0.01)
            alarm.stop()
        assert not found
        alarm.ring_at(clock.now_s() + 30)
        due_s = clock.now_s() + 30
        await asyncio.sleep(40)
        assert len(found) == 1
        assert due_s <= found[0] <= due_s + LATE_S + SLACK_S
        assert not wheel._buckets
        wheel.close()

    virtual_run(main())


def test_very_many_clocks_leave_nothing_behind() -> None:
    async def main() -> None:
        clock = VirtualClock(asyncio.get_running_loop())
        wheel = deadlines.Deadlines(clock)
        most_buckets = 0
        for number in range(20_000):
            alarm = wheel.alarm(lambda: None)
            alarm.ring_at(clock.now_s() + 0.2 + number % 30)
            alarm.stop()
            alarm.leave()
            assert alarm.bucket is None
            most_buckets = max(most_buckets, len(wheel._buckets))
            if number % 10 == 0:
                await asyncio.sleep(0.01)
        # 17 s of fine ones, and a second each for the rest.
        assert most_buckets <= 20 * 17 + 30 + 2
        assert not any(wheel._buckets.values())
        await asyncio.sleep(40)
        assert not wheel._buckets
        assert not wheel._times_s
        assert wheel._timer is None

    virtual_run(main())
