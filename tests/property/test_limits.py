"""Whatever comes in whatever order: never over the limit, never rejected, never lost."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from redline.limits import Cost, Limits, Rate
from redline.limits.rule import Booking, Rules, Window
from support.catching import assert_caught
from support.pacing import SERVERS, Ask, Law, SmallBucket, drive, exchange, most_in, rejections

GUARD_S = 0.05
HARD = ("any", "counter", "fixed", "moving")
RATES = st.builds(Rate, st.integers(1, 12), st.sampled_from([0.5, 1.0, 2.0]))
MANY = settings(max_examples=60, deadline=None)


def seconds(most: float) -> st.SearchStrategy[float]:
    return st.floats(0, most, allow_nan=False).map(lambda value: round(value, 4))


# Hypothesis draws from a strategy that it knows in a third of the time that a new one takes.
ARRIVALS_S = st.just(0.0) | seconds(6.0)
WRITES_S = seconds(0.7)
ANSWERS_S = seconds(3.0)
LATES_S = st.lists(seconds(0.03), min_size=1, max_size=8)
JITTERS_S = st.lists(seconds(GUARD_S - 1e-3), min_size=1, max_size=8)
LAGS_S = seconds(0.02)
PHASES_S = seconds(2.0)


@st.composite
def asks(draw: st.DrawFn, most_amount: int, *, is_plain: bool = False) -> list[Ask]:
    """Up to 60 callers; plain ones write at once, the others write late, release and settle."""
    found = []
    for _ in range(draw(st.integers(1, 60))):
        amount = draw(st.integers(1, most_amount)) if most_amount > 1 else 1
        late = not is_plain and draw(st.booleans())
        found.append(
            Ask(
                arrival_s=draw(ARRIVALS_S),
                amount=amount,
                write_s=draw(WRITES_S) if late else 0.0,
                is_released=late and draw(st.integers(0, 3)) == 0,
                used=draw(st.integers(0, amount)) if late and draw(st.booleans()) else None,
                answer_s=draw(ANSWERS_S) if late else 1.0,
            )
        )
    return found


@MANY
@given(st.data())
def test_no_window_plus_guard_ever_holds_more_than_the_count(data: st.DataObject) -> None:
    rate = data.draw(RATES)
    profile = data.draw(st.sampled_from(HARD))
    lates = data.draw(LATES_S)
    window = Window(rate, profile=profile, guard_s=GUARD_S)
    callers = data.draw(asks(rate.count))
    driven = drive(window, callers, late_s=lates)
    assert len(driven.sends) == sum(not ask.is_released for ask in callers)
    assert most_in(driven.sends, rate.window_s + GUARD_S) <= rate.count


@MANY
@given(st.data())
def test_after_all_is_done_nothing_stays_booked_and_a_full_window_is_free(
    data: st.DataObject,
) -> None:
    rate = data.draw(RATES)
    profile = data.draw(st.sampled_from((*HARD, "bucket")))
    window = Window(rate, profile=profile, guard_s=GUARD_S)
    drive(window, data.draw(asks(rate.count)))
    later_s = 1000.0
    assert window.used(later_s) == 0
    assert window.sends(later_s) == []
    assert window.wait_s(rate.count, later_s) == 0


NEVER_REJECTED = [
    ("any", ("fixed", "aligned", "moving", "counter", "bucket")),
    ("counter", ("counter",)),
    ("fixed", ("fixed", "aligned")),
    ("moving", ("moving", "fixed", "aligned")),
    ("bucket", ("bucket",)),
]


@pytest.mark.slow
@pytest.mark.parametrize(("profile", "servers"), NEVER_REJECTED)
@settings(max_examples=70, deadline=None)
@given(data=st.data())
def test_a_server_of_the_profile_never_rejects(
    profile: str, servers: tuple[str, ...], data: st.DataObject
) -> None:
    """The guard covers the timers' lag and the network's jitter together."""
    rate = data.draw(RATES)
    lag_s = data.draw(LAGS_S)
    window = Window(rate, profile=profile, guard_s=GUARD_S)
    driven = drive(window, data.draw(asks(1, is_plain=True)), late_s=lag_s)
    jitters_s = data.draw(st.lists(seconds(GUARD_S - lag_s - 1e-3), min_size=1, max_size=8))
    phase_s = data.draw(PHASES_S)
    for name in servers:
        assert rejections(SERVERS[name](rate), driven.sends, jitters_s, phase_s) == 0, name


@settings(max_examples=70, deadline=None)
@given(st.data())
def test_any_is_never_rejected_by_the_smallest_bucket(data: st.DataObject) -> None:
    rate = data.draw(RATES)
    lag_s = data.draw(LAGS_S)
    window = Window(rate, profile="any", guard_s=GUARD_S)
    driven = drive(window, data.draw(asks(1, is_plain=True)), late_s=lag_s)
    jitters_s = data.draw(st.lists(seconds(GUARD_S - lag_s - 1e-3), min_size=1, max_size=8))
    server = SmallBucket(rate, GUARD_S)
    assert rejections(server, driven.sends, jitters_s) == 0


@pytest.mark.parametrize("server", ["moving", "bucket"])
@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_weighted_calls_are_never_rejected(server: str, data: st.DataObject) -> None:
    rate = Rate(data.draw(st.integers(2, 400)), 1.0)
    window = Window(rate, profile=server, guard_s=GUARD_S)
    driven = drive(window, data.draw(asks(rate.count, is_plain=True)))
    jitters_s = data.draw(JITTERS_S)
    assert rejections(SERVERS[server](rate), driven.sends, jitters_s) == 0


# The measured guard: each reply proves how late its own call was. JITTER_S is the most that a call
# is late, by laws of the way to the server and of the time it takes to answer.

JITTER_S = 0.05
STEADY_WAYS: dict[str, Law] = {
    "none": lambda chance, now_s, number: 0.0,
    "uniform": lambda chance, now_s, number: chance.uniform(0, JITTER_S),
    "a fifth of it": lambda chance, now_s, number: chance.uniform(0, JITTER_S / 5),
    "bell": lambda chance, now_s, number: JITTER_S * chance.betavariate(3, 3),
}
# With these the guard is far below the slowest, each of which is known by its own reply.
HEAVY_WAYS: dict[str, Law] = {
    "one in 25": lambda chance, now_s, number: (
        JITTER_S if chance.random() < 0.04 else chance.uniform(0, 0.002)
    ),
    "exponential": lambda chance, now_s, number: min(JITTER_S, chance.expovariate(200)),
    "log-normal": lambda chance, now_s, number: min(JITTER_S, chance.lognormvariate(-5.8, 1.2)),
    "slower from 150 on": lambda chance, now_s, number: JITTER_S * (number >= 150),
}
ANSWERS: dict[str, Law] = {
    "at once": lambda chance, now_s, number: 0.0,
    "quick": lambda chance, now_s, number: chance.uniform(0.02, 0.023),
    "quick, with noise": lambda chance, now_s, number: chance.uniform(0.02, 0.045),
    "generated": lambda chance, now_s, number: chance.uniform(1, 4),
    "always 3 s": lambda chance, now_s, number: chance.uniform(3, 3.001),
    "one in 25 generated": lambda chance, now_s, number: (
        chance.uniform(2, 4) if chance.random() < 0.04 else 0.02
    ),
    "long tail": lambda chance, now_s, number: chance.lognormvariate(-3.9, 0.5),
    "quick, then slow": lambda chance, now_s, number: (
        0.02 if number < 150 else chance.uniform(0.5, 2)
    ),
}
GUARDED = [Rate(20, 1.0), Rate(60, 6.0), Rate(5, 1.0), Rate(2, 1.0), Rate(100, 1.0)]
# Of the hard rule; a counter and a bucket also see how calls bunch, which is the pace's business.
WINDOWS = ("fixed", "aligned", "moving")


def rejected(
    profile: str, servers: tuple[str, ...], ways: dict[str, Law], kind: Any = Rules
) -> dict[str, int]:
    """Rejections of 300 calls in each of 60 drawn scenarios, by what went on."""
    found: dict[str, int] = {}
    for seed in range(60):
        chance = random.Random(seed)
        rate = chance.choice(GUARDED)
        way, answer = chance.choice(list(ways)), chance.choice(list(ANSWERS))
        limits = Limits(requests=rate, profile=profile)
        lag_s = chance.choice([0.0, 0.002])
        went = exchange(kind(limits), 300, ways[way], ANSWERS[answer], chance, lag_s)
        for name in servers:
            server = SERVERS[name](rate)
            phase_s = chance.uniform(0, rate.window_s)
            count = rejections(server, went.sends, went.delays_s, phase_s)
            if count:
                found[f"{seed}: {rate}, {way}, {answer}, {name}"] = count
    return found


@pytest.mark.parametrize(("profile", "servers"), NEVER_REJECTED)
def test_a_measured_guard_is_never_rejected(profile: str, servers: tuple[str, ...]) -> None:
    assert rejected(profile, servers, STEADY_WAYS) == {}


@pytest.mark.parametrize("profile", ["any", "fixed", "moving"])
def test_a_call_that_was_far_later_than_most_is_known_by_its_reply(profile: str) -> None:
    servers = tuple(name for name in dict(NEVER_REJECTED)[profile] if name in WINDOWS)
    assert rejected(profile, servers, HEAVY_WAYS) == {}


def ideal_s(profile: str, rate: Rate, calls: int) -> float:
    """When the last of `calls` may be sent at best (docs/architecture.md, Limits)."""
    span_s = rate.window_s + GUARD_S
    if profile in ("fixed", "moving"):
        return math.floor((calls - 1) / rate.count) * span_s
    return (calls - 1) * span_s / rate.count


def spread_s(profile: str, rate: Rate, calls: int) -> float:
    """What the last of `calls` may lose: a burst is spread over a twentieth of its window.

    By no more than 5 ms a call; calls within 1/4096 of a window count as one.
    """
    if profile not in ("fixed", "moving"):
        return 0.0
    apart_s = min(0.005, rate.window_s / 20 / rate.count)
    grain_s = (rate.window_s + GUARD_S) / 4096
    return (calls - 1) % rate.count * apart_s + (calls - 1) // rate.count * (grain_s + apart_s)


@pytest.mark.parametrize("profile", HARD)
@pytest.mark.parametrize("late_s", [0.0, 0.005])
@pytest.mark.parametrize("rate", [Rate(1, 1.0), Rate(2, 1.0), Rate(7, 1.0), Rate(500, 60.0)])
def test_the_last_send_is_as_early_as_it_can_be(profile: str, late_s: float, rate: Rate) -> None:
    calls = 6 * rate.count + 1
    driven = drive(Window(rate, profile=profile, guard_s=GUARD_S), [Ask()] * calls, late_s=late_s)
    # The hard rule starts each window at a real stamp, so a late timer costs once a window.
    spare_s = late_s * (calls / rate.count + 1) + spread_s(profile, rate, calls) + 1e-6
    assert driven.stamps[-1] <= ideal_s(profile, rate, calls) + spare_s
    assert driven.stamps[-1] >= ideal_s(profile, rate, calls) - 1e-6


@MANY
@given(st.integers(1, 50), st.floats(0.1, 60), st.integers(1, 200))
def test_makespan_of_any_rate(count: int, window_s: float, calls: int) -> None:
    rate = Rate(count, window_s)
    for profile in ("any", "fixed"):
        driven = drive(Window(rate, profile=profile, guard_s=GUARD_S), [Ask()] * calls)
        best_s = ideal_s(profile, rate, calls)
        assert best_s - 1e-5 <= driven.stamps[-1]
        assert driven.stamps[-1] <= best_s + spread_s(profile, rate, calls) + 1e-5


def test_a_bucket_is_used_up_and_then_follows_its_refill() -> None:
    rate = Rate(100, 1.0)
    driven = drive(Window(rate, profile="bucket", guard_s=GUARD_S), [Ask()] * 295)
    assert driven.stamps[94] <= 0.05
    assert driven.stamps[-1] == pytest.approx(2.0)


# Wrong windows: each is caught by one of these checks.


def check_any_window(window: Any) -> None:
    rate = Rate(3, 1.0)
    for profile in HARD:
        # Three that are written late, then three at once, and so on.
        plan = [Ask(write_s=0.9 * ((number // 3 + 1) % 2)) for number in range(24)]
        driven = drive(window(rate, profile=profile, guard_s=GUARD_S), plan)
        assert most_in(driven.sends, rate.window_s + GUARD_S) <= rate.count


def check_no_leak(window: Any) -> None:
    rate = Rate(3, 1.0)
    plan = [Ask(is_released=number % 2 == 0, write_s=0.1) for number in range(12)]
    driven = drive(window(rate, profile="fixed", guard_s=GUARD_S), plan)
    assert driven.window.wait_s(3, 1000.0) == 0


def check_settling(window: Any) -> None:
    """6 calls of 50 that use 10: three windows' worth by estimate, and half of one by use."""
    rate = Rate(100, 1.0)
    for profile in ("any", "fixed"):
        plan = [Ask(amount=50, used=10, answer_s=0.1) for _ in range(6)]
        driven = drive(window(rate, profile=profile, guard_s=GUARD_S), plan)
        assert driven.stamps[-1] < 0.7
        assert most_in(driven.sends, 1.05) <= 100
        booking = driven.window.book(90, 100.0)
        driven.window.sent(booking, 100.0)
        driven.window.settle(booking, 20)
        driven.window.settle(booking, 20)
        assert driven.window.wait_s(80, 100.5) == 0
        assert driven.window.wait_s(81, 100.5) > 0


def check_pace(window: Any) -> None:
    rate = Rate(10, 1.0)
    driven = drive(window(rate, profile="any", guard_s=GUARD_S), [Ask()] * 61, late_s=0.005)
    assert driven.stamps[-1] <= 6.3 + 0.005 * 7


def check_idle(window: Any) -> None:
    """Callers that come after a pause keep the pace from the first two on."""
    driven = drive(window(Rate(10, 1.0), guard_s=GUARD_S), [Ask(0.0)] + [Ask(5.0)] * 3)
    assert driven.stamps[1:] == pytest.approx([5.0, 5.105, 5.21])


class Stamped(Window):
    """Counts a send from its booking on, however late it is written."""

    def sent(self, booking: Booking, now_s: float) -> None:
        super().sent(booking, booking.booked_s)


class Leaking(Window):
    """Keeps what is given back."""

    def release(self, booking: Booking, now_s: float) -> None: ...


class Deaf(Window):
    """Does not hear what was used."""

    def settle(self, booking: Booking, used: int) -> None: ...


class Generous(Window):
    """Gives back again what was given back already."""

    def settle(self, booking: Booking, used: int) -> None:
        amount = booking.amount
        super().settle(booking, used)
        booking.amount = amount


class Unforgiving(Window):
    """Loses the lateness of every timer."""

    def book(self, amount: int, now_s: float, late_s: float = 0.0, *more: Any) -> Booking:
        return super().book(amount, now_s, 0.0, *more)


class Catching(Window):
    """Catches up the time in which nobody asked."""

    def book(self, amount: int, now_s: float, late_s: float = 0.0, *more: Any) -> Booking:
        return super().book(amount, now_s, GUARD_S, *more)


def window_with(**changes: Any) -> Callable[..., Window]:
    return lambda rate, **named: Window(rate, **{**named, **changes})


WRONG = {
    "guard 0": (check_any_window, window_with(unproven_s=0.0)),
    "no hard rule": (check_any_window, window_with(profile="bucket")),
    "one more": (
        check_any_window,
        lambda rate, **named: Window(Rate(rate.count + 1, rate.window_s), **named),
    ),
    "stamped at the booking": (check_any_window, Stamped),
    "leaking": (check_no_leak, Leaking),
    "deaf": (check_settling, Deaf),
    "generous": (check_settling, Generous),
    "unforgiving": (check_pace, Unforgiving),
    "catching up": (check_idle, Catching),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_windows_are_caught(name: str) -> None:
    check, wrong = WRONG[name]
    assert_caught(check, Window, wrong)


def check_measured(kind: Any) -> None:
    assert rejected("moving", ("moving",), HEAVY_WAYS, kind) == {}


class Trusting(Rules):
    """Takes every reply for one that came at once."""

    def replied(
        self,
        bookings: Iterable[Booking],
        took_s: float,
        sent_s: float,
        used: Cost | None = None,
    ) -> None:
        super().replied(bookings, 0.0, sent_s, used)


def test_a_wrong_measured_guard_is_caught() -> None:
    assert_caught(check_measured, Rules, Trusting)
    assert_caught(check_measured, Rules, lambda limits: Rules(replace(limits, guard_s=0.001)))
