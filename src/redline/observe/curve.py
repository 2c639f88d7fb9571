"""Models how the rate of answers grows with the calls in flight, fitted to a few levels.

At first the rate is proportional to the calls in flight. Then the endpoint is full, and the rate
stays constant or falls. The curve has these two asymptotes:

    rate(n) = a n (1 + (n / k)^p)^(-1 / p) / (1 + (n / d)^2)

k is the knee, the number of calls at which the asymptotes cross. p is the sharpness of the bend: 1
fits a server whose answers take t0 + n t1, for example one that computes in batches; a large p fits
k servers that each process one call at a time. d is the number of calls beyond which further calls
slow all of them down; infinite if they never do.

A few levels do not determine these values well, so the model is not the best fit but all curves,
each weighted by its likelihood and its prior probability. A priori, the logarithm of k is uniformly
distributed, or there is no knee. Therefore, if the rate has grown in proportion so far, it bends
within the next doubling in about one case in seven. For each k, p and d, the best scale a has a
closed form, because the errors of the logarithms of measured rates are assumed to be normal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import product
from operator import mul

from redline.observe.steady import Level

# The values of p that are tried; 16 is practically a corner.
_BENDS = (1.0, 2.0, 4.0, 16.0)
# Knees are tried from this share of the lowest level up to this multiple of the highest one.
_KNEE_LOW, _KNEE_HIGH, _KNEE_STEP = 0.25, 16.0, math.log(1.06)
# Prior probabilities: that there is no knee, and that more calls never slow each other down.
_NO_KNEE, _NO_SLOWING = 0.25, 0.95
# The values of d that are tried, as multiples of the highest level.
_SLOWING = (0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 8.0)
# The standard deviation of the logarithm of true rates around the best such curve.
_MISFIT = 0.02
# Shapes whose likelihood is below this share of the best one are left out.
_NEGLIGIBLE = 1e-4
# A distribution is reduced to at most this many quantiles.
_QUANTILES = 100
# Three values and weights that represent a normal distribution (Gauss-Hermite quadrature).
_NODES = ((-math.sqrt(3.0), 1 / 6), (0.0, 2 / 3), (math.sqrt(3.0), 1 / 6))

Draws = list[tuple[float, float]]
"""Values and their weights, which add up to 1."""
_Form = tuple[float, float, float]
"""A knee k, a bend p, and the d at which calls slow each other down."""
_Shape = tuple[_Form, float, float]
"""A form, its weight, and the logarithm of a."""


class Curve:
    """The rate of answers as a function of the calls in flight.

    levels: two or more measured rates, in ascending order of their calls in flight.
    """

    def __init__(self, levels: Sequence[Level]) -> None:
        self.most = levels[-1].in_flight
        # The weights of the levels: the inverse variances of the logarithms of their rates.
        weights = [1 / (level.error**2 + _MISFIT**2) for level in levels]
        self._error = math.hypot(1 / math.sqrt(sum(weights)), _MISFIT)
        self._shapes = _likely(levels, weights)

    def at(self, in_flight: float) -> Draws:
        """Returns the distribution of the answers per second with this many calls in flight."""
        found: Draws = []
        for form, share, log_scale in self._shapes:
            rates = around(math.exp(log_scale + _log_form(in_flight, form)), self._error)
            found += [(rate, share * weight) for rate, weight in rates]
        return _thinned(found)


def quantile(draws: Draws, q: float) -> float:
    """Returns the smallest value such that the values up to it weigh at least `q`, 0 to 1."""
    so_far = 0.0
    ordered = sorted(draws)
    for value, weight in ordered:
        so_far += weight
        if so_far >= q:
            return value
    return ordered[-1][0]


def combined(operation: Callable[[float, float], float], one: Draws, other: Draws) -> Draws:
    """Returns the distribution of a function of two independent values, such as their minimum."""
    return _thinned([(operation(a, b), v * w) for a, v in one for b, w in other])


def around(value: float, error: float) -> Draws:
    """Returns the distribution of a value whose logarithm has this standard error."""
    return [(value * math.exp(place * error), weight) for place, weight in _NODES]


def _thinned(draws: Draws) -> Draws:
    """Returns the values, reduced to _QUANTILES of equal weight if there are more."""
    if len(draws) <= _QUANTILES:
        return draws
    found: Draws = []
    so_far = 0.0
    for value, weight in sorted(draws):
        so_far += weight
        while len(found) < _QUANTILES and so_far * _QUANTILES >= len(found) + 0.5:
            found.append((value, 1 / _QUANTILES))
    return found


def _likely(levels: Sequence[Level], weights: Sequence[float]) -> list[_Shape]:
    """Returns all shapes that are not negligible given the levels, with their weights."""
    places = [level.in_flight for level in levels]
    logs = [math.log(level.per_s) for level in levels]
    found: list[tuple[float, _Form, float]] = []
    for form, prior in _tried(places[0], places[-1]).items():
        scales = [log - _log_form(place, form) for log, place in zip(logs, places, strict=True)]
        scale = sum(map(mul, weights, scales)) / sum(weights)
        squares = sum(w * (each - scale) ** 2 for w, each in zip(weights, scales, strict=True))
        found.append((math.log(prior) - squares / 2, form, scale))
    best = max(log for log, _, _ in found)
    likely = [each for each in found if math.exp(each[0] - best) > _NEGLIGIBLE]
    total = sum(math.exp(log - best) for log, _, _ in likely)
    return [(form, math.exp(log - best) / total, scale) for log, form, scale in likely]


def _tried(lowest: float, highest: float) -> dict[_Form, float]:
    """Returns each combination of k, p and d that is tried, and its prior probability."""
    count = math.ceil(math.log(_KNEE_HIGH * highest / (_KNEE_LOW * lowest)) / _KNEE_STEP)
    knees = [_KNEE_LOW * lowest * math.exp(step * _KNEE_STEP) for step in range(count + 1)]
    bent = (1 - _NO_KNEE) / len(knees) / len(_BENDS)
    forms = {(knee, bend): bent for knee in knees for bend in _BENDS}
    forms[math.inf, 1.0] = _NO_KNEE
    slowings = {share * highest: (1 - _NO_SLOWING) / len(_SLOWING) for share in _SLOWING}
    slowings[math.inf] = _NO_SLOWING
    return {
        (*form, slowing): one * other
        for (form, one), (slowing, other) in product(forms.items(), slowings.items())
    }


def _log_form(n: float, form: _Form) -> float:
    """Returns the logarithm of the rate at `n` calls in flight, for a = 1."""
    knee, bend, slowing = form
    log = math.log(n)
    if knee < math.inf:
        log -= math.log1p((n / knee) ** bend) / bend
    if slowing < math.inf:
        log -= math.log1p((n / slowing) ** 2)
    return log
