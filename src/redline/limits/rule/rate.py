"""Parses and formats rate limits: `2/1s`, `500/60s`, `200k/60s`."""

from __future__ import annotations

import math
import re
from decimal import Decimal

import msgspec

from redline.errors import ConfigError
from redline.structs import check_types

_RATE = re.compile(r"\s*([^\s/]+)\s*/\s*(\d+(?:\.\d+)?|\.\d+)?\s*(ms|s|sec|m|min|h|hour|d|day)\s*")
_COUNT = re.compile(r"(\d+(?:\.\d+)?|\.\d+)([kKmM]?)")
# Units of time in seconds, by all names that settings and servers use for them.
SECONDS = {
    "ms": 1e-3,
    "s": 1.0,
    "sec": 1.0,
    "second": 1.0,
    "m": 60.0,
    "min": 60.0,
    "minute": 60.0,
    "h": 3600.0,
    "hour": 3600.0,
    "d": 86400.0,
    "day": 86400.0,
}
_FACTOR = {"": 1, "k": 1_000, "m": 1_000_000}
MAX_COUNT = 10**12
MAX_WINDOW_S = 31 * 86_400


class Rate(msgspec.Struct, frozen=True):
    """At most `count` requests or tokens in any `window_s` seconds.

    count: a whole number from 1 to 10^12. window_s: above 0 and at most 2,678,400 (31 days). Raises
    ConfigError for other values.
    """

    count: int
    window_s: float

    def __post_init__(self) -> None:
        if isinstance(self.count, float):
            raise ConfigError(
                f"a rate counts whole requests or tokens, not {self.count}",
                hint="pass an int; for a fraction, widen the window: Rate(5, 2.0) is 2.5 a second",
            )
        check_types(self)
        if not 1 <= self.count <= MAX_COUNT:
            raise ConfigError(
                f"a rate must allow from 1 to 10^12 per window, not {self.count}",
                hint="for example 2/1s or 500/60s",
            )
        if not 0 < self.window_s <= MAX_WINDOW_S:
            raise ConfigError(
                f"a rate's window must be longer than 0 s and at most 31 days, "
                f"not {self.window_s:g} s",
                hint="for example 2/1s or 500/60s",
            )

    @property
    def per_s(self) -> float:
        """The mean count per second."""
        return self.count / self.window_s

    def __str__(self) -> str:
        return f"{self.count}/{self.window_s:.15g}s"


def parse_count(text: str, what: str = "count") -> int:
    """Parses a whole number from 1 to 10^12, such as `500`, `200k` or `1.5m`.

    what: the name of the number in the error. Raises ConfigError for any other text.
    """
    value = _amount(text)
    if value is None:
        raise ConfigError(
            f"{what} is not a number above 0: {text}", hint="for example 500, 200k or 1.5m"
        )
    if not 1 <= value <= MAX_COUNT or value != int(value):
        raise ConfigError(
            f"{what} must be a whole number from 1 to 10^12, not {text}",
            hint="give a whole number, or leave it out for no limit",
        )
    return int(value)


def rate_per(value: str | float, window_s: float, what: str = "rate") -> Rate:
    """Returns the Rate of a short form such as `--rpm 500`: `value` per `window_s`.

    value: a number above 0, or text such as `500`, `200k` or `2.5`. A fraction is not rounded, but
    stretches the window: 2.5 per second becomes 3 in 1.2 s. Raises ConfigError, which names `what`,
    for any other value.
    """
    text = format(Decimal(repr(float(value))), "f") if isinstance(value, float) else str(value)
    amount = _amount(text)
    if amount == 0:
        raise ConfigError(f"{what} must be above 0, not {text}", hint="leave it out for no limit")
    if amount is None or amount == int(amount):
        return Rate(parse_count(text, what), window_s)
    count = math.ceil(amount)
    return _rate(count, float(Decimal(window_s) * count / amount), text, what)


def _amount(text: str) -> Decimal | None:
    """Returns the number in a text such as `1.5m`; None if the text is not such a number."""
    match = _COUNT.fullmatch(text.strip())
    # Decimal, because 8.2m and 1.001k are whole numbers, but their float products are not.
    return Decimal(match[1]) * _FACTOR[match[2].lower()] if match else None


def parse_rate(text: str, what: str = "rate") -> Rate:
    """Parses a Rate such as `2/1s`, `500/60s`, `200k/min` or `5/s`.

    what: the name of the rate in the error. Raises ConfigError, which shows the right form, for any
    other text.
    """
    match = _RATE.fullmatch(text)
    if match is None:
        raise ConfigError(
            f"{what} is not a rate: {text}",
            hint="write a count and a window, like 2/1s, 500/60s or 200k/60s",
        )
    count = parse_count(match[1], what)
    return _rate(count, float(match[2] or 1) * SECONDS[match[3]], text, what)


def _rate(count: int, window_s: float, text: str, what: str) -> Rate:
    """Returns the Rate of `text`. Raises ConfigError, which names `what`, for a bad window."""
    if not 0 < window_s <= MAX_WINDOW_S:
        raise ConfigError(
            f"{what} must have a window longer than 0 s and at most 31 days: {text}",
            hint="for example 2/1s or 500/60s",
        )
    return Rate(count, window_s)


def span(seconds: float) -> str:
    """Formats a duration: `10 s`, `24 h` or `31 days`."""
    if seconds > 86_400 and seconds % 86_400 == 0:
        return f"{seconds / 86_400:g} days"
    return f"{seconds / 3600:g} h" if seconds >= 3600 else f"{seconds:g} s"


def limit_text(kind: str, rate: Rate | None) -> str:
    """Formats a limit as people write it: `200k tokens/min`, `500 requests/min`, `2 requests/s`.

    kind: what it counts. rate: None if it is still being searched for.
    """
    what = kind.replace("_", " ")
    if rate is None:
        return f"the rate of {what} being searched for"
    count = f"{rate.count:,}"
    if rate.count == 1:
        what = what.removesuffix("s")
    for unit, factor in (("m", 1_000_000), ("k", 1_000)):
        if rate.count >= 10 * factor and rate.count % factor == 0:
            count = f"{rate.count // factor:,}{unit}"
            break
    names = {1.0: "s", 60.0: "min", 3600.0: "h", 86400.0: "day"}
    return f"{count} {what}/{names.get(rate.window_s) or span(rate.window_s)}"
