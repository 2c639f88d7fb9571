"""The four algorithms against the plainest reading of their rules, in virtual time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redline.limits.rule import Rate
from redline.sim import (
    Admission,
    Charge,
    FixedWindow,
    MovingWindow,
    SlidingCounter,
    TokenBucket,
    Window,
)
from support.held import held

Hits = list[tuple[float, int]]
Events = Sequence[tuple[float, int]]

# Gaps are eighths of a second and windows whole seconds, so that float arithmetic is exact and
# the very edges of windows are met.
GAPS = st.integers(0, 40).map(lambda eighths: eighths / 8)
EVENTS = st.lists(st.tuples(GAPS, st.integers(1, 9)), max_size=60)
RATES = st.builds(Rate, count=st.integers(1, 8), window_s=st.sampled_from([1.0, 2.0, 4.0]))


def fixed_fits(rate: Rate, hits: Hits, amount: int, now_s: float) -> bool:
    """Walks all hits since the beginning, window by window."""
    ends_s, count = -math.inf, 0
    for at_s, hit in hits:
        if at_s >= ends_s:
            ends_s, count = at_s + rate.window_s, 0
        count += hit
    return (count if now_s < ends_s else 0) + amount <= rate.count


def moving_fits(rate: Rate, hits: Hits, amount: int, now_s: float) -> bool:
    return sum(h for at_s, h in hits if at_s + rate.window_s > now_s) + amount <= rate.count


def counter_fits(rate: Rate, hits: Hits, amount: int, now_s: float) -> bool:
    this = math.floor(now_s / rate.window_s)
    now = sum(h for at_s, h in hits if math.floor(at_s / rate.window_s) == this)
    last = sum(h for at_s, h in hits if math.floor(at_s / rate.window_s) == this - 1)
    in_view = 1 - (now_s - this * rate.window_s) / rate.window_s
    return math.floor(last * in_view + now) + amount <= rate.count


def bucket_fits(rate: Rate, hits: Hits, amount: int, now_s: float) -> bool:
    level, then_s = float(rate.count), 0.0
    for at_s, hit in hits:
        level = min(rate.count, level + (at_s - then_s) * rate.count / rate.window_s) - hit
        then_s = at_s
    level = min(rate.count, level + (now_s - then_s) * rate.count / rate.window_s)
    return level >= amount


Reference = Callable[[Rate, Hits, int, float], bool]
PAIRS: list[tuple[Callable[[Rate], Window], Reference]] = [
    (FixedWindow, fixed_fits),
    (MovingWindow, moving_fits),
    (SlidingCounter, counter_fits),
    (TokenBucket, bucket_fits),
]


def first_difference(window: Window, fits: Reference, rate: Rate, events: Events) -> int | None:
    """The index of the first event on which the window and its reference disagree."""
    hits: Hits = []
    now_s = 16.0
    for index, (gap_s, amount) in enumerate(events):
        now_s += gap_s
        is_admitted = window.wait_s(amount, now_s) == 0
        if is_admitted != fits(rate, hits, amount, now_s):
            return index
        if is_admitted:
            window.take(amount, now_s)
            hits.append((now_s, amount))
    return None


@pytest.mark.parametrize(("make", "fits"), PAIRS)
@settings(max_examples=100, deadline=None)
@given(rate=RATES, events=EVENTS)
def test_decides_like_its_rule(
    make: Callable[[Rate], Window], fits: Reference, rate: Rate, events: Events
) -> None:
    assert first_difference(make(rate), fits, rate, events) is None


class ShortWindow(MovingWindow):
    """Forgets a hit an eighth of a second early."""

    def wait_s(self, amount: int, now_s: float) -> float:
        return super().wait_s(amount, now_s + 0.125)


def overflowing_bucket(rate: Rate) -> TokenBucket:
    """Holds one more than it should."""
    count = rate.count + 1
    return TokenBucket(Rate(count, rate.window_s * count / rate.count))


@pytest.mark.parametrize(
    ("wrong", "fits"),
    [
        (MovingWindow, fixed_fits),
        (ShortWindow, moving_fits),
        (FixedWindow, counter_fits),
        (overflowing_bucket, bucket_fits),
    ],
)
def test_the_comparison_catches_a_wrong_window(
    wrong: Callable[[Rate], Window], fits: Reference
) -> None:
    rate = Rate(4, 2.0)
    # Idle for long, then a burst, then one hit each time a wrong window would take it.
    events = [(8.0, 1), (0.5, 1), *[(0.0, 1)] * 6, *[(0.125, 1)] * 40]
    assert first_difference(wrong(rate), fits, rate, events) is not None


@pytest.mark.parametrize("make", [make for make, _ in PAIRS])
@settings(max_examples=75, deadline=None)
@given(rate=RATES, events=EVENTS)
def test_what_it_says_of_itself_is_true(
    make: Callable[[Rate], Window], rate: Rate, events: Events
) -> None:
    window = make(rate)
    now_s = 16.0
    for gap_s, amount in events:
        now_s += gap_s
        left = window.left(now_s)
        assert 0 <= left <= rate.count
        assert left == 0 or window.wait_s(left, now_s) == 0
        assert window.wait_s(left + 1, now_s) > 0
        if window.wait_s(amount, now_s) == 0:
            window.take(amount, now_s)
    reset_s = window.reset_s(now_s)
    assert 0 <= reset_s <= 2 * rate.window_s
    assert window.left(now_s + reset_s + 1e-6) == rate.count


@pytest.mark.parametrize(("make", "fits"), PAIRS)
@settings(max_examples=75, deadline=None)
@given(rate=RATES, events=EVENTS, asked=st.integers(1, 9))
def test_the_wait_is_enough_and_not_too_long(
    make: Callable[[Rate], Window], fits: Reference, rate: Rate, events: Events, asked: int
) -> None:
    window, hits, now_s = make(rate), [], 16.0
    for gap_s, amount in events:
        now_s += gap_s
        if window.wait_s(amount, now_s) == 0:
            window.take(amount, now_s)
            hits.append((now_s, amount))
    wait_s = window.wait_s(asked, now_s)
    if asked > rate.count:
        assert math.isinf(wait_s)
        return
    assert wait_s < 2 * rate.window_s + 1e-3
    if wait_s > 1e-3:
        assert not fits(rate, hits, asked, now_s + wait_s - 1e-3)
    assert window.wait_s(asked, now_s + wait_s) == 0


def test_a_fixed_window_begins_with_its_first_hit() -> None:
    window = FixedWindow(Rate(2, 1.0))
    window.take(1, 10.7)
    window.take(1, 11.6)
    assert window.wait_s(1, 11.6) == pytest.approx(0.1)
    assert window.wait_s(1, 11.7) == 0
    window.take(1, 13.0)
    assert window.reset_s(13.25) == pytest.approx(0.75)


def test_a_sliding_counter_rounds_down_as_the_limits_package_does() -> None:
    window = SlidingCounter(Rate(4, 1.0))
    for _ in range(4):
        window.take(1, 10.5)
    assert window.wait_s(1, 11.0) > 0
    assert window.wait_s(1, 11.001) == 0
    assert window.wait_s(2, 11.001) == pytest.approx(0.249, abs=1e-3)


def test_the_log_of_a_moving_window_stays_within_its_limit() -> None:
    window = MovingWindow(Rate(5, 1.0))
    for step in range(1000):
        if window.wait_s(1, step / 10) == 0:
            window.take(1, step / 10)
    assert held(window) <= 30


ALGORITHMS = ("bucket", "counter", "fixed", "moving")


def limits_of(algorithm: str = "fixed", **rates: list[Rate]) -> Admission:
    """Limits by kind: `input_tokens=[...]` are those of input-tokens."""
    return Admission({what.replace("_", "-"): found for what, found in rates.items()}, algorithm)


def left(limits: Admission, now_s: float) -> dict[str, int]:
    return {reading.what: reading.left for reading in limits.readings(now_s)}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_rejected_request_consumes_nothing(algorithm: str) -> None:
    limits = limits_of(algorithm, requests=[Rate(3, 1.0), Rate(100, 60.0)], tokens=[Rate(50, 1.0)])
    assert limits.ask(Charge(40), 100.0) is None
    before = limits.readings(100.0)
    rejection = limits.ask(Charge(6, 5), 100.0)
    assert rejection is not None
    assert (rejection.limit, rejection.asked, rejection.used) == ("tokens 50/1s", 11, 40)
    assert limits.readings(100.0) == before
    assert limits.ask(Charge(1, 9), 100.0) is None
    assert limits.ask(Charge(), 100.0) is None
    rejection = limits.ask(Charge(), 100.0)
    assert rejection is not None
    assert rejection.limit == "requests 3/1s"
    assert {r.what: (r.limit, r.left) for r in limits.readings(100.0)} == {
        "requests": (3, 0),
        "tokens": (50, 0),
    }


def test_a_request_above_the_limit_never_fits() -> None:
    limits = limits_of("moving", tokens=[Rate(50, 1.0)])
    rejection = limits.ask(Charge(51), 5.0)
    assert rejection is not None
    assert math.isinf(rejection.wait_s)
    assert limits.ask(Charge(50), 5.0) is None


def test_the_longest_wait_is_the_one_reported() -> None:
    limits = limits_of(requests=[Rate(1, 1.0), Rate(1, 60.0)])
    assert limits.ask(Charge(), 5.0) is None
    rejection = limits.ask(Charge(), 5.5)
    assert rejection is not None
    assert (rejection.limit, rejection.wait_s) == ("requests 1/60s", pytest.approx(59.5))


def test_without_limits_everything_is_admitted() -> None:
    limits = limits_of()
    assert all(limits.ask(Charge(10**6), 0.0) is None for _ in range(100))
    assert limits.readings(0.0) == []


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_input_and_output_are_counted_apart_and_together(algorithm: str) -> None:
    limits = limits_of(
        algorithm,
        tokens=[Rate(100, 60.0)],
        input_tokens=[Rate(50, 60.0)],
        output_tokens=[Rate(30, 60.0)],
    )
    assert limits.ask(Charge(40, 20), 120.0) is None
    assert left(limits, 120.0) == {"tokens": 40, "input-tokens": 10, "output-tokens": 10}
    refused = {"input-tokens 50/60s": (11, 0), "output-tokens 30/60s": (0, 11)}
    for limit, (prompt, answer) in refused.items():
        rejection = limits.ask(Charge(prompt, answer), 120.0)
        assert rejection is not None
        assert (rejection.limit, rejection.asked) == (limit, 11)
    assert limits.ask(Charge(10, 10), 120.0) is None


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_an_answer_that_ends_is_counted_though_it_does_not_fit(algorithm: str) -> None:
    limits = limits_of(algorithm, requests=[Rate(9, 60.0)], tokens=[Rate(100, 60.0)])
    for _ in range(2):
        assert limits.ask(Charge(40), 120.0) is None
    for _ in range(2):
        limits.count(Charge(output_tokens=30, requests=0), 120.0)
    assert left(limits, 120.0) == {"requests": 7, "tokens": 0}
    rejection = limits.ask(Charge(1), 120.0)
    assert rejection is not None
    # 140 of 100 are counted; it fits when the wait is over, and no sooner.
    assert 0 < rejection.wait_s < 120
    assert limits.ask(Charge(1), 120.0 + rejection.wait_s - 0.01) is not None
    assert limits.ask(Charge(1), 120.0 + rejection.wait_s) is None


# What is left of a limit of 10, of which 6 are used, once it allows 5, and once it allows 20.
RESIZED = {"fixed": (0, 14), "moving": (0, 14), "counter": (0, 14), "bucket": (4, 4)}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_limits_that_change_keep_what_is_counted(algorithm: str) -> None:
    def changed(count: int) -> int:
        limits = limits_of(algorithm, requests=[Rate(10, 60.0)], tokens=[Rate(7, 1.0)])
        for _ in range(6):
            assert limits.ask(Charge(1), 120.0) is None
        limits.change({"requests": [Rate(count, 60.0)]}, 120.0)
        assert [each.limit for each in limits.readings(120.0)] == [count, 7]
        # The other kind is as it was.
        assert left(limits, 120.0)["tokens"] == 1
        return left(limits, 120.0)["requests"]

    assert (changed(5), changed(20)) == RESIZED[algorithm]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_limit_of_another_window_begins_anew_and_limits_can_go(algorithm: str) -> None:
    limits = limits_of(algorithm, requests=[Rate(2, 60.0)])
    assert limits.ask(Charge(), 120.0) is None
    limits.change({"requests": [Rate(2, 30.0), Rate(2, 60.0)]}, 120.0)
    assert limits.ask(Charge(), 120.0) is None
    rejection = limits.ask(Charge(), 120.0)
    assert rejection is not None
    assert rejection.limit == "requests 2/60s"
    limits.change({"requests": []}, 120.0)
    assert limits.ask(Charge(), 120.0) is None
    assert limits.readings(120.0) == []


def test_two_limits_of_one_window_are_told_apart_by_their_order() -> None:
    limits = limits_of(requests=[Rate(2, 60.0), Rate(3, 60.0)])
    assert limits.ask(Charge(), 120.0) is None
    limits.change({"requests": [Rate(8, 60.0), Rate(9, 60.0), Rate(4, 60.0)]}, 120.0)
    for _ in range(4):
        assert limits.ask(Charge(), 120.0) is None
    rejection = limits.ask(Charge(), 120.0)
    assert rejection is not None
    assert rejection.limit == "requests 4/60s"
