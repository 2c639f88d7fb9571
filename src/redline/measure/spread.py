"""Quantiles of durations: exact for the first 100,000, from then on from a sketch."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable

import msgspec

from redline.timeline import EMPTY, SKETCH_ERROR, Sketch, merged_sketches

MOST_EXACT = 100_000
# Durations that wait to be taken into the sketch, as many at once.
_GROUP = 10_000
# A sketch takes what is shorter than a millisecond for one. Two pieces of a text may come closer
# together, so it is given milliseconds in place of seconds: its least is then a microsecond.
_FACTOR = 1000.0


class Quantiles(msgspec.Struct, frozen=True, kw_only=True):
    """Quantiles of `count` durations, in seconds.

    error: how far a quantile may be off, in proportion; 0 if it is exact.
    """

    count: int
    mean_s: float
    p50_s: float
    p95_s: float
    p99_s: float
    max_s: float
    error: float = 0.0


class Spread:
    """Durations in seconds, each 0 or more and finite."""

    def __init__(self) -> None:
        self.count = 0
        self._sum_s = 0.0
        self._max_s = 0.0
        # All of them, or those that are not in the sketch yet.
        self._values_s = array("d")
        self._sketch: Sketch | None = None

    def add(self, value_s: float) -> None:
        """Adds one value."""
        self.extend((value_s,))

    def extend(self, values_s: Iterable[float]) -> None:
        """All of these."""
        added = array("d", values_s)
        if not added:
            return
        self.count += len(added)
        self._sum_s += math.fsum(added)
        self._max_s = max(self._max_s, max(added))
        self._values_s.extend(added)
        if len(self._values_s) > (MOST_EXACT if self._sketch is None else _GROUP):
            self._sketch = self._whole_sketch()
            self._values_s = array("d")

    def _whole_sketch(self) -> Sketch:
        rest = Sketch.of(_FACTOR * value_s for value_s in self._values_s)
        return merged_sketches((self._sketch or EMPTY, rest))

    def quantile(self, q: float) -> float:
        """The duration that a share `q` of them, 0 to 1, does not exceed; 0 if there are none.

        Between two values it is interpolated, as numpy does (Hyndman and Fan, Sample Quantiles in
        Statistical Packages, The American Statistician 1996, definition 7).
        """
        if not self.count:
            return 0.0
        if self._sketch is not None:
            found = self._whole_sketch().quantile_s(q) or 0.0
            return min(found / _FACTOR, self._max_s)
        ordered = sorted(self._values_s)
        rank = q * (self.count - 1)
        below = math.floor(rank)
        above = min(below + 1, self.count - 1)
        return ordered[below] + (rank - below) * (ordered[above] - ordered[below])

    def quantiles(self) -> Quantiles | None:
        """Their quantiles; None if there are none."""
        if not self.count:
            return None
        return Quantiles(
            count=self.count,
            mean_s=self._sum_s / self.count,
            p50_s=self.quantile(0.5),
            p95_s=self.quantile(0.95),
            p99_s=self.quantile(0.99),
            max_s=self._max_s,
            error=0.0 if self._sketch is None else SKETCH_ERROR,
        )
