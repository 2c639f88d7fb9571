"""Computes quantiles of durations: exactly up to 100,000 of them, beyond that with a sketch."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable

import msgspec

from redline.timeline.sketch import EMPTY, ERROR, Sketch, merged_sketches

MOST_EXACT = 100_000
# The number of durations that are added to the sketch at once.
_GROUP = 10_000
# A sketch counts anything shorter than a millisecond as one millisecond, but two pieces of an
# answer may arrive closer together. So the sketch gets milliseconds in place of seconds: its
# minimum is then a microsecond.
_FACTOR = 1000.0


class Quantiles(msgspec.Struct, frozen=True, kw_only=True):
    """Quantiles of `count` durations, in seconds.

    error: the largest relative error that a quantile may have; 0 if the quantiles are exact.
    """

    count: int
    mean_s: float
    p50_s: float
    p95_s: float
    p99_s: float
    max_s: float
    error: float = 0.0


class Spread:
    """A distribution of durations in seconds, each finite and 0 or more."""

    def __init__(self) -> None:
        # The durations that are not in the sketch yet (all, until there is one), at most `_most`.
        self._values_s = array("d")
        self._most = MOST_EXACT
        # The number, sum and maximum of the durations in the sketch.
        self._sketch: Sketch | None = None
        self._count = 0
        self._sum_s = self._max_s = 0.0

    @property
    def count(self) -> int:
        return self._count + len(self._values_s)

    def add(self, value_s: float) -> None:
        """Adds one duration."""
        self._values_s.append(value_s)
        if len(self._values_s) > self._most:
            self._pack()

    def extend(self, values_s: Iterable[float]) -> None:
        """Adds several durations."""
        self._values_s.extend(values_s)
        if len(self._values_s) > self._most:
            self._pack()

    def _pack(self) -> None:
        """Moves all durations into the sketch."""
        self._count, self._sum_s, self._max_s = self.count, self._whole_sum_s(), self._whole_max_s()
        self._sketch = self._whole_sketch()
        self._values_s, self._most = array("d"), _GROUP

    def _whole_sum_s(self) -> float:
        return self._sum_s + math.fsum(self._values_s)

    def _whole_max_s(self) -> float:
        return max(self._max_s, max(self._values_s, default=0.0))

    def _whole_sketch(self) -> Sketch:
        rest = Sketch.of(_FACTOR * value_s for value_s in self._values_s)
        return merged_sketches((self._sketch or EMPTY, rest))

    def quantile(self, q: float) -> float:
        """Returns the q-quantile in seconds, q from 0 to 1; 0 without durations.

        The quantile is interpolated between two durations, as in numpy (Hyndman and Fan, Sample
        Quantiles in Statistical Packages, The American Statistician 1996, definition 7).
        """
        if not self.count:
            return 0.0
        if self._sketch is not None:
            found = self._whole_sketch().quantile_s(q) or 0.0
            return min(found / _FACTOR, self._whole_max_s())
        ordered = sorted(self._values_s)
        rank = q * (self.count - 1)
        below = math.floor(rank)
        above = min(below + 1, self.count - 1)
        return ordered[below] + (rank - below) * (ordered[above] - ordered[below])

    def quantiles(self) -> Quantiles | None:
        """Returns the quantiles; None without durations."""
        if not self.count:
            return None
        return Quantiles(
            count=self.count,
            mean_s=self._whole_sum_s() / self.count,
            p50_s=self.quantile(0.5),
            p95_s=self.quantile(0.95),
            p99_s=self.quantile(0.99),
            max_s=self._whole_max_s(),
            error=0.0 if self._sketch is None else ERROR,
        )
