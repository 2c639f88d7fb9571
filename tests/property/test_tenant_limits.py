"""A tenant's limits, whatever its calls do: never more than a limit in any window, nothing leaks.

What may be let in is judged by the amounts and times of the calls that started, and by nothing that
the limits keep.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from redline.limits import Rate
from redline.serve.keys import (
    DAY_S,
    EXACT,
    Refused,
    SlidingWindow,
    Started,
    TenantLimits,
    TenantSettings,
)
from redline.testing import ManualClock
from support.catching import assert_caught

DOLLAR = 1_000


@dataclass
class Call:
    """One that started, and what it came to."""

    handle: Started
    begun_s: float
    day: int
    tokens: int
    cost: int
    is_over: bool = False
    was_sent: bool = True


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["start", "start", "start", "settle", "cancel", "unknown"]),
        st.sampled_from([0.0, 0.0, 0.1, 0.5, 1.0, 3.0, 40_000.0]),
        st.integers(0, 60),
        st.integers(0, 400),
        st.integers(0, 100),
    ),
    max_size=120,
)
SETTINGS = TenantSettings(
    requests=(Rate(3, 1.0), Rate(8, 5.0)),
    tokens=(Rate(100, 2.0),),
    concurrency=4,
    picodollars_per_day=DOLLAR,
)


def played(steps: Sequence[tuple[str, float, int, int, int]]) -> tuple[TenantLimits, list[Call]]:
    """Plays the steps. Calls use at most what was reserved for them."""
    clock = ManualClock()
    limits = TenantLimits("acme", SETTINGS, clock)
    calls: list[Call] = []
    for what, pause_s, tokens, cost, pick in steps:
        now_s = clock.advance(pause_s)
        in_flight = [call for call in calls if not call.is_over]
        assert limits.in_flight == len(in_flight) <= 4
        if what == "start":
            found = limits.try_start(now_s, tokens, cost)
            if isinstance(found, Started):
                day = int(clock.wall_s() // DAY_S)
                calls.append(Call(found, now_s, day, tokens, cost))
            continue
        if not in_flight:
            continue
        call = in_flight[pick % len(in_flight)]
        call.is_over = True
        if what == "cancel":
            call.handle.cancel()
            call.was_sent, call.tokens, call.cost = False, 0, 0
        elif what == "settle":
            call.tokens, call.cost = min(call.tokens, tokens), min(call.cost, cost)
            call.handle.settle(now_s, call.tokens, call.cost)
        else:
            call.handle.settle(now_s)
    return limits, calls


def most_in_a_window(calls: Sequence[Call], window_s: float, of: Callable[[Call], int]) -> int:
    """The largest sum of calls that began within `window_s`."""
    return max(
        sum(of(other) for other in calls if 0 <= other.begun_s - call.begun_s < window_s)
        for call in calls
    )


@given(STEPS)
@settings(max_examples=150, deadline=None)
def test_no_limit_is_passed_in_any_window(steps: list[tuple[str, float, int, int, int]]) -> None:
    _, calls = played(steps)
    if not calls:
        return
    for rate in SETTINGS.requests:
        assert most_in_a_window(calls, rate.window_s, lambda call: call.was_sent) <= rate.count
    for rate in SETTINGS.tokens:
        assert most_in_a_window(calls, rate.window_s, lambda call: call.tokens) <= rate.count
    for day in {call.day for call in calls}:
        assert sum(call.cost for call in calls if call.day == day) <= DOLLAR


@given(STEPS)
@settings(max_examples=100, deadline=None)
def test_counters_are_zero_once_all_calls_are_cancelled(
    steps: list[tuple[str, float, int, int, int]],
) -> None:
    limits, calls = played([step for step in steps if step[0] in ("start", "cancel")])
    for call in calls:
        call.handle.cancel()
    assert limits.in_flight == 0
    assert limits.money.committed == 0
    now_s = 200 * 40_000.0
    started = [limits.try_start(now_s, 33, 0) for _ in range(3)]
    assert all(isinstance(one, Started) for one in started), "as if nothing had been"


@given(STEPS, st.integers(0, 60), st.integers(0, 400))
@settings(max_examples=100, deadline=None)
def test_a_refused_call_may_start_when_it_is_told(
    steps: list[tuple[str, float, int, int, int]], tokens: int, cost: int
) -> None:
    limits, calls = played(steps)
    for call in calls:
        call.handle.settle(call.begun_s)
    now_s = max((call.begun_s for call in calls), default=0.0)
    told = limits.try_start(now_s, tokens, 0)
    if isinstance(told, Refused):
        assert 0 < told.retry_after_s < math.inf
        early_s = now_s + told.retry_after_s - 1e-3
        assert isinstance(limits.try_start(early_s, tokens, 0), Refused)
        due_s = now_s + told.retry_after_s + 1e-6
        assert isinstance(limits.try_start(due_s, tokens, 0), Started)


PAUSES_S = (0.0, 1e-4, 1e-3, 0.02, 0.3)


def arrivals_of(chance: random.Random) -> list[tuple[float, int]]:
    """300 to 1,800 arrivals in bursts, each of which has pauses of its own."""
    found: list[tuple[float, int]] = []
    count = chance.randint(300, 1500)
    while len(found) < count:
        pauses_s, most = chance.choices(PAUSES_S, k=3), chance.choice((1, 3))
        size = chance.randint(1, 300)
        found += [(chance.choice(pauses_s), chance.randint(1, most)) for _ in range(size)]
    return found


def admitted(window: SlidingWindow, arrivals: Sequence[tuple[float, int]]) -> list[list[float]]:
    now_s, found = 0.0, []
    for pause_s, amount in arrivals:
        now_s += pause_s
        if window.has_room(amount, now_s):
            window.take(amount, now_s)
            found.append([now_s, amount])
    return found


def most_of(sent: Sequence[Sequence[float]], window_s: float) -> float:
    first, total, most = 0, 0.0, 0.0
    for now_s, amount in sent:
        total += amount
        while sent[first][0] <= now_s - window_s:
            total -= sent[first][1]
            first += 1
        most = max(most, total)
    return most


class Fixed(SlidingWindow):
    """A wrong one, that counts by the clock's windows: twice the limit fits around their ends."""

    def has_room(self, amount: int, now_s: float) -> bool:
        number = int(now_s // self.rate.window_s)
        if number != getattr(self, "number", None):
            self.number, self.used = number, 0
        return self.used + amount <= self.rate.count


@given(st.randoms(use_true_random=True), st.integers(3, 1500), st.sampled_from([0.05, 0.5, 2.0]))
@settings(max_examples=60, deadline=None)
def test_many_small_calls_share_records_and_pass_no_limit(
    chance: random.Random, count: int, window_s: float
) -> None:
    window = SlidingWindow(Rate(count, window_s))
    assert most_of(admitted(window, arrivals_of(chance)), window_s) <= count
    assert len(window.records) <= 2 * EXACT + 1


def test_a_fixed_window_is_caught() -> None:
    arrivals = [(0.9, 1), *[(0.001, 1)] * 400]

    def check(kind: type[SlidingWindow]) -> None:
        assert most_of(admitted(kind(Rate(50, 1.0)), arrivals), 1.0) <= 50

    assert_caught(check, SlidingWindow, Fixed)


def test_a_steady_load_gets_what_the_limit_grants() -> None:
    """Shared records cost at most one part in EXACT of a window."""
    for count in (10, 1_000, 20_000):
        window = SlidingWindow(Rate(count, 1.0))
        arrivals = [(0.5 / count, 1)] * (8 * count)
        rate = len(admitted(window, arrivals)) / sum(pause_s for pause_s, _ in arrivals)
        assert rate >= count * (1 - 2 / EXACT)
