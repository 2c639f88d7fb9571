"""What a sliding-window counter reads of our sends, whatever is sent: never more than the limit."""

from __future__ import annotations

import itertools
import random
from bisect import bisect_right
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
