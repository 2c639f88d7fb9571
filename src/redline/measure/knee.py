"""Which concurrency is enough: the knee of throughput over calls in flight.

The knee is the smallest level whose throughput is within 5 % of the best one. Beyond it throughput
rises slowly, and latency fast (Chiu and Jain, Analysis of the Increase and Decrease Algorithms for
Congestion Avoidance in Computer Networks, 1989, figure 1). A difference below 5 % is one that does
not matter: an indifference zone (Bechhofer, A Single-Sample Multiple Decision Procedure, 1954).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from redline.measure.figures import Figures

ENOUGH = 0.95
# A level is of no use if it fails as often.
_MOST_FAILED = 0.5


class Knee(msgspec.Struct, frozen=True, kw_only=True):
    """The smallest concurrency that is enough.

    concurrency: of the knee; best: with the highest throughput. share: of that, what the knee
    has. unsure: smaller levels that may be enough as well, by their intervals.

    is_open: the throughput still rose at the highest level.
    """

    concurrency: int
    best: int
    share: float
    unsure: tuple[int, ...] = ()
    is_open: bool = False


def levels(most: int) -> Iterator[int]:
    """1, 2, 4, ... and `most` itself."""
    level = 1
    while level < most:
        yield level
        level *= 2
    yield most


def rises_no_more(measured: Sequence[Figures]) -> bool:
    """Whether the last two levels bring less than 5 % more than those before, or the last fails.

    One such level alone may be noise.
    """
    if not measured:
        return False
    last = measured[-1]
    if last.failed > _MOST_FAILED * max(1, last.succeeded + last.failed):
        return True
    if len(measured) < 3:
        return False
    before = max(one.requests_per_s for one in measured[:-2])
    return all(one.requests_per_s * ENOUGH < before for one in measured[-2:])


def knee_of(measured: Sequence[Figures]) -> Knee | None:
    """The knee of levels in ascending order; None if none of them has any throughput."""
    best = max(measured, key=lambda one: one.requests_per_s, default=None)
    if best is None or best.requests_per_s <= 0:
        return None
    enough = ENOUGH * best.requests_per_s
    at = next(at for at, one in enumerate(measured) if one.requests_per_s >= enough)
    found = measured[at]
    # What the best one may have at least, and those before the knee at most.
    least = ENOUGH * (best.requests_per_s - (best.requests.error or 0.0))
    unsure = tuple(
        one.concurrency
        for one in measured[:at]
        if one.requests_per_s + (one.requests.error or 0.0) >= least
    )
    return Knee(
        concurrency=found.concurrency,
        best=best.concurrency,
        share=found.requests_per_s / best.requests_per_s,
        unsure=unsure,
        is_open=found is measured[-1] and len(measured) > 1,
    )
