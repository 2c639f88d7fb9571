"""The edges of adaptive concurrency; that it finds knees is tested in tests/sim."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from redline.errors import ConfigError
from redline.limits.discover import AdaptiveConcurrency
from support.catching import assert_caught


def drive(
    control: Any,
    answers: int,
    latency_of: Callable[[int], float],
    *,
    now_s: float = 0.0,
    is_refused: Callable[[int], bool] = lambda limit: False,
) -> Iterator[float]:
    """The time after each of so many calls to a server that is kept full at the limit."""
    for _ in range(answers):
        limit = control.limit
        latency_s = 0.02 if is_refused(limit) else latency_of(limit)
        now_s += latency_s / limit
        control.ended(
            now_s=now_s, latency_s=latency_s, in_flight=limit, is_overload=is_refused(limit)
        )
        yield now_s


def run(control: Any, answers: int, latency_of: Callable[[int], float], **more: Any) -> float:
    """The time after all of them."""
    return [*drive(control, answers, latency_of, **more)][-1]


def pool(workers: int) -> Callable[[int], float]:
    """The latency of `workers` that take a second a call, with a queue before them."""
    return lambda limit: max(1.0, limit / workers)


def flat(limit: int) -> float:
    return 1.0


def refuse(control: Any, count: int, *, written_s: float, now_s: float) -> None:
    """So many refusals of calls of one burst beyond the limit's worth."""
    for number in range(count):
        control.ended(
            now_s=now_s,
            latency_s=now_s - written_s,
            in_flight=control.limit - number % 2,
            is_overload=True,
        )


def test_without_an_answer_it_stays_where_it_begins() -> None:
    assert AdaptiveConcurrency(first=8).limit == 8


@pytest.mark.parametrize(("first", "limit"), [(1, 4), (4, 4), (9, 9), (16, 16), (100, 16)])
def test_it_begins_within_its_bounds(first: int, limit: int) -> None:
    assert AdaptiveConcurrency(least=4, most=16, first=first).limit == limit


@pytest.mark.parametrize(("least", "most"), [(0, 10), (-1, 10), (11, 10), (1, 0)])
def test_bounds_that_exclude_each_other_are_refused(least: int, most: int) -> None:
    with pytest.raises(ConfigError, match=f"between {least} and {most}"):
        AdaptiveConcurrency(least=least, most=most)


def check_it_rises(kind: Any) -> None:
    control = kind(most=200)
    run(control, 10_000, flat)
    assert control.limit > 150


def check_it_finds_a_pool(kind: Any) -> None:
    for workers in (2, 6, 40):
        control = kind(most=500)
        limits = [control.limit for _ in drive(control, 400 * workers, pool(workers))]
        settled = limits[len(limits) // 2 :]
        assert min(settled) >= workers * 0.8 - 1
        assert max(settled) <= workers * 1.3 + 1


def test_a_limit_is_found_once_a_higher_one_has_brought_no_gain() -> None:
    control = AdaptiveConcurrency()
    now_s = run(control, 100, pool(40))
    assert (control.limit > 8, control.found) == (True, None)
    run(control, 16_000, pool(40), now_s=now_s)
    assert 31 <= (control.found or 0) <= 53
    control = AdaptiveConcurrency(first=100)
    refuse(control, 1, written_s=1.0, now_s=1.1)
    assert control.found == control.limit < 100


def test_one_slot_stays_one_slot() -> None:
    control = AdaptiveConcurrency(least=1, most=1)
    now_s = run(control, 200, flat)
    refuse(control, 3, written_s=now_s, now_s=now_s + 1)
    run(control, 200, flat, now_s=now_s + 1)
    assert control.limit == 1


def test_it_never_leaves_its_bounds() -> None:
    for seed in range(20):
        chance = random.Random(seed)
        least = chance.randint(1, 20)
        most = least + chance.choice([0, 1, 5, 300])
        control = AdaptiveConcurrency(least=least, most=most, first=chance.randint(1, 400))
        now_s = 0.0
        for _ in range(3000):
            now_s += chance.uniform(0, 0.2)
            control.ended(
                now_s=now_s,
                latency_s=chance.expovariate(1.0),
                in_flight=chance.randint(1, control.limit),
                is_overload=chance.random() < chance.choice([0.0, 0.01, 0.9]),
                size=chance.choice([0, 1, 200]),
            )
            assert least <= control.limit <= most


def check_a_burst_cuts_once(kind: Any) -> None:
    control = kind(first=100)
    run(control, 50, flat)
    refuse(control, 30, written_s=1.0, now_s=1.1)
    assert 80 <= control.limit <= 95
    # Written before the cut and answered after it.
    refuse(control, 30, written_s=1.0, now_s=2.0)
    assert 80 <= control.limit <= 95


def test_when_nothing_is_answered_it_falls_to_the_least_and_comes_back() -> None:
    control = AdaptiveConcurrency(least=2)
    now_s = run(control, 5_000, pool(100))
    before = control.limit
    assert before > 80
    refusals = 0
    while control.limit > 2:
        now_s += 0.1
        refuse(control, 1, written_s=now_s - 0.05, now_s=now_s)
        refusals += 1
        assert refusals <= 10
    now_s = run(control, 3 * before, pool(100), now_s=now_s)
    assert control.limit >= 0.75 * before
    run(control, 5_000, pool(100), now_s=now_s)
    assert 80 <= control.limit <= 130


def test_a_level_that_was_refused_is_seldom_tried_again() -> None:
    control = AdaptiveConcurrency()
    refused = 0
    limits = []

    def is_refused(limit: int) -> bool:
        return limit > 50

    now_s = run(control, 4_000, flat, is_refused=is_refused)
    for _ in drive(control, 20_000, flat, now_s=now_s, is_refused=is_refused):
        limits.append(control.limit)
        refused += control.limit > 50
    assert refused <= 100
    assert sum(limits) / len(limits) > 47


def test_a_limit_that_is_not_used_up_is_not_raised() -> None:
    control = AdaptiveConcurrency(first=64)
    for number in range(5_000):
        control.ended(now_s=number * 0.1, latency_s=1.0, in_flight=10, is_overload=False)
    assert control.limit == 64


def check_long_answers_are_no_queue(kind: Any) -> None:
    """After 100 answers each is 2.7 times as long, at 20 ms a token and 0.1 s before the first."""
    control = kind()
    chance = random.Random(7)
    now_s = 0.0
    for number in range(800):
        size = int(chance.lognormvariate(1.0 + number / 100, 0.8))
        latency_s = 0.1 + 0.02 * size
        now_s += latency_s / control.limit
        control.ended(
            now_s=now_s,
            latency_s=latency_s,
            in_flight=control.limit,
            is_overload=False,
            size=size,
        )
    assert control.limit >= 128


@pytest.mark.parametrize("jump_s", [-1e6, -5.0, 3600.0, 1e9])
def test_a_clock_that_jumps_does_not_stop_the_search(jump_s: float) -> None:
    control = AdaptiveConcurrency(most=200)
    now_s = run(control, 300, pool(60))
    refuse(control, 1, written_s=now_s, now_s=now_s)
    now_s = run(control, 300, pool(60), now_s=now_s + jump_s)
    run(control, 10_000, pool(60), now_s=now_s)
    assert 50 <= control.limit <= 80


def test_answers_that_take_no_time_are_no_queue() -> None:
    control = AdaptiveConcurrency(most=50)
    for number in range(5_000):
        control.ended(
            now_s=number * 1e-3, latency_s=0.0, in_flight=control.limit, is_overload=False
        )
    assert control.limit >= 40


class Stuck(AdaptiveConcurrency):
    def ended(self, **call: Any) -> None:
        pass


class Blind(AdaptiveConcurrency):
    """To how long the answers are."""

    def ended(self, **call: Any) -> None:
        super().ended(**{**call, "size": 0})


class Timid(AdaptiveConcurrency):
    """Takes every refused call for one that was written after the last cut."""

    def ended(self, **call: Any) -> None:
        super().ended(**{**call, "latency_s": 0.0 if call["is_overload"] else call["latency_s"]})


@pytest.mark.parametrize(
    ("check", "wrong"),
    [
        (check_it_rises, Stuck),
        (check_it_finds_a_pool, Stuck),
        (check_a_burst_cuts_once, Timid),
        (check_long_answers_are_no_queue, Blind),
    ],
)
def test_a_wrong_search_is_noticed(check: Callable[[Any], None], wrong: Any) -> None:
    assert_caught(check, AdaptiveConcurrency, wrong)
