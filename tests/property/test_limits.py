"""Whatever comes in whatever order: never over the limit, never rejected, never lost."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mutants import assert_caught, mutant
from pacing import SERVERS, Ask, SmallBucket, drive, most_in, rejections
from redline.limits import Rate
from redline.limits import window as window_module
from redline.limits.window import Window

GUARD_S = 0.05
HARD = ("any", "counter", "fixed", "moving")
RATES = st.builds(Rate, st.integers(1, 12), st.sampled_from([0.5, 1.0, 2.0]))
MANY = settings(max_examples=150, deadline=None)


def seconds(most: float) -> st.SearchStrategy[float]:
    return st.floats(0, most, allow_nan=False).map(lambda value: round(value, 4))


@st.composite
def asks(draw: st.DrawFn, most_amount: int, *, is_plain: bool = False) -> list[Ask]:
    """Up to 60 callers; plain ones write at once, the others write late, release and settle."""
    found = []
    for _ in range(draw(st.integers(1, 60))):
        amount = draw(st.integers(1, most_amount))
        late = not is_plain and draw(st.booleans())
        found.append(
            Ask(
                arrival_s=draw(st.one_of(st.just(0.0), seconds(6.0))),
                amount=amount,
                write_s=draw(seconds(0.7)) if late else 0.0,
                is_released=late and draw(st.integers(0, 3)) == 0,
                used=draw(st.integers(0, amount)) if late and draw(st.booleans()) else None,
                answer_s=draw(seconds(3.0)) if late else 1.0,
            )
        )
    return found


@MANY
@given(st.data())
def test_no_window_plus_guard_ever_holds_more_than_the_count(data: st.DataObject) -> None:
    rate = data.draw(RATES)
    profile = data.draw(st.sampled_from(HARD))
    lates = data.draw(st.lists(seconds(0.03), min_size=1, max_size=8))
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
    assert window._booked_amount == 0
    assert window.wait_s(rate.count, later_s) == 0
    assert window._sent_amount == 0
    assert not window._sent


NEVER_REJECTED = [
    ("any", ("fixed", "aligned", "moving", "counter", "bucket")),
    ("counter", ("counter",)),
    ("fixed", ("fixed", "aligned")),
    ("moving", ("moving", "fixed", "aligned")),
    ("bucket", ("bucket",)),
]


@pytest.mark.parametrize(("profile", "servers"), NEVER_REJECTED)
@settings(max_examples=250, deadline=None)
@given(data=st.data())
def test_a_server_of_the_profile_never_rejects(
    profile: str, servers: tuple[str, ...], data: st.DataObject
) -> None:
    """The guard covers the timers' lag and the network's jitter together."""
    rate = data.draw(RATES)
    lag_s = data.draw(seconds(0.02))
    window = Window(rate, profile=profile, guard_s=GUARD_S)
    driven = drive(window, data.draw(asks(1, is_plain=True)), late_s=lag_s)
    jitters_s = data.draw(st.lists(seconds(GUARD_S - lag_s - 1e-3), min_size=1, max_size=8))
    phase_s = data.draw(seconds(2.0))
    for name in servers:
        assert rejections(SERVERS[name](rate), driven.sends, jitters_s, phase_s) == 0, name


@settings(max_examples=250, deadline=None)
@given(st.data())
def test_any_is_never_rejected_by_the_smallest_bucket(data: st.DataObject) -> None:
    rate = data.draw(RATES)
    lag_s = data.draw(seconds(0.02))
    window = Window(rate, profile="any", guard_s=GUARD_S)
    driven = drive(window, data.draw(asks(1, is_plain=True)), late_s=lag_s)
    jitters_s = data.draw(st.lists(seconds(GUARD_S - lag_s - 1e-3), min_size=1, max_size=8))
    server = SmallBucket(rate, GUARD_S)
    assert rejections(server, driven.sends, jitters_s) == 0


@pytest.mark.parametrize("server", ["moving", "bucket"])
@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_weighted_calls_are_never_rejected(server: str, data: st.DataObject) -> None:
    rate = Rate(data.draw(st.integers(2, 400)), 1.0)
    # The bucket's guard is capacity kept free, so no request may need that part.
    most = rate.count if server == "moving" else max(1, math.floor(rate.count * 0.9))
    window = Window(rate, profile=server, guard_s=GUARD_S)
    driven = drive(window, data.draw(asks(most, is_plain=True)))
    jitters_s = data.draw(st.lists(seconds(GUARD_S - 1e-3), min_size=1, max_size=8))
    assert rejections(SERVERS[server](rate), driven.sends, jitters_s) == 0


def ideal_s(profile: str, rate: Rate, calls: int) -> float:
    """When the last of `calls` may be sent at best (docs/architecture.md, Limits)."""
    span_s = rate.window_s + GUARD_S
    if profile in ("fixed", "moving"):
        return math.floor((calls - 1) / rate.count) * span_s
    return (calls - 1) * span_s / rate.count


@pytest.mark.parametrize("profile", HARD)
@pytest.mark.parametrize("late_s", [0.0, 0.005])
@pytest.mark.parametrize("rate", [Rate(1, 1.0), Rate(2, 1.0), Rate(7, 1.0), Rate(500, 60.0)])
def test_the_last_send_is_as_early_as_it_can_be(profile: str, late_s: float, rate: Rate) -> None:
    calls = 6 * rate.count + 1
    driven = drive(Window(rate, profile=profile, guard_s=GUARD_S), [Ask()] * calls, late_s=late_s)
    # The hard rule starts each window at a real stamp, so a late timer costs once a window.
    spare_s = late_s * (calls / rate.count + 1) + 1e-6
    assert driven.stamps[-1] == pytest.approx(ideal_s(profile, rate, calls), abs=spare_s)
    assert driven.stamps[-1] >= ideal_s(profile, rate, calls) - 1e-6


@MANY
@given(st.integers(1, 50), st.floats(0.1, 60), st.integers(1, 200))
def test_makespan_of_any_rate(count: int, window_s: float, calls: int) -> None:
    rate = Rate(count, window_s)
    for profile in ("any", "fixed"):
        driven = drive(Window(rate, profile=profile, guard_s=GUARD_S), [Ask()] * calls)
        assert driven.stamps[-1] == pytest.approx(ideal_s(profile, rate, calls), abs=1e-5)


def test_a_bucket_is_used_up_and_then_follows_its_refill() -> None:
    rate = Rate(100, 1.0)
    driven = drive(Window(rate, profile="bucket", guard_s=GUARD_S), [Ask()] * 295)
    assert driven.stamps[94] == 0
    assert driven.stamps[-1] == pytest.approx(2.0)


# Mutants: each is one changed line of window.py, caught by one of the checks above.


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


MUTANTS = [
    (check_idle, "from_s = now_s - min(late_s, self._catch_up_s)", "from_s = now_s - 0.05"),
    (
        check_any_window,
        "self._span_s = rate.window_s + (guard_s if self._is_hard else 0.0)",
        "self._span_s = rate.window_s",
    ),
    (
        check_any_window,
        "excess = self._sent_amount + self._booked_amount + amount - self.rate.count",
        "excess = self._sent_amount + self._booked_amount + amount - self.rate.count - 1",
    ),
    (
        check_any_window,
        "excess = self._sent_amount + self._booked_amount + amount - self.rate.count",
        "excess = self._sent_amount + amount - self.rate.count",
    ),
    (check_any_window, "booking.sent_s = now_s", "booking.sent_s = booking.booked_s"),
    (
        check_no_leak,
        "self._shift(-max(0.0, booking.amount * self._unit_s - held_s))",
        "self._booked_amount += booking.amount",
    ),
    (check_settling, "booking.amount = used", "pass"),
    (check_settling, "self._sent_amount += difference", "pass"),
    (check_settling, "self._shift(difference * self._unit_s)", "pass"),
    (check_pace, "self._catch_up_s = guard_s if self._burst == 1 else 0.0", "self._catch_up_s = 0"),
]


@pytest.mark.parametrize(("check", "line", "replacement"), MUTANTS)
def test_mutants_are_caught(check: Any, line: str, replacement: str) -> None:
    changed = mutant(window_module, line, replacement)
    assert_caught(check, Window, changed.Window)


def test_a_mutant_whose_line_is_gone_is_an_error() -> None:
    with pytest.raises(LookupError, match="has 0 lines"):
        mutant(window_module, "no such line", "pass")
