"""What stays free for amounts that are not known yet, and a bucket's level once they are."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from redline.limits import Rate
from redline.limits.rule import CERTAIN, BucketLevel, Doubt, Spread, Window
from support.catching import assert_caught
from support.held import held

UNIT_S = 0.5
MEAN, SHAPE = 200.0, 0.6


def lognormal_spread() -> Spread:
    """That of a lognormal of this mean and shape, which has no bound (its own moments)."""
    power = math.exp(SHAPE**2)
    variance = MEAN**2 * (power - 1)
    skewness = (power + 2) * math.sqrt(power - 1)
    return Spread(variance, skewness * variance**1.5, 1e9)


def draw(chance: random.Random) -> float:
    return chance.lognormvariate(math.log(MEAN) - SHAPE**2 / 2, SHAPE)


# Doubt.


def test_what_is_certain_needs_no_margin() -> None:
    doubt = Doubt()
    doubt.add(CERTAIN)
    assert doubt.margin(CERTAIN) == 0.0


def test_four_deviations_where_nothing_is_skewed() -> None:
    doubt = Doubt()
    for _ in range(15):
        doubt.add(Spread(100.0, 0.0, 1e6))
    assert doubt.margin(Spread(100.0, 0.0, 1e6)) == pytest.approx(4 * math.sqrt(1600))


def is_rarely_passed(kind: Any) -> None:
    """Sums of few and of many long-tailed amounts pass their margin once in thousands."""
    chance, spread = random.Random(1), lognormal_spread()
    for number in (1, 3, 20):
        doubt = kind()
        for _ in range(number - 1):
            doubt.add(spread)
        most = number * MEAN + doubt.margin(spread)
        sums = (sum(draw(chance) for _ in range(number)) for _ in range(5000))
        assert sum(total > most for total in sums) <= 5
        # Nor is it far above what is needed: eight deviations would hold for anything.
        assert doubt.margin(spread) < 10.5 * math.sqrt(number * spread.variance)


class Symmetric(Doubt):
    """Four deviations, whatever the skewness."""

    def margin(self, spread: Spread) -> float:
        return 4 * math.sqrt(self.variance + spread.variance)


class EachForItself(Doubt):
    """The margins of all added up, as if they were at their worst together."""

    def __init__(self) -> None:
        super().__init__()
        self.number = 0

    def add(self, spread: Spread, sign: int = 1) -> None:
        self.number += sign

    def margin(self, spread: Spread) -> float:
        return (self.number + 1) * Doubt().margin(spread)


@pytest.mark.parametrize("wrong", [Symmetric, EachForItself])
def test_the_margin_covers_a_long_tail_and_no_more(wrong: Any) -> None:
    assert_caught(is_rarely_passed, Doubt, wrong)


def test_the_margin_is_no_larger_than_the_maxima_allow() -> None:
    doubt = Doubt()
    doubt.add(Spread(10_000.0, 1e6, 50.0))
    assert doubt.margin(Spread(10_000.0, 1e6, 30.0)) == 80.0


def test_nothing_is_left_when_all_is_settled() -> None:
    chance = random.Random(2)
    doubt, part = Doubt(), Doubt()
    spreads = [Spread(chance.uniform(0, 1e9), chance.uniform(0, 1e13), 1e6) for _ in range(3000)]
    for spread in spreads:
        doubt.add(spread)
    for spread in spreads[:1000]:
        doubt.add(spread, -1)
    for spread in spreads[1000:]:
        part.add(spread)
    doubt.subtract(part)
    assert doubt.variance == pytest.approx(0.0, abs=1.0)
    assert doubt.margin(CERTAIN) == pytest.approx(0.0, abs=1.0)


def test_an_amount_that_was_settled_leaves_no_doubt_with_its_window() -> None:
    spread = Spread(10_000.0, 0.0, 1e6)
    used, fresh = (
        Window(Rate(2000, 60.0), kind="tokens", profile="moving", guard_s=0.0) for _ in range(2)
    )
    booking = used.book(100, 0.0, 0.0, spread)
    used.sent(booking, 0.0)
    used.settle(booking, 90)
    for window in (used, fresh):
        window.sent(window.book(100, 100.0, 0.0, spread), 100.0)
    amounts = range(100, 2000, 100)
    waits_s = [fresh.wait_s(amount, 101.0, spread) for amount in amounts]
    assert 0 < sum(wait_s > 0 for wait_s in waits_s) < len(waits_s)
    assert [used.wait_s(amount, 101.0, spread) for amount in amounts] == waits_s


def test_what_is_taken_away_leaves_the_margin_of_the_rest() -> None:
    kept, gone = Spread(100.0, 9000.0, 70.0), Spread(400.0, 20_000.0, 500.0)
    for rest in (CERTAIN, Spread(900.0, 5e6, 1e6)):
        doubt, alone = Doubt(), Doubt()
        for one in (kept, gone):
            doubt.add(one)
        doubt.subtract(gone)
        alone.add(kept)
        assert doubt.margin(rest) == pytest.approx(alone.margin(rest))


# A bucket's level.


def test_a_bucket_that_gave_nothing_is_full() -> None:
    level = BucketLevel()
    assert level.full_at_s(UNIT_S) is None
    level.resume(10.0)
    assert level.full_at_s(UNIT_S) == 10.0
    level.resume(5.0)
    assert level.full_at_s(UNIT_S) == 10.0


class Known:
    """The same level, from all amounts as they are known now, with no memory of its own."""

    def __init__(self) -> None:
        self.takes: list[list[float]] = []

    def full_at_s(self, unit_s: float) -> float | None:
        full_at_s: float | None = None
        for at_s, amount in self.takes:
            begun_s = at_s if full_at_s is None else max(full_at_s, at_s)
            full_at_s = begun_s + amount * unit_s
        return full_at_s


def is_as_if_known_from_the_start(kind: Any) -> None:
    chance = random.Random(3)
    for _ in range(200):
        level, known, open_takes, now_s = kind(), Known(), [], 0.0
        for _ in range(60):
            now_s += chance.choice([0.0, 0.1, 1.0, 20.0])
            if open_takes and chance.random() < 0.5:
                entry, take = open_takes.pop(chance.randrange(len(open_takes)))
                take[1] = chance.choice([0, 1, take[1], 3 * take[1]])
                level.amend(entry, take[1])
            else:
                take = [now_s, chance.randint(1, 9)]
                known.takes.append(take)
                open_takes.append((level.take(now_s, take[1]), take))
            if chance.random() < 0.5:
                assert level.full_at_s(UNIT_S) == pytest.approx(known.full_at_s(UNIT_S))


class Crediting(BucketLevel):
    """Gives back what was taken too much as if the bucket could hold more than there is."""

    def amend(self, entry: Any, amount: int) -> None:
        full_at_s = self.full_at_s(UNIT_S) or 0.0
        self.cap(full_at_s + (amount - entry.amount) * UNIT_S, UNIT_S)
        super().amend(entry, amount)


class Unamended(BucketLevel):
    def amend(self, entry: Any, amount: int) -> None:
        pass


@pytest.mark.parametrize("wrong", [Crediting, Unamended])
def test_the_level_is_as_if_each_amount_had_been_known_when_it_was_taken(wrong: Any) -> None:
    assert_caught(is_as_if_known_from_the_start, BucketLevel, wrong)


def test_a_refund_credits_nothing_that_the_bucket_could_not_have_held() -> None:
    level = BucketLevel()
    first = level.take(0.0, 10)
    # Full again at 5 s, and for 5 s more; then 4 are taken.
    level.take(10.0, 4)
    level.amend(first, 1)
    assert level.full_at_s(UNIT_S) == 12.0


def test_another_rate_counts_at_its_own_unit() -> None:
    level = BucketLevel()
    level.take(0.0, 10)
    assert level.full_at_s(0.5) == 5.0
    assert level.full_at_s(0.1) == 1.0
    level.take(0.0, 10)
    assert level.full_at_s(0.1) == 2.0


def test_one_call_that_is_never_settled_does_not_keep_all_the_others() -> None:
    level = BucketLevel()
    stuck = level.take(0.0, 100)
    for number in range(6000):
        level.amend(level.take(float(number), 1), 1)
        level.full_at_s(UNIT_S)
    # Each is an entry and its time.
    assert held(level) <= 2 * 4096 + 100
    # What was never settled counts as it was taken.
    before = level.full_at_s(UNIT_S)
    level.amend(stuck, 1)
    assert level.full_at_s(UNIT_S) == before
