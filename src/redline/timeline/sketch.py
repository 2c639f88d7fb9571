"""Summarizes many durations in a few numbers: sketches that give quantiles and can be merged.

A bucket holds the values between two powers of GAMMA, so any quantile above LEAST_S has a relative
error of at most ERROR, even after merges: Masson, Rim and Lee, DDSketch: A Fast and Fully-Mergeable
Quantile Sketch with Relative-Error Guarantees, VLDB 2019. Their implementation keeps the counts in
an object of its own; here they are a tuple, which is written to a JSON line unchanged.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate, repeat
from operator import mul

import msgspec

ERROR = 0.01
GAMMA = (1 + ERROR) / (1 - ERROR)
# Durations shorter than this count as this long.
LEAST_S = 1e-3
_SCALE = 1 / math.log(GAMMA)


class Sketch(msgspec.Struct, frozen=True, array_like=True):
    """A sketch of durations in seconds, each 0 or more and finite.

    pairs: for each non-empty bucket, in ascending order, two numbers: the difference between its
    index and the previous bucket's index, then its count. The first index is relative to 0.
    """

    pairs: tuple[int, ...] = ()

    @classmethod
    def of(cls, values_s: Iterable[float], times: int = 1) -> Sketch:
        """Returns the sketch of these durations, each of which counts `times` times."""
        # Only functions written in C, because there are as many durations as calls.
        logs = map(math.log, map(max, values_s, repeat(LEAST_S)))
        counts = Counter(map(math.ceil, map(mul, logs, repeat(_SCALE))))
        return _packed({index: count * times for index, count in counts.items()})

    @property
    def count(self) -> int:
        """The number of durations."""
        return sum(self.pairs[1::2])

    def values_s(self) -> Iterator[tuple[float, int]]:
        """Yields each bucket's duration, in ascending order, and the count that it represents."""
        for index, count in zip(accumulate(self.pairs[::2]), self.pairs[1::2], strict=True):
            yield 2 * GAMMA**index / (GAMMA + 1), count

    def quantile_s(self, q: float) -> float | None:
        """Returns the q-quantile of the durations, q from 0 to 1; None for an empty sketch.

        The quantile is interpolated between neighbouring durations, as in numpy (Hyndman and Fan,
        Sample Quantiles in Statistical Packages, The American Statistician 1996, definition 7).
        """
        count = self.count
        if not count:
            return None
        rank = q * (count - 1)
        place = math.floor(rank)
        below_s = self.ranked_s(place)
        if rank == place:
            return below_s
        return below_s + (rank - place) * (self.ranked_s(place + 1) - below_s)

    def ranked_s(self, place: int) -> float:
        """Returns the duration with this rank in ascending order; place: 0 to `count` - 1."""
        indices = accumulate(self.pairs[::2])
        below = accumulate(self.pairs[1::2])
        index = next(index for index, least in zip(indices, below, strict=True) if least > place)
        # The middle of the bucket: the relative distance to both of its ends is the same.
        return float(2 * GAMMA**index / (GAMMA + 1))


EMPTY = Sketch()


def merged_sketches(sketches: Iterable[Sketch]) -> Sketch:
    """Returns the sketch of all durations in these sketches."""
    counts: Counter[int] = Counter()
    filled = [sketch for sketch in sketches if sketch.pairs]
    if len(filled) == 1:
        return filled[0]
    for sketch in filled:
        counts.update(_counts(sketch))
    return _packed(counts)


def without(sketch: Sketch, part: Sketch) -> Sketch:
    """Returns the sketch without the durations of `part`, all of which it must contain."""
    if not part.pairs:
        return sketch
    # A difference of Counters contains only the positive counts.
    return _packed(_counts(sketch) - _counts(part))


def _counts(sketch: Sketch) -> Counter[int]:
    return Counter(dict(zip(accumulate(sketch.pairs[::2]), sketch.pairs[1::2], strict=True)))


def _packed(counts: Mapping[int, int]) -> Sketch:
    if not counts:
        return EMPTY
    pairs: list[int] = []
    last = 0
    for index, count in sorted(counts.items()):
        pairs += (index - last, count)
        last = index
    return Sketch(tuple(pairs))
