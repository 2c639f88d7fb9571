"""An exact number, how it is written, and when two numbers say the same."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True, slots=True)
class Number:
    """An exact value; `25%` is 25 with is_percent."""

    value: Fraction
    is_percent: bool = False

    def __str__(self) -> str:
        """`18`, `-4.5`, `25%`; a fraction where decimals would not end: `1/3`."""
        sign = "%" if self.is_percent else ""
        places = _places(self.value.denominator)
        if places is None:
            return f"{self.value}{sign}"
        digits = str(abs(self.value.numerator) * 10**places // self.value.denominator)
        if places:
            digits = digits.rjust(places + 1, "0")
            digits = f"{digits[:-places]}.{digits[-places:]}"
        return f"{'-' if self.value < 0 else ''}{digits}{sign}"


def is_same(one: Number, other: Number) -> bool:
    """Whether two numbers say the same; 18, 18.0 and $18.00 do. Nothing is rounded.

    A percentage is the same as the bare number (`25%` as 25, which is how GSM8K's answers state
    percentages) and as the share (`25%` as 0.25); two percentages must be equal.
    """
    if one.value == other.value:
        return True
    if one.is_percent == other.is_percent:
        return False
    percent, share = (one, other) if one.is_percent else (other, one)
    return percent.value == 100 * share.value


def _places(denominator: int) -> int | None:
    """The decimals that a fraction with this denominator needs, or None where they never end."""
    twos = fives = 0
    while denominator % 2 == 0:
        denominator //= 2
        twos += 1
    while denominator % 5 == 0:
        denominator //= 5
        fives += 1
    return max(twos, fives) if denominator == 1 else None
