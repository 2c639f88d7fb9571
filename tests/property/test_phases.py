"""What a sliding-window counter reads of our sends, whatever is sent: never more than the limit."""

from __future__ import annotations

import itertools
import random
from bisect import bisect_left, bisect_right
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redline.limits import Cost, Rate
from redline.limits.rule import Phases, Window
from support.pacing import SERVERS, Ask, Sent, drive, rejections

GUARD_S = 0.05
SLACK_S = 1e-6


def highest_reading(sends: list[Sent], window_s: float, guard_s: float) -> float:
    """In the worst phase, after any of the sends, each up to guard_s late.

    It is highest just before some send has left either window, so those phases are enough.
    """
    most = 0.0
    stamps_s = [send.at_s for send in sends]
    assert stamps_s == sorted(stamps_s)
    # Up to each of them.
    sums = [0, *itertools.accumulate(send.amount for send in sends)]
    for last, send in enumerate(sends):
        edges = [stamp_s - SLACK_S for stamp_s in stamps_s[: last + 1]]
        for begun_s in [*edges, *(edge_s + window_s for edge_s in edges)]:
            share = (send.at_s - guard_s - begun_s) / window_s
            if not 0 <= share <= 1:
                continue
            current, both = (
                sums[last + 1] - sums[bisect_right(stamps_s, from_s, hi=last + 1)]
                for from_s in (begun_s, begun_s - window_s)
            )
            most = max(most, share * current + (1 - share) * both)
    return most


def asks(chance: random.Random, most: int, count: int) -> list[Ask]:
    """Callers of all sizes; some are given back, and some use less than they said."""
    found = []
    for _ in range(count):
        amount = chance.choice([chance.randint(1, most), chance.randint(1, max(1, most // 8))])
        found.append(
            Ask(
                arrival_s=chance.choice([0.0, 0.0, chance.uniform(0, 6)]),
                amount=amount,
                is_released=chance.random() < 0.1,
                used=chance.choice([None, chance.randint(0, amount)]),
                answer_s=chance.uniform(0, 2),
            )
        )
    return found


class Held:
    """A window whose callers are also held back by something else, as by another limit.

    until_s: not before that is the caller who now waits let go.
    """

    def __init__(self, window: Window, chance: random.Random) -> None:
        self._window = window
        self._chance = chance
        self._until_s = 0.0

    def wait_s(self, amount: int, now_s: float) -> float:
        return max(self._window.wait_s(amount, now_s), self._until_s - now_s)

    def book(self, amount: int, now_s: float, late_s: float) -> Any:
        if self._chance.random() < 0.3:
            self._until_s = now_s + self._chance.choice([0.01, 0.05, 0.3])
        if late_s == 0 and (booking := self._window.book_now(now_s, Cost(amount))) is not None:
            return booking
        return self._window.book(amount, now_s, late_s, busy_s=now_s)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._window, name)


def calm_at_first(chance: random.Random, count: int) -> list[Ask]:
    """Callers that leave most of the limit unused for some windows, and then use all of it.

    The former come together, and some shortly before the latter.
    """
    begin_s = chance.uniform(2, 5)
    bursts_s = [chance.uniform(0, begin_s) for _ in range(3)] + [begin_s - chance.uniform(0, 1.2)]
    asked = [Ask(chance.choice(bursts_s), chance.randint(1, count // 20)) for _ in range(20)]
    return [*asked, *(Ask(begin_s, chance.randint(1, count // 10)) for _ in range(40))]


@settings(max_examples=60, deadline=None)
@given(st.randoms(use_true_random=True))
def test_no_phase_reads_more_than_the_limit_after_a_calm(chance: random.Random) -> None:
    count = chance.choice([20, 100, 1000])
    window = Window(Rate(count, 1.0), kind="tokens", guard_s=GUARD_S)
    driven = drive(Held(window, chance), calm_at_first(chance, count))
    assert highest_reading(driven.sends, 1.0, GUARD_S) <= count + 1e-6


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(st.randoms(use_true_random=True))
def test_no_phase_reads_more_than_the_limit(chance: random.Random) -> None:
    count = chance.choice([20, 100, 1000])
    most = chance.choice([count, count // 4, max(1, count // 30)])
    window = Window(Rate(count, 1.0), kind="tokens", guard_s=GUARD_S)
    driven = drive(Held(window, chance), asks(chance, most, 60))
    assert highest_reading(driven.sends, 1.0, GUARD_S) <= count + 1e-6
    jitters_s = [chance.uniform(0, GUARD_S - 1e-3) for _ in range(7)]
    phase_s = chance.uniform(0, 2)
    for name, server in SERVERS.items():
        assert rejections(server(Rate(count, 1.0)), driven.sends, jitters_s, phase_s) == 0, name


def sent_evenly(pause_s: float, after: int, guard_s: float = 0.0) -> tuple[Phases, float]:
    """300 sends of 10 that use 99 % of a limit of 1000, with a pause after some of them."""
    phases = Phases(1000, 1.0, guard_s)
    at_s = 0.0
    for number in range(300):
        phases.add(10, at_s)
        at_s += 0.0101 * (1 + guard_s) + (pause_s if number == after else 0.0)
    return phases, at_s


def test_what_was_lost_a_moment_ago_is_caught_up_and_what_was_lost_long_ago_is_not() -> None:
    phases, now_s = sent_evenly(0.04, after=299)
    assert phases.wait_s(10 + 35, now_s) == 0
    phases, now_s = sent_evenly(0.04, after=250)
    assert phases.wait_s(10 + 35, now_s) > 0


def test_another_count_or_guard_takes_over_what_was_sent() -> None:
    phases, now_s = sent_evenly(0.0, after=0, guard_s=0.05)
    phases.reshape(500, 0.01)
    assert phases.wait_s(10, now_s) > 0
    # It asks again until two windows have passed, and not for ever.
    waited_s = 0.0
    while (wait_s := phases.wait_s(500, now_s + waited_s)) > 1e-9:
        waited_s += wait_s
    assert 1.0 < waited_s < 2.1


def test_what_is_given_back_is_never_taken_once_more() -> None:
    phases, now_s = sent_evenly(0.05, after=295)
    step = phases.add(7, now_s)
    for later_s in (0.0, 0.02, 0.04):
        before = free(phases, 1000, now_s + later_s)
        phases.amend(step, -2, 5)
        assert before <= free(phases, 1000, now_s + later_s) <= before + 2


def free_exactly(sends: list[Sent], count: int, guard_s: float, now_s: float) -> float:
    """What is free in a window of 1 s, by the formula at the head of phases.py.

    Between two sends it is linear in u, so that only those u count at which a send leaves a window.
    """
    stamps_s = [send.at_s for send in sends]
    sums = [0, *itertools.accumulate(send.amount for send in sends)]

    def unused(at_s: float) -> float:
        """The highest that it was about then."""
        return count * at_s - sums[bisect_right(stamps_s, at_s - 1e-9)]

    if not sends:
        return count
    late_s = now_s - guard_s
    edges = [late_s - stamp_s - back_s for stamp_s in stamps_s for back_s in (0.0, 1.0)]
    shares = [0.0, 1.0, *(share for share in edges if 0 <= share <= 1)]
    floor = max(
        share * unused(late_s - share) + (1 - share) * unused(late_s - share - 1)
        for share in shares
    )
    return count * now_s - sums[-1] - count * guard_s - floor


def free(phases: Phases, count: int, now_s: float) -> int:
    """The largest amount that needs no wait."""
    return bisect_left(range(1, count + 1), True, key=lambda most: phases.wait_s(most, now_s) > 0)


@pytest.mark.parametrize("seed", range(12))
def test_what_is_free_is_never_above_the_exact_amount_and_hardly_below_it(seed: int) -> None:
    chance, count = random.Random(seed), 10_000
    guard_s = chance.choice([0.0, 0.05, 1.3])
    phases, now_s = Phases(count, 1.0, guard_s), chance.choice([0.0, 7e5])
    sends, steps = list[Sent](), list[int]()
    for _ in range(120):
        now_s += chance.choice([0.0, 0.001, 0.02, 0.1, chance.expovariate(1.0)])
        found = free(phases, count, now_s)
        missing = min(count, free_exactly(sends, count, guard_s, now_s)) - found
        assert -1e-4 <= missing <= count / 50
        if amount := min(found, chance.choice([30, 300, 3000, count])):
            steps.append(phases.add(amount, now_s))
            sends.append(Sent(now_s, amount))
        if sends and chance.random() < 0.5:
            number = chance.randrange(max(0, len(sends) - 8), len(sends))
            used = chance.randint(0, sends[number].amount)
            phases.amend(steps[number], used - sends[number].amount, used)
            sends[number].amount = used
    # Nor does a wait last much longer than until then.
    amount, waited_s = 9 * count // 10, 0.0
    while (wait_s := phases.wait_s(amount, now_s + waited_s)) > 1e-9:
        waited_s += wait_s
    for early_s in (0.017 * number for number in range(1, int(waited_s / 0.017))):
        at_s = now_s + waited_s - early_s
        assert free_exactly(sends, count, guard_s, at_s) < amount + count / 50


def test_the_step_of_a_time_is_that_of_an_amount_sent_then() -> None:
    chance = random.Random(1)
    for begun_s in (0.0, 7e5):
        phases = Phases(1000, 1.0, 0.05)
        for at_s in sorted(begun_s + chance.uniform(0, 5) for _ in range(500)):
            step = phases.add(1, at_s)
            assert step == phases.step_at(at_s)
            # A window has 512 of them.
            assert step <= at_s * 512 + 1e-6 < step + 1 + 2e-6
