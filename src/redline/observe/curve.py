"""How the rate of answers grows with the calls in flight, fitted to a few levels.

At first each call brings its own answers: the rate is in proportion to the calls in flight. Then
the endpoint is full, and the rate stays or falls. The curve has these two asymptotes:

    rate(n) = a n (1 + (n / k)^p)^(-1 / p) / (1 + (n / d)^2)

k is the number at which they cross, the knee; p says how sharply it bends: 1 is a server whose
answers take t0 + n t1, as one that works in batches, and a large one that of k servers, each with
one call at a time. d is where more calls in flight slow all of them down; infinite without that.

None of this is known well from a few levels, so the curve is not the best fit but all of them, each
by its likelihood and by what is known beforehand: k lies anywhere, evenly by its logarithm, or
there is none. Therefore a rate that has grown in proportion so far bends right above the highest
level in about one of seven cases per doubling. For each k, p and d, the scale a is known in closed
form, as measured rates have errors that are normal in the logarithm.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import product
from operator import mul

from redline.observe.steady import Level

# Bends that are tried: 16 is practically a corner.
_BENDS = (1.0, 2.0, 4.0, 16.0)
# Knees are tried from this share of the lowest level up to this multiple of the highest one.
_KNEE_LOW, _KNEE_HIGH, _KNEE_STEP = 0.25, 16.0, math.log(1.06)
# Prior probabilities: there is no knee; more calls in flight slow nothing down.
_NO_KNEE, _NO_SLOWING = 0.25, 0.95
_SLOWING = (0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 8.0)
# Standard deviation of the logarithm of rates around any such curve.
_MISFIT = 0.02
# Shapes whose likelihood is below this share of the best one are left out.
_NEGLIGIBLE = 1e-4
# This many quantiles of a distribution are enough.
_QUANTILES = 100
# Three values and weights that represent a normal distribution (Gauss and Hermite).
_NODES = ((-math.sqrt(3.0), 1 / 6), (0.0, 2 / 3), (math.sqrt(3.0), 1 / 6))

Draws = list[tuple[float, float]]
"""Values and their weights, which add up to 1."""
_Form = tuple[float, float, float]
"""A knee k, a bend p and a slowing d."""
_Shape = tuple[_Form, float, float]
"""A form, its weight, and the logarithm of a."""


class Curve:
    """The rate of answers as a function of calls in flight.

    levels: measured rates, ascending by calls in flight, two or more.
    """

    def __init__(self, levels: Sequence[Level]) -> None:
        self.most = levels[-1].in_flight
        # Relative weights of the levels, by their errors.
        weights = [1 / (level.error**2 + _MISFIT**2) for level in levels]
        self._error = math.hypot(1 / math.sqrt(sum(weights)), _MISFIT)
        self._shapes = _likely(levels, weights)

    def at(self, in_flight: float) -> Draws:
        """The distribution of the rate of answers at this number of calls in flight."""
        found: Draws = []
        for form, share, log_scale in self._shapes:
            rates = around(math.exp(log_scale + _log_form(in_flight, form)), self._error)
            found += [(rate, share * weight) for rate, weight in rates]
        return _thinned(found)


def quantile(draws: Draws, q: float) -> float:
    """The smallest value such that values up to it have at least the share `q` of the weights."""
    so_far = 0.0
    ordered = sorted(draws)
    for value, weight in ordered:
        so_far += weight
        if so_far >= q:
            return value
    return ordered[-1][0]


def combined(operation: Callable[[float, float], float], one: Draws, other: Draws) -> Draws:
    """The result of an operation on two independent values, such as their minimum."""
    return _thinned([(operation(a, b), v * w) for a, v in one for b, w in other])


def around(value: float, error: float) -> Draws:
    """A value known with this standard error of its logarithm."""
    return [(value * math.exp(place * error), weight) for place, weight in _NODES]


def _thinned(draws: Draws) -> Draws:
    """The values, reduced to quantiles of equal weight if there are too many."""
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
    """All shapes that are likely given the levels."""
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
    """Each k, p and d that is tried, and its prior probability."""
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
    """The logarithm of the rate for a scale of 1."""
    knee, bend, slowing = form
    log = math.log(n)
    if knee < math.inf:
        log -= math.log1p((n / knee) ** bend) / bend
    if slowing < math.inf:
        log -= math.log1p((n / slowing) ** 2)
    return log
