"""Linear weights, learned one observation at a time: a Kalman filter around a first guess.

Recursive least squares with three changes. The deviation of each weight stays between a hundredth
of its first one and three times it, so that old evidence fades and nothing drifts if nothing is
observed. An observation counts by its relative error, so that long prompts do not
outvote short ones. What lies more than 3 standard deviations off counts as 3 (Huber's rule), so
that one false reading cannot carry the weights away; six of them in a row on one side are a change
(another tokenizer, a prompt that the server adds), and then all is uncertain again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import mul

import msgspec

# The share of a weight's first deviation by which it may drift from one reply to the next. On real
# text, 0.01 costs 0.1 % of accuracy compared to 0.0005, and 0.03 costs 0.5 %.
_DRIFT = 0.01
_OUTLIER_DEVIATIONS = 3.0
# This many outliers in a row on the same side are no outliers: something has changed.
_BELIEVED_AFTER = 6
# After a change the first guess counts for less: deviations are this many times the first ones.
_CHANGED = 3.0
# Relative deviation of single readings: learned, within 1 and 30 %.
_FIRST_NOISE, _LEAST_NOISE, _MOST_NOISE = 0.1, 0.01, 0.3
_NOISE_RATE = 0.02
# This many readings make weights as good as they become. Until then each one matters.
_ENOUGH = 256
# Errors are relative to at least this many tokens: below it, one token more or less says little.
_SMALLEST_SCALE = 10.0


class Prior(msgspec.Struct, frozen=True):
    """A weight before anything is learned, its standard deviation, and the most it may become.

    The least it may become is 0.
    """

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
        self._streak = 0  # outliers in a row: above 0 too high, below 0 too low
        self._open(1.0)

    def _open(self, factor: float) -> None:
        """Sets every weight's deviation to `factor` times that before anything was learned."""
        self._readings = 0
        size = range(len(self._priors))
        self._covariance = [[0.0 for _ in size] for _ in size]
        for index, prior in enumerate(self._priors):
            self._covariance[index][index] = (prior.deviation * factor) ** 2

    @property
    def is_settled(self) -> bool:
        """Whether 256 readings came since the last change, and the latest was not an outlier."""
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
        """Corrects the weights by the true value for these amounts; any finite value is safe."""
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
        """Returns the weights' covariance with the error at these units, and its variance."""
        spread: list[float] = [sum(map(mul, row, units)) for row in self._covariance]
        variance: float = sum(map(mul, spread, units))
        return spread, max(0.0, variance) + self._noise
