"""Linear weights, learned one observation at a time: a Kalman filter around a first guess.

Recursive least squares with three changes. Each weight keeps at least a little of its first
uncertainty and never more than all of it, so that old evidence fades and nothing drifts where
nothing is observed. An observation counts by its relative error, so that long prompts do not
outvote short ones. What lies more than 3 standard deviations off counts as 3 (Huber's rule), so
that one false reading cannot carry the weights away; six of them in a row on one side are a change
(another tokenizer, a prompt that the server adds), and then all is uncertain again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import mul, sub

import msgspec

# The share of a weight's first deviation by which it may wander from one reply to the next. On real
# text 0.01 costs 0.1 % of accuracy against 0.0005, and 0.03 costs 0.5 %.
_DRIFT = 0.01
_OUTLIER_DEVIATIONS = 3.0
# So many outliers in a row on the same side are no outliers: something has changed.
_BELIEVED_AFTER = 6
# After a change the first guess counts for less: deviations are so many times the first ones.
_CHANGED = 3.0
# Relative deviation of single readings: begins at 10 %, is learned, stays within 1 and 30 %.
_FIRST_NOISE = 0.1
_LEAST_NOISE = 0.01
_MOST_NOISE = 0.3
_NOISE_RATE = 0.02
# So many readings make weights as good as they become. Until then each one matters.
_ENOUGH = 256
# Below so many tokens an error counts as if there were as many: one token more or less is no news.
_SMALLEST_SCALE = 10.0


class Prior(msgspec.Struct, frozen=True):
    """A weight before anything is learned, its standard deviation, and the most it may become.

    The least it may become is 0.
    """

    first: float
    deviation: float
    most: float


class Weights:
    """w in `value = sum(w[i] * amount[i])`, for amounts of 0 or more."""

    def __init__(self, priors: Sequence[Prior]) -> None:
        self._priors = priors
        self._values = [prior.first for prior in priors]
        # Only what has occurred takes part; the usual prompts have half of all classes.
        self._seen: list[int] = []
        self._unseen = [1.0] * len(priors)
        self._noise = _FIRST_NOISE**2
        self._streak = 0  # outliers in a row: above 0 too high, below 0 too low
        self._open(1.0)

    @property
    def is_settled(self) -> bool:
        """Enough has been learned since the last change, and the latest reading was no surprise."""
        return self._readings >= _ENOUGH and not self._streak

    def _open(self, factor: float) -> None:
        """Makes every weight as uncertain as before anything was learned, or `factor` as much."""
        self._readings = 0
        self._most_variance = [(prior.deviation * factor) ** 2 for prior in self._priors]
        self._covariance = [
            [most if row == column else 0.0 for column in range(len(self._priors))]
            for row, most in enumerate(self._most_variance)
        ]

    @property
    def values(self) -> tuple[float, ...]:
        """The weights."""
        return tuple(self._values)

    def value(self, amounts: Sequence[float]) -> float:
        """What is expected for these amounts, 0 or more."""
        total: float = sum(map(mul, self._values, amounts))
        return total

    def learn(self, amounts: Sequence[float], value: float) -> None:
        """Corrects the weights by what these amounts came to; any finite `value` is safe."""
        self._readings += 1
        if sum(map(mul, self._unseen, amounts)):
            for index, amount in enumerate(amounts):
                if amount > 0 and self._unseen[index]:
                    self._seen.append(index)
                    self._unseen[index] = 0.0
        expected = self.value(amounts)
        scale = max(_SMALLEST_SCALE, expected)
        units = list(map(scale.__rtruediv__, amounts))
        error, spread, variance = self._judged((value - expected) / scale, units)
        for index in self._seen:
            gain = spread[index] / variance
            prior, row = self._priors[index], self._covariance[index]
            self._values[index] = max(0.0, min(prior.most, self._values[index] + gain * error))
            row[:] = map(sub, row, map(gain.__mul__, spread))
            drift = (prior.deviation * _DRIFT) ** 2
            row[index] = min(self._most_variance[index], max(0.0, row[index]) + drift)
        # What the weights' own uncertainty explains is no noise, and outliers would feed on a noise
        # that they raise: the limit rises with it.
        found = min(error * error - (variance - self._noise), 4 * self._noise)
        noise = self._noise + _NOISE_RATE * (max(0.0, found) - self._noise)
        self._noise = min(_MOST_NOISE**2, max(_LEAST_NOISE**2, noise))

    def _judged(self, error: float, units: list[float]) -> tuple[float, list[float], float]:
        """The error that is believed, the weights' covariance with it, and its variance."""
        spread, variance = self._spread(units)
        limit = _OUTLIER_DEVIATIONS * math.sqrt(variance)
        if abs(error) <= limit:
            self._streak = 0
            return error, spread, variance
        side = 1 if error > 0 else -1
        self._streak = self._streak + side if self._streak * side > 0 else side
        if abs(self._streak) < _BELIEVED_AFTER:
            return side * limit, spread, variance
        self._streak = 0
        self._open(_CHANGED)
        self._noise = _FIRST_NOISE**2
        return error, *self._spread(units)

    def _spread(self, units: list[float]) -> tuple[list[float], float]:
        spread = [0.0] * len(units)
        for index in self._seen:
            spread[index] = sum(map(mul, self._covariance[index], units))
        return spread, max(0.0, sum(map(mul, units, spread))) + self._noise
