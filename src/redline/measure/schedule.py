"""Schedules: the times at which requests are due, in seconds since the load began."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from random import Random


def constant(rate_per_s: float) -> Iterator[float]:
    """Returns endless times at equal intervals from 0 on. rate_per_s: above 0."""
    # By division, since sums would drift from the rate as the number of calls grows.
    return (number / rate_per_s for number in count())


def poisson(rate_per_s: float, seed: int) -> Iterator[float]:
    """Yields the endless times of a Poisson process, whose intervals are exponential.

    rate_per_s: the mean rate, above 0. The same seed gives the same times.
    """
    draw = Random(seed).expovariate
    at_s = 0.0
    while True:
        at_s += draw(rate_per_s)
        yield at_s


def recorded(arrivals_s: Sequence[float]) -> list[float]:
    """Returns the recorded times, one or more, in order and relative to the first."""
    ordered = sorted(arrivals_s)
    return [at_s - ordered[0] for at_s in ordered]
