"""Learns linear weights one observation at a time: a Kalman filter around a first guess.

This is recursive least squares with three changes. The standard deviation of each weight stays
between a hundredth and three times its initial value, so that old evidence fades but weights that
are not observed do not drift. An observation counts by its relative error, so that long prompts do
not outweigh short ones. An error of more than 3 standard deviations counts as 3 (Huber's rule), so
that one false reading cannot distort the weights; six of them in a row on the same side mean a
change (another tokenizer, a prompt that the server adds), after which all weights are uncertain
again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import mul

import msgspec

# The share of its first deviation by which a weight may drift from one reply to the next. On real
# text, 0.01 costs 0.1 % of accuracy compared to 0.0005, and 0.03 costs 0.5 %.
_DRIFT = 0.01
_OUTLIER_DEVIATIONS = 3.0
# This number of outliers in a row on the same side means that something has changed.
_BELIEVED_AFTER = 6
# After a change the first guess counts for less: deviations are the first ones times this factor.
_CHANGED = 3.0
# The relative deviation of single readings: learned, between 1 and 30 %.
_FIRST_NOISE, _LEAST_NOISE, _MOST_NOISE = 0.1, 0.01, 0.3
_NOISE_RATE = 0.02
# After this number of readings, weights no longer improve. Until then each reading matters.
_ENOUGH = 256
# Errors are relative to at least this number of tokens: below it, one more token says little.
_SMALLEST_SCALE = 10.0


class Prior(msgspec.Struct, frozen=True):
    """A weight's first value, its standard deviation, and its largest value; its smallest is 0."""

    first: float
    deviation: float
    most: float


class Weights:
    """The weights w in `value = sum(w[i] * amount[i])`, for amounts of 0 or more."""

    def __init__(self, priors: Sequence[Prior]) -> None:
        self._priors = priors
        self._values = [prior.first for prior in priors]
        self._drift = [(prior.deviation * _DRIFT) ** 2 for prior in priors]
        self._most_variance = [(prior.deviation * _CHANGED) ** 2 for prior in priors]
        self._noise = _FIRST_NOISE**2
        self._streak = 0  # the number of outliers in a row: positive above, negative below
        self._open(1.0)

    def _open(self, factor: float) -> None:
        """Sets the deviation of each weight to its first deviation times `factor`."""
        self._readings = 0
        size = range(len(self._priors))
        self._covariance = [[0.0 for _ in size] for _ in size]
        for index, prior in enumerate(self._priors):
            self._covariance[index][index] = (prior.deviation * factor) ** 2

    @property
    def is_settled(self) -> bool:
        """Whether 256 readings have followed the last change, and the latest is no outlier."""
        return self._readings >= _ENOUGH and not self._streak

    @property
    def values(self) -> tuple[float, ...]:
        """The weights."""
        return tuple(self._values)

    def value(self, amounts: Sequence[float]) -> float:
        """Returns the estimate for these amounts, 0 or more."""
        total: float = sum(map(mul, self._values, amounts))
        return total

    def learn(self, amounts: Sequence[float], value: float) -> None:
        """Corrects the weights with the true value for these amounts; any finite value is safe."""
        self._readings += 1
        expected = self.value(amounts)
        scale = max(_SMALLEST_SCALE, expected)
        units = [amount / scale for amount in amounts]
        error = (value - expected) / scale
        spread, variance = self._spread(units)
        limit = _OUTLIER_DEVIATIONS * math.sqrt(variance)
        if abs(error) <= limit:
            self._streak = 0
        else:
            side = 1 if error > 0 else -1
            self._streak = self._streak + side if self._streak * side > 0 else side
            if abs(self._streak) < _BELIEVED_AFTER:
                error = side * limit
            else:
                self._streak = 0
                self._noise = _FIRST_NOISE**2
                self._open(_CHANGED)
                spread, variance = self._spread(units)
        concerned = [(index, each) for index, each in enumerate(spread) if each]
        for index, each in concerned:
            gain, row = each / variance, self._covariance[index]
            most = self._priors[index].most
            self._values[index] = max(0.0, min(most, self._values[index] + gain * error))
            for column, other in concerned:
                row[column] -= gain * other
        for index, row in enumerate(self._covariance):
            row[index] = min(self._most_variance[index], max(0.0, row[index]) + self._drift[index])
        # The noise rises only with the clipped error: outliers must not raise their own threshold.
        noise = self._noise + _NOISE_RATE * (min(error * error, 4 * self._noise) - self._noise)
        self._noise = min(_MOST_NOISE**2, max(_LEAST_NOISE**2, noise))

    def _spread(self, units: list[float]) -> tuple[list[float], float]:
        """Returns each weight's covariance with the error at `units`, and the error's variance."""
        spread: list[float] = [sum(map(mul, row, units)) for row in self._covariance]
        variance: float = sum(map(mul, spread, units))
        return spread, max(0.0, variance) + self._noise
