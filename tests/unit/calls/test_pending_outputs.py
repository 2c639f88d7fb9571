"""What is learned of the outputs in flight: both biases, what never ends, and what changes."""

from __future__ import annotations

import heapq
import math
import random
from typing import Any

import pytest

from redline.calls.tokens import PendingOutputs

EVERY_S = 0.05
ALWAYS_TEN = pytest.approx((10.0, 0.0, 0.0), abs=1e-6)


def lognormal(chance: random.Random, mean: float = 200.0, shape: float = 0.6) -> int:
    return max(1, round(chance.lognormvariate(math.log(mean) - shape**2 / 2, shape)))


def in_step(moments: Any, outputs: list[int], took_s: float = 1.0) -> Any:
    """Each call ends before the next one begins."""
    for tokens in outputs:
        moments.end(moments.begin(), tokens, took_s)
    return moments


class Flight:
    """Calls sent at even times whose answers take s_per_token each: who flies, what is learned."""

    def __init__(self, moments: Any, seed: int, s_per_token: float = 0.00625) -> None:
        self.moments = moments
        self.chance = random.Random(seed)
        self.s_per_token = s_per_token
        self.now_s = 0.0
        self.flying: list[tuple[float, int, int, float]] = []

    def send(self) -> None:
        tokens = lognormal(self.chance)
        took_s = 0.5 + self.s_per_token * tokens
        heapq.heappush(self.flying, (self.now_s + took_s, self.moments.begin(), tokens, took_s))
        self.now_s += EVERY_S
        while self.flying and self.flying[0][0] <= self.now_s:
            _, number, tokens, took_s = heapq.heappop(self.flying)
            self.moments.end(number, tokens, took_s)

    @property
    def outputs(self) -> list[int]:
        return [tokens for _, _, tokens, _ in self.flying]


# The first moments of what is known.


def test_too_few_outputs_say_nothing() -> None:
    moments = in_step(PendingOutputs(), [10] * 19)
    assert not moments.is_known
    assert in_step(moments, [10]).is_known
    assert moments.moments == ALWAYS_TEN


def test_mean_variance_and_skewness_are_those_of_the_outputs() -> None:
    chance = random.Random(1)
    outputs = [lognormal(chance) for _ in range(300)]
    mean, variance, third = in_step(PendingOutputs(), outputs).moments
    kept = [0.99667 ** (299 - index) for index in range(300)]
    true = sum(map(float.__mul__, kept, map(float, outputs))) / sum(kept)
    parts = [tokens - true for tokens in outputs]
    true_variance = sum(k * part**2 for k, part in zip(kept, parts, strict=True)) / sum(kept)
    true_third = sum(k * part**3 for k, part in zip(kept, parts, strict=True)) / sum(kept)
    assert mean == pytest.approx(true + 2 * math.sqrt(true_variance / 300), rel=1e-3)
    assert variance == pytest.approx(true_variance, rel=1e-3)
    assert third == pytest.approx(true_third, rel=1e-3)


def test_a_single_outlier_does_not_make_the_skewness() -> None:
    _, variance, third = in_step(PendingOutputs(), [10] * 299 + [100_000]).moments
    assert third <= 6.0 * variance**1.5 * 1.001


@pytest.mark.parametrize("outputs", [[7] * 50, [0] * 50, [1000] * 25 + [1] * 25, [0, 1] * 25])
def test_no_moment_is_below_nothing(outputs: list[int]) -> None:
    mean, variance, third = in_step(PendingOutputs(), outputs, 0.0).moments
    assert mean >= 0
    assert variance >= 0
    assert third >= 0


def test_of_many_outputs_each_eighth_is_news() -> None:
    """What is asked for with each call is found anew only when it can have changed much."""
    moments = in_step(PendingOutputs(), [10, 30] * 150)
    before = moments.moments
    assert in_step(moments, [1000] * 7).moments is before
    assert in_step(moments, [1000]).moments[0] > 1.5 * before[0]


# The two biases.


def test_the_first_answers_are_not_taken_for_all() -> None:
    """As soon as anything is known, it is not from the short ones alone."""
    means = []
    for seed in range(40):
        flight = Flight(PendingOutputs(), seed)
        while not flight.moments.is_known:
            flight.send()
        means.append(flight.moments.moments[0])
    # The outputs' own mean is 200; weighted by the time in flight it is 262. The answers of the
    # first seconds have 150. Two standard errors are added.
    assert sum(means) / len(means) > 250


def test_outputs_count_by_their_time_in_flight() -> None:
    """The mean is that of the calls in flight at any time, not that of all calls."""
    flight = Flight(PendingOutputs(), 5)
    flying: list[int] = []
    means = []
    for number in range(6000):
        flight.send()
        if number > 1000 and number % 20 == 0:
            flying += flight.outputs
            means.append(flight.moments.moments[0])
    mean = sum(flying) / len(flying)
    assert mean > 250
    # Two standard errors are added.
    assert mean < sum(means) / len(means) < 1.08 * mean


# What never ends, and what changes.


def test_a_call_that_never_ends_holds_up_no_more_than_4096() -> None:
    """One call is never over; the others are learned from all the same."""
    moments = PendingOutputs()
    moments.begin()
    in_step(moments, [10] * 4096)
    assert not moments.is_known
    in_step(moments, [10] * 21)
    assert moments.is_known
    # Late, it changes nothing but the largest.
    moments.end(0, 900, 1.0)
    assert moments.moments == ALWAYS_TEN
    assert moments.largest == 900


def test_a_call_without_usage_is_skipped() -> None:
    moments = PendingOutputs()
    first, second = moments.begin(), moments.begin()
    moments.end(second, 10, 1.0)
    moments.end(first, None, 600.0)
    in_step(moments, [10] * 19)
    assert moments.is_known
    assert moments.moments == ALWAYS_TEN


def test_other_outputs_are_followed() -> None:
    chance = random.Random(9)
    moments = in_step(PendingOutputs(), [lognormal(chance, 100) for _ in range(2000)])
    in_step(moments, [lognormal(chance, 400) for _ in range(1000)])
    assert moments.moments[0] == pytest.approx(400, rel=0.15)
