"""Weights learned one observation at a time."""

from __future__ import annotations

import random
from typing import Any

import pytest

from mutants import assert_caught, mutant
from redline.calls import weights as weights_module
from redline.calls.weights import Prior, Weights

PRIORS = (Prior(0.0, 20.0, 1000.0), Prior(1.0, 0.5, 10.0), Prior(1.0, 0.5, 10.0))


def test_the_first_guess_is_the_priors() -> None:
    assert Weights(PRIORS).value([1.0, 10.0, 5.0]) == pytest.approx(15.0)


def finds_the_weights(module: Any) -> None:
    """30 + 2.5 x + 0.2 y, read with an error of up to 10 %; y often does not occur at all."""
    weights, rng = module.Weights(PRIORS), random.Random(1)
    for _ in range(300):
        x, y = rng.uniform(10, 300), rng.choice([0, rng.uniform(10, 300)])
        weights.learn([1.0, x, y], (30 + 2.5 * x + 0.2 * y) * rng.uniform(0.9, 1.1))
    for x, y in ((50, 0), (200, 0), (50, 200), (200, 200)):
        assert weights.value([1.0, x, y]) == pytest.approx(30 + 2.5 * x + 0.2 * y, rel=0.04)


def test_the_true_weights_are_found() -> None:
    line = "gain = spread[index] / variance"
    assert_caught(finds_the_weights, weights_module, mutant(weights_module, line, "gain = 0.001"))
    line = "row[:] = [old - gain * part for old, part in zip(row, spread, strict=True)]"
    assert_caught(finds_the_weights, weights_module, mutant(weights_module, line, "pass"))


def stays_sane(module: Any) -> None:
    """The covariance keeps what a covariance has, so that no gain can run away."""
    weights, rng = module.Weights(PRIORS), random.Random(2)
    for _ in range(3000):
        amounts = [1.0, rng.choice([0, 1e-3, 40, 1e6]), rng.choice([0, 7, 1e4])]
        weights.learn(amounts, rng.choice([-5, 0, 1, 300, 1e9]))
        for index, prior in enumerate(PRIORS):
            most = weights._most_variance[index]
            assert 0 <= weights._covariance[index][index] <= most
            assert 0 <= weights._values[index] <= prior.most
            for other in range(3):
                product = weights._covariance[index][index] * weights._covariance[other][other]
                assert weights._covariance[index][other] ** 2 <= product * 1.001 + 1e-9


def test_nonsense_leaves_it_sane() -> None:
    # A weight that plays no part in a reading is still tied to those that do.
    line = "spread[index] = sum(map(mul, self._covariance[index], units))"
    partial = mutant(weights_module, line, line.replace("= sum", "= units[index] and sum"))
    assert_caught(stays_sane, weights_module, partial)


def moves_little(module: Any) -> None:
    weights = module.Weights(PRIORS)
    for length in range(10, 200):
        weights.learn([1.0, length, 0], 2.0 * length)
    before = weights.value([1.0, 100, 0])
    weights.learn([1.0, 100, 0], 100_000)
    assert weights.value([1.0, 100, 0]) == pytest.approx(before, rel=0.05)


def test_one_outlier_moves_it_little() -> None:
    believing = mutant(weights_module, "if abs(error) <= limit:", "if True:")
    assert_caught(moves_little, weights_module, believing)


def follows(module: Any) -> None:
    weights = module.Weights(PRIORS)
    for factor in (1.0, 3.0):
        for length in range(10, 200):
            weights.learn([1.0, length, 0], factor * length)
    assert weights.value([1.0, 100, 0]) == pytest.approx(300, rel=0.02)
    assert weights.value([1.0, 30, 0]) == pytest.approx(90, rel=0.05)


def test_a_change_is_followed() -> None:
    deaf = mutant(weights_module, "if abs(self._streak) < _BELIEVED_AFTER:", "if True:")
    assert_caught(follows, weights_module, deaf)


def is_settled_when_nothing_is_new(module: Any) -> None:
    weights, rng = module.Weights(PRIORS), random.Random(3)

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


def test_it_knows_when_there_is_little_more_to_learn() -> None:
    line = "return self._readings >= _ENOUGH and not self._streak"
    for other in ("return self._readings >= _ENOUGH", "return not self._streak"):
        changed = mutant(weights_module, line, other)
        assert_caught(is_settled_when_nothing_is_new, weights_module, changed)
