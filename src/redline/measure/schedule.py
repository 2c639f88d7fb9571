"""Makes schedules: the times at which requests are due, in seconds since the load began."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from random import Random


def constant(rate_per_s: float) -> Iterator[float]:
    """Returns an endless series of times at equal intervals from 0. rate_per_s: above 0."""
    # Divides rather than adds intervals: rounding errors would add up and change the rate.
    return (number / rate_per_s for number in count())


def poisson(rate_per_s: float, seed: int) -> Iterator[float]:
    """Yields the times of an endless Poisson process, whose intervals are exponential.

    rate_per_s: the mean rate, above 0. The same seed gives the same times.
    """
    draw = Random(seed).expovariate
    at_s = 0.0
    while True:
        at_s += draw(rate_per_s)
        yield at_s


def recorded(arrivals_s: Sequence[float]) -> list[float]:
    """Returns the times in ascending order, relative to the first. arrivals_s: one or more."""
    ordered = sorted(arrivals_s)
    return [at_s - ordered[0] for at_s in ordered]
