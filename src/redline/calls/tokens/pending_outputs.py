"""Estimates the mean, variance and skewness of the outputs of calls in flight.

If long answers take longer, completed answers give a biased picture, for two reasons:
  the first answers to arrive are short           a call counts only once all calls that were sent
                                                  before it are over
  calls in flight are longer than the average     each output is weighted by its time in flight,
                                                  which gives the mean of the calls in flight
"""

from __future__ import annotations

import math

# Fewer outputs than this say too little about their spread.
_LEAST = 20
# The weight of each output falls by 1/300 with every later one, to follow changes.
_MEMORY = 300
_KEPT = 1 - 1 / _MEMORY
# Once 300 outputs are known, the moments are computed again only after this many more.
_FIND_EVERY = 8
# A call that never ends holds up at most this many others.
_MOST_WAITING = 4096
# A lognormal output of shape 1 has a skewness of 6; a larger one comes from single outliers.
_MOST_SKEWNESS = 6.0


class PendingOutputs:
    """The statistics of one model's outputs. Each call begins when it is sent, and ends once.

    moments: mean, variance and third central moment of an output; zeros until `is_known`. The mean
    is 2 standard errors above the outputs' own: in a sum of many estimates, single errors cancel
    out, but an error of the mean does not. The tuple is the same object until a moment changes.
    """

    def __init__(self) -> None:
        self._begun = 0
        self._next = 0  # the number of the first call that is not over
        self._over: dict[int, tuple[int, float] | None] = {}
        self._counted = 0
        self._sums = (0.0, 0.0, 0.0, 0.0)  # of weight x output^0..3
        self.moments = (0.0, 0.0, 0.0)
        self._find_at = _LEAST
        self.largest = 0

    @property
    def is_known(self) -> bool:
        """Whether at least 20 outputs have been counted."""
        return self._counted >= _LEAST

    def begin(self) -> int:
        """Records that a call is sent; returns its number, for `end`."""
        self._begun += 1
        return self._begun - 1

    def end(self, number: int, tokens: int | None, took_s: float) -> None:
        """Records the end of a call after `took_s` s. tokens: its output, None if not reported."""
        if tokens is not None and tokens > self.largest:
            self.largest = tokens
        ahead = self._next
        if number < ahead:
            return
        if number == ahead and not self._over:
            # The usual case if calls end in the order in which they were sent.
            self._next = ahead + 1
            if tokens is not None:
                self._count(tokens, took_s)
            return
        self._over[number] = None if tokens is None else (tokens, took_s)
        if len(self._over) > _MOST_WAITING:
            self._next = min(self._over)
        while self._next in self._over:
            ended = self._over.pop(self._next)
            self._next += 1
            if ended is not None:
                self._count(*ended)

    def _found(self, counted: int) -> tuple[float, float, float]:
        weight, first, second, third = self._sums
        mean = first / weight
        variance = second / weight - mean * mean
        if variance <= 0:
            return mean, 0.0, 0.0
        central = third / weight - 3 * mean * second / weight + 2 * mean**3
        skewness = max(0.0, min(central, _MOST_SKEWNESS * variance**1.5))
        return mean + 2 * math.sqrt(variance / counted), variance, skewness

    def _count(self, tokens: int, took_s: float) -> None:
        weight = took_s if took_s > 1e-3 else 1e-3
        self._counted = counted = self._counted + 1
        zeroth, first, second, third = self._sums
        square, kept = tokens * tokens, _KEPT
        self._sums = (
            zeroth * kept + weight,
            first * kept + weight * tokens,
            second * kept + weight * square,
            third * kept + weight * (square * tokens),
        )
        if counted >= self._find_at:
            self._find_at = counted + (_FIND_EVERY if counted >= _MEMORY else 1)
            self.moments = self._found(min(counted, _MEMORY))
