"""The ETA on simulated jobs of ten minutes: how far off it is at any second."""

from __future__ import annotations

import heapq
import math
import random
from bisect import bisect
from collections.abc import Callable, Sequence
from functools import cache

import msgspec
import pytest

from redline.observe import Estimate, estimate
from redline.timeline import Holder, LimitUse, Sketch, Totals, Window
from support.catching import assert_caught

LEAST_S, TOLERATED = 60.0, 0.15
Ends = list[tuple[float, float]]
Estimator = Callable[[Sequence[Window]], Estimate]


class Played(msgspec.Struct, kw_only=True):
    """A simulated run: when calls began and ended, and what held the next one back at a time."""

    ends: Ends
    held: Holder = "slots"
    limits: Callable[[float], tuple[LimitUse, ...]] = lambda at_s: ()
    before: int = 0

    @property
    def end_s(self) -> float:
        return self.ends[-1][1]

    def windows(self) -> list[Window]:
        """One a second."""
        found, done = list[Window](), 0
        began = sorted(sent for sent, _ in self.ends)
        rows = self.before + len(self.ends)
        for second in range(math.ceil(self.end_s)):
            took = list[float]()
            while done < len(self.ends) and self.ends[done][1] <= second + 1:
                took.append(self.ends[done][1] - self.ends[done][0])
                done += 1
            found.append(
                Window(
                    begin_s=second,
                    end_s=second + 1.0,
                    samples=10,
                    in_flight=bisect(began, second + 1) - done,
                    held={self.held: 10},
                    done=len(took),
                    limits=self.limits(second + 1.0),
                    latency=Sketch.of(took),
                    totals=Totals(rows=rows, done=self.before + done, attempts=done),
                )
            )
        return found


def in_slots(
    slots: int, until_s: float, latency_s: Callable[[float], float], begin_s: float = 0.0
) -> Ends:
    """Calls one after the other in each slot, until about then."""
    free, ends = [begin_s] * slots, list[tuple[float, float]]()
    while free[0] < until_s:
        sent_s = heapq.heappop(free)
        end_s = sent_s + latency_s(sent_s)
        ends.append((sent_s, end_s))
        heapq.heappush(free, end_s)
    return sorted(ends, key=lambda end: end[1])


def constant() -> Played:
    return Played(ends=in_slots(64, 600.0, lambda at_s: 2.0))


def long_waves() -> Played:
    return Played(ends=in_slots(64, 580.0, lambda at_s: 30.0))


def bursts() -> Played:
    """600 calls in the first seconds of each minute, and none in the rest of it."""
    draw = random.Random(2)
    sent = sorted(60.0 * minute + draw.uniform(0, 3) for minute in range(10) for _ in range(600))
    ends = sorted([(at_s, at_s + draw.uniform(0.5, 1.5)) for at_s in sent], key=lambda end: end[1])

    def limits(at_s: float) -> tuple[LimitUse, ...]:
        used = bisect(sent, at_s) - bisect(sent, 60 * math.floor(at_s / 60))
        return (LimitUse("600 requests/min", 10, used, 600, 60.0),)

    return Played(ends=ends, held="limit", limits=limits)


def long_tail() -> Played:
    draw = random.Random(3)
    return Played(ends=in_slots(32, 570.0, lambda at_s: min(60.0, draw.lognormvariate(0.4, 1.2))))


def slow_start() -> Played:
    """A server that works five times as fast once it is warm, after half a minute."""
    draw = random.Random(4)

    def latency_s(at_s: float) -> float:
        return draw.uniform(0.5, 1.5) * (5.0 - 4.0 * min(1.0, at_s / 30.0))

    return Played(ends=in_slots(16, 600.0, latency_s))


def resume() -> Played:
    """Half of the rows are done; to read past them takes a while."""
    draw = random.Random(5)
    ends = in_slots(16, 600.0, lambda at_s: draw.expovariate(1 / 1.5), begin_s=8.0)
    return Played(ends=ends, before=len(ends))


def few_rows() -> Played:
    draw = random.Random(6)
    return Played(ends=in_slots(8, 580.0, lambda at_s: draw.uniform(5.0, 15.0)))


@cache
def worst(shape: Callable[[], Played], estimator: Estimator = estimate) -> tuple[float, float]:
    """Of the seconds after the first minute, that at which the predicted end is furthest off, and
    by what share of the true one.
    """
    played = shape()
    windows, found = played.windows(), list[tuple[float, float]]()
    for count in range(math.ceil(LEAST_S), len(windows)):
        eta_s = estimator(windows[:count]).eta_s
        assert eta_s is not None, count
        found.append((count, (count + eta_s - played.end_s) / played.end_s))
    return max(found, key=lambda one: abs(one[1]))


SHAPES = [constant, bursts, long_tail, slow_start, resume, long_waves, few_rows]


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_the_end_is_predicted_within_15_percent_after_a_minute(
    shape: Callable[[], Played],
) -> None:
    assert 540 < shape().end_s < 660
    at_s, off = worst(shape)
    assert abs(off) <= TOLERATED, at_s


def of_ten_seconds(windows: Sequence[Window]) -> Estimate:
    """What was shown before: the rate of the last ten seconds."""
    rows = sum(window.done for window in windows[-10:])
    return Estimate(windows[-1].totals.left * 10.0 / rows if rows else math.inf, False)


@pytest.mark.parametrize("shape", [bursts, long_waves])
def test_the_rate_of_the_last_seconds_is_no_estimate(shape: Callable[[], Played]) -> None:
    def check(estimator: Estimator) -> None:
        assert abs(worst(shape, estimator)[1]) <= TOLERATED

    assert_caught(check, estimate, of_ten_seconds)


def parked(played: Played, from_s: float, for_s: float) -> list[Window]:
    """The windows of the same run, if it had been asked to wait then."""
    windows, found = played.windows(), list[Window]()
    for window in windows:
        if window.begin_s == from_s:
            for second in range(math.floor(for_s)):
                begin_s = from_s + second
                still = msgspec.structs.replace(
                    found[-1], held={"parked": 10}, in_flight=0.0, done=0
                )
                found.append(msgspec.structs.replace(still, begin_s=begin_s, end_s=begin_s + 1))
        later_s = for_s if window.begin_s >= from_s else 0.0
        begin_s, end_s = window.begin_s + later_s, window.end_s + later_s
        found.append(msgspec.structs.replace(window, begin_s=begin_s, end_s=end_s))
    return found


def test_it_is_frozen_while_the_run_stands_still_and_then_goes_on_as_if_nothing_was() -> None:
    windows = parked(constant(), 120.0, 90.0)
    before = estimate(windows[:120])
    assert not before.is_on_hold
    for count in range(121, 211):
        assert estimate(windows[:count]) == Estimate(before.eta_s, True)
    after = estimate(windows[:211])
    assert not after.is_on_hold
    assert before.eta_s is not None
    assert after.eta_s == pytest.approx(before.eta_s - 1.0, rel=0.05)


def test_short_pauses_belong_to_the_rate() -> None:
    windows = constant().windows()
    for second in range(0, 600, 5):
        # As of a server that asks for a second of silence now and then.
        windows[second] = msgspec.structs.replace(windows[second], held={"parked": 10})
    found = estimate(windows[:302])
    assert found.eta_s == pytest.approx(300, rel=0.05)


def held_as(windows: Sequence[Window], held: Callable[[Window], Holder]) -> list[Window]:
    """The same windows without limits, with what held calls back in all samples of each."""
    return [msgspec.structs.replace(one, held={held(one): 10}, limits=()) for one in windows]


def test_an_end_is_predicted_although_the_endpoint_asks_to_wait_in_most_of_each_second() -> None:
    # Of a server without limit headers: after each burst of a second, a 429 with a Retry-After.
    windows = held_as(constant().windows(), lambda one: "parked")
    for count in range(60, len(windows)):
        assert estimate(windows[:count]).eta_s == pytest.approx(602 - count, abs=0.05 * 602)


def test_the_pauses_of_a_limit_per_minute_belong_to_the_rate() -> None:
    windows = held_as(bursts().windows(), lambda one: "slots" if one.done else "parked")
    for minute in range(2, 9):
        # The last burst of ten begins after nine minutes.
        found = estimate(windows[: 60 * minute + 40])
        assert found.is_on_hold
        assert found.eta_s == pytest.approx(541 - 60 * minute, rel=0.35)


def test_a_days_quota_is_seen_before_it_is_used_up() -> None:
    use = LimitUse("10k requests/day", 0, 1_000, 10_000, 86_400.0)
    totals = Totals(rows=15_000, done=1_000, attempts=1_000)
    window = Window(begin_s=0, end_s=60.0, samples=600, done=1_000, limits=(use,), totals=totals)
    found = estimate([window]).eta_s
    # 5,000 rows more than today's are left.
    assert found == pytest.approx(86_400.0 / 2)
    enough = msgspec.structs.replace(totals, rows=10_000)
    assert estimate([msgspec.structs.replace(window, totals=enough)]).eta_s == pytest.approx(540)


def test_nothing_is_said_of_an_end_that_is_unknown() -> None:
    assert estimate([]) == Estimate(None, False)
    window = constant().windows()[0]
    assert estimate([window]).eta_s is None
    late = constant().windows()[:100]
    open_end = msgspec.structs.replace(late[-1].totals, is_exact=False)
    assert estimate([*late[:-1], msgspec.structs.replace(late[-1], totals=open_end)]).eta_s is None
    batched = msgspec.structs.replace(late[-1], held={"batch": 10})
    assert estimate([*late[:-1], batched]).eta_s is None
