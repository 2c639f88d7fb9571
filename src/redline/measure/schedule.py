"""When calls are due: seconds since the load began, as plain functions of rate, seed or record."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from random import Random


def constant(rate_per_s: float) -> Iterator[float]:
    """Calls at equal distances, without end; the first one at 0. rate_per_s: above 0."""
    # By division and not by adding up, so that the rate is kept for any number of calls.
    return (number / rate_per_s for number in count())


def poisson(rate_per_s: float, seed: int) -> Iterator[float]:
    """Calls of a Poisson process, without end: the time to the next one is exponential.

    rate_per_s: above 0, on average. The same seed gives the same times.
    """
    draw = Random(seed).expovariate
    at_s = 0.0
    while True:
        at_s += draw(rate_per_s)
        yield at_s


def recorded(arrivals_s: Sequence[float]) -> list[float]:
    """The recorded times, in order, since the first of them."""
    ordered = sorted(arrivals_s)
    return [at_s - ordered[0] for at_s in ordered]
