"""Draws the latency of the simulated provider's answers."""

from __future__ import annotations

import math
import re
from random import Random

import msgspec

from redline.errors import ConfigError

MAX_LATENCY_S = 3600.0
_NUMBER = r"(?:\d+(?:\.\d+)?|\.\d+)"
_HINT = "write seconds like 0.2, a range like 2-5, or lognormal:1.2,0.4"


class Constant(msgspec.Struct, frozen=True):
    """Every answer takes `seconds_s` seconds, 0 to 3,600. Raises ConfigError for other values."""

    seconds_s: float

    def __post_init__(self) -> None:
        _check(self.seconds_s)

    def draw_s(self, rng: Random) -> float:
        """Returns the latency of one request, in seconds. Draws nothing from `rng`."""
        return self.seconds_s

    def __str__(self) -> str:
        return f"{self.seconds_s:g} s"


class Uniform(msgspec.Struct, frozen=True):
    """An answer takes `low_s` to `high_s` seconds, uniformly distributed; both are 0 to 3,600.

    Raises ConfigError for other values, and if `low_s` is above `high_s`.
    """

    low_s: float
    high_s: float

    def __post_init__(self) -> None:
        _check(self.low_s)
        _check(self.high_s)
        if self.low_s > self.high_s:
            raise ConfigError(
                f"a latency range must rise, not fall from {self.low_s:g} to {self.high_s:g}",
                hint=_HINT,
            )

    def draw_s(self, rng: Random) -> float:
        """Draws the latency of one request, in seconds, once from `rng`."""
        return rng.uniform(self.low_s, self.high_s)

    def __str__(self) -> str:
        return f"{self.low_s:g}-{self.high_s:g} s"


class Lognormal(msgspec.Struct, frozen=True):
    """The logarithm of the latency in seconds is normally distributed; the median is e**mu s.

    A latency is at most 3,600 s. Raises ConfigError for a mu outside -20 to ln 3,600, or a sigma
    outside 0 to 10.
    """

    mu: float
    sigma: float

    def __post_init__(self) -> None:
        if not (-20 <= self.mu <= math.log(MAX_LATENCY_S) and 0 <= self.sigma <= 10):
            raise ConfigError(
                f"a lognormal latency of mu {self.mu:g} and sigma {self.sigma:g} is out of range",
                hint=f"mu from -20 to {math.log(MAX_LATENCY_S):.1f}, sigma from 0 to 10",
            )

    def draw_s(self, rng: Random) -> float:
        """Draws the latency of one request from `rng`, in seconds, at most an hour."""
        return min(rng.lognormvariate(self.mu, self.sigma), MAX_LATENCY_S)

    def __str__(self) -> str:
        return f"lognormal with median {math.exp(self.mu):.3g} s and sigma {self.sigma:g}"


Latency = Constant | Uniform | Lognormal
_FORMS: dict[str, type[Latency]] = {
    f"({_NUMBER})": Constant,
    rf"({_NUMBER})\s*-\s*({_NUMBER})": Uniform,
    rf"lognormal:\s*(-?{_NUMBER})\s*,\s*({_NUMBER})": Lognormal,
}


def parse_latency(text: str) -> Latency:
    """Parses a latency: `0.2` (constant), `2-5` (uniform) or `lognormal:1.2,0.4`.

    The two numbers of `lognormal` are the mean and the standard deviation of the logarithm of the
    seconds.
    Raises ConfigError, which shows the valid forms.
    """
    text = text.strip()
    for form, kind in _FORMS.items():
        if match := re.fullmatch(form, text):
            return kind(*map(float, match.groups()))
    raise ConfigError(f"latency is not a time: {text}", hint=_HINT)


def _check(latency_s: float) -> None:
    if not 0 <= latency_s <= MAX_LATENCY_S:
        raise ConfigError(
            f"a latency must be between 0 and {MAX_LATENCY_S:g} s, not {latency_s:g}", hint=_HINT
        )
