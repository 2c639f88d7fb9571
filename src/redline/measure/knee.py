"""Finds the concurrency that is enough: the knee of throughput over calls in flight.

The knee is the smallest level whose throughput is within 5 % of the best throughput. Beyond it,
throughput rises slowly and latency fast (Chiu and Jain, Analysis of the Increase and Decrease
Algorithms for Congestion Avoidance in Computer Networks, 1989, figure 1). Differences below 5 % are
an indifference zone (Bechhofer, A Single-Sample Multiple Decision Procedure, 1954).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from redline.measure.figures import Figures

ENOUGH = 0.95
# A sweep ends at a level at which more than this share of the calls fails.
_MOST_FAILED = 0.5


class Knee(msgspec.Struct, frozen=True, kw_only=True):
    """The knee: the smallest concurrency that is enough.

    concurrency: the concurrency at the knee. best: the concurrency with the highest throughput.
    share: the knee's throughput divided by the highest. unsure: smaller concurrencies that may also
    be enough, given their confidence intervals. is_open: whether the knee is the highest of several
    levels, beyond which throughput may rise further.
    """

    concurrency: int
    best: int
    share: float
    unsure: tuple[int, ...] = ()
    is_open: bool = False


def levels(most: int) -> Iterator[int]:
    """Yields 1, 2, 4, ... below `most`, then `most` itself."""
    level = 1
    while level < most:
        yield level
        level *= 2
    yield most


def rises_no_more(measured: Sequence[Figures]) -> bool:
    """Returns whether throughput has stopped rising, or too many calls of the last level failed.

    Throughput has stopped rising if an earlier level has more than 95 % of the throughput of each
    of the last two levels; a single such level may be noise.
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
    """Returns the knee of these levels, which are in ascending order; None without throughput."""
    best = max(measured, key=lambda one: one.requests_per_s, default=None)
    if best is None or best.requests_per_s <= 0:
        return None
    enough = ENOUGH * best.requests_per_s
    at = next(at for at, one in enumerate(measured) if one.requests_per_s >= enough)
    found = measured[at]
    # Compare the upper bounds of the levels below the knee with the lower bound of the best level.
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
