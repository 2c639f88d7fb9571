"""Weights learned one observation at a time."""

from __future__ import annotations

import random

import pytest

from redline.calls.tokens import Prior, Weights

PRIORS = (Prior(0.0, 20.0, 1000.0), Prior(1.0, 0.5, 10.0), Prior(1.0, 0.5, 10.0))


def test_the_first_guess_is_the_priors() -> None:
    assert Weights(PRIORS).value([1.0, 10.0, 5.0]) == pytest.approx(15.0)


def test_the_true_weights_are_found() -> None:
    """30 + 2.5 x + 0.2 y, read with an error of up to 10 %; y often does not occur at all."""
    weights, rng = Weights(PRIORS), random.Random(1)
    for _ in range(300):
        x, y = rng.uniform(10, 300), rng.choice([0, rng.uniform(10, 300)])
        weights.learn([1.0, x, y], (30 + 2.5 * x + 0.2 * y) * rng.uniform(0.9, 1.1))
    for x, y in ((50, 0), (200, 0), (50, 200), (200, 200)):
        assert weights.value([1.0, x, y]) == pytest.approx(30 + 2.5 * x + 0.2 * y, rel=0.04)


def test_what_is_known_of_a_sum_stays_known_when_a_part_of_it_is_learned() -> None:
    weights = Weights(PRIORS)
    for _ in range(20):
        weights.learn([1.0, 100, 0], 300)
    # The constant alone: the other weight is tied to it, though it plays no part in these.
    for _ in range(3):
        weights.learn([1.0, 0, 0], 100)
    assert weights.value([1.0, 100, 0]) == pytest.approx(300, rel=0.05)


def test_nonsense_leaves_it_sane() -> None:
    weights, rng = Weights(PRIORS), random.Random(2)
    for _ in range(3000):
        amounts = [1.0, rng.choice([0, 1e-3, 40, 1e6]), rng.choice([0, 7, 1e4])]
        weights.learn(amounts, rng.choice([-5, 0, 1, 300, 1e9]))
        for index, prior in enumerate(PRIORS):
            alone = [float(index == other) for other in range(3)]
            assert 0 <= weights.value(alone) <= prior.most
    # No gain has run away: the truth is found again.
    for _ in range(600):
        x, y = rng.uniform(10, 300), rng.uniform(10, 300)
        weights.learn([1.0, x, y], 30 + 2.5 * x + 0.2 * y)
    for x, y in ((50, 100), (200, 20)):
        assert weights.value([1.0, x, y]) == pytest.approx(30 + 2.5 * x + 0.2 * y, rel=0.04)


def test_one_outlier_moves_it_little() -> None:
    weights = Weights(PRIORS)
    for length in range(10, 200):
        weights.learn([1.0, length, 0], 2.0 * length)
    before = weights.value([1.0, 100, 0])
    weights.learn([1.0, 100, 0], 100_000)
    assert weights.value([1.0, 100, 0]) == pytest.approx(before, rel=0.05)


def test_a_change_is_followed() -> None:
    weights = Weights(PRIORS)
    for factor in (1.0, 3.0):
        for length in range(10, 200):
            weights.learn([1.0, length, 0], factor * length)
    assert weights.value([1.0, 100, 0]) == pytest.approx(300, rel=0.02)
    assert weights.value([1.0, 30, 0]) == pytest.approx(90, rel=0.05)


def test_it_knows_when_there_is_little_more_to_learn() -> None:
    weights, rng = Weights(PRIORS), random.Random(3)

    def read(times: int, factor: float) -> None:
        for _ in range(times):
            length = rng.uniform(10, 200)
            weights.learn([1.0, length, 0], factor * length)

    read(255, 1.0)
    assert not weights.is_settled
    read(1, 1.0)
    assert weights.is_settled
    # A surprise may be the first of many.
    read(1, 3.0)
    assert not weights.is_settled
    read(1, 1.0)
    assert weights.is_settled
    # A change is learned like the beginning.
    read(200, 3.0)
    assert not weights.is_settled
    read(100, 3.0)
    assert weights.is_settled
