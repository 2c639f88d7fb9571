"""What stays free for amounts that are not known yet, and a bucket's level once they are."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from mutants import assert_caught, mutant
from redline.limits import record as record_module
from redline.limits.cost import CERTAIN, Spread
from redline.limits.record import BucketLevel, Doubt

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


def is_rarely_passed(module: Any) -> None:
    """Sums of few and of many long-tailed amounts pass their margin once in thousands."""
    chance, spread = random.Random(1), lognormal_spread()
    for number in (1, 3, 20):
        doubt = module.Doubt()
        for _ in range(number - 1):
            doubt.add(spread)
        most = number * MEAN + doubt.margin(spread)
        sums = (sum(draw(chance) for _ in range(number)) for _ in range(5000))
        assert sum(total > most for total in sums) <= 5
        # Nor is it far above what is needed: eight deviations would hold for anything.
        assert doubt.margin(spread) < 10.5 * math.sqrt(number * spread.variance)


def test_the_margin_covers_a_long_tail() -> None:
    line = "margin = z * math.sqrt(variance) + (z * z - 1) / 6 * third / variance"
    symmetric = mutant(record_module, line, "margin = z * math.sqrt(variance)")
    assert_caught(is_rarely_passed, record_module, symmetric)
    narrow = mutant(record_module, "_DEVIATIONS = 4.0", "_DEVIATIONS = 2.0")
    assert_caught(is_rarely_passed, record_module, narrow)
    one_by_one = mutant(
        record_module, line, "margin = 4 * (z + 2.5 * 2.3) * math.sqrt(spread.variance)"
    )
    assert_caught(is_rarely_passed, record_module, one_by_one)


def keeps_no_more_than_can_come(module: Any) -> None:
    doubt = module.Doubt()
    doubt.add(Spread(10_000.0, 1e6, 50.0))
    assert doubt.margin(Spread(10_000.0, 1e6, 30.0)) == 80.0


def test_the_margin_is_no_larger_than_the_maxima_allow() -> None:
    line = "return max(0.0, min(margin, self.most + spread.most))"
    unbounded = mutant(record_module, line, "return max(0.0, margin)")
    assert_caught(keeps_no_more_than_can_come, record_module, unbounded)


def gives_all_back(module: Any) -> None:
    chance = random.Random(2)
    doubt, part = module.Doubt(), module.Doubt()
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


def test_nothing_is_left_when_all_is_settled() -> None:
    line = "self.variance -= other.variance"
    leaking = mutant(record_module, line, "self.variance -= 0.999 * other.variance")
    assert_caught(gives_all_back, record_module, leaking)


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


def is_as_if_known_from_the_start(module: Any) -> None:
    chance = random.Random(3)
    for _ in range(200):
        level, known, open_takes, now_s = module.BucketLevel(), Known(), [], 0.0
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


def test_the_level_is_as_if_each_amount_had_been_known_when_it_was_taken() -> None:
    line = "return begun_s + entry.amount * unit_s"
    begun = "begun_s = entry.at_s if full_at_s is None else max(full_at_s, entry.at_s)"
    for old, new in (
        # A refund that the full bucket could not have held is credited.
        (begun, "begun_s = entry.at_s if full_at_s is None else full_at_s"),
        (line, "return begun_s + max(1, entry.amount) * unit_s"),
        # The level before an amendment is remembered.
        ("if entry.amount != amount:", "if entry.amount < amount:"),
    ):
        changed = mutant(record_module, old, new)
        assert_caught(is_as_if_known_from_the_start, record_module, changed)


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


def holds_little(module: Any) -> None:
    level = module.BucketLevel()
    stuck = level.take(0.0, 100)
    for number in range(6000):
        level.amend(level.take(float(number), 1), 1)
        level.full_at_s(UNIT_S)
    assert len(level._entries) <= 4096
    # What was never settled counts as it was taken.
    before = level.full_at_s(UNIT_S)
    level.amend(stuck, 1)
    assert level.full_at_s(UNIT_S) == before


def test_one_call_that_is_never_settled_does_not_keep_all_the_others() -> None:
    line = "while entries and (entries[0].is_final or len(entries) > _MOST_ENTRIES):"
    unbounded = mutant(record_module, line, "while entries and entries[0].is_final:")
    assert_caught(holds_little, record_module, unbounded)
