"""Counts the money and tokens that are spent or reserved, and bounds them by an allowance."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import NamedTuple

import msgspec

from redline.calls.cost.prices import BATCH_DIVISOR, DOLLAR
from redline.errors import ConfigError

_MONEY = re.compile(r"(\$)?\s*(\d+(?:\.\d+)?|\.\d+)\s*(usd)?", re.IGNORECASE)
_MOST_DOLLARS = 10**9


class Amount(NamedTuple):
    """An amount of money in picodollars, and of tokens; integers, so that sums are exact."""

    picodollars: int = 0
    tokens: int = 0

    def plus(self, other: Amount) -> Amount:
        return Amount(self.picodollars + other.picodollars, self.tokens + other.tokens)

    @property
    def batched(self) -> Amount:
        """The amount for the same tokens in a batch, at half the price, rounded up."""
        return Amount(-(-self.picodollars // BATCH_DIVISOR), self.tokens)

    def minus(self, other: Amount) -> Amount:
        return Amount(self.picodollars - other.picodollars, self.tokens - other.tokens)


NOTHING = Amount()


class Allowance(msgspec.Struct, frozen=True, kw_only=True):
    """The most that may be spent: 1 or more picodollars and tokens; None for no bound.

    Raises ConfigError for an amount below 1.
    """

    picodollars: int | None = None
    tokens: int | None = None

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"a budget must be above 0, not {value} {name}")


class Spending:
    """The spent and reserved amounts.

    `reserve` keeps their sum within the allowance, as long as no call costs more than its
    reservation. Synchronous; raises nothing.
    """

    def __init__(self, allowance: Allowance, spent: Amount = NOTHING) -> None:
        self.allowance = allowance
        self.spent = spent
        self.reserved = NOTHING

    @property
    def committed(self) -> Amount:
        """The amount spent if every call in flight costs its whole reservation."""
        return self.spent.plus(self.reserved)

    def reserve(self, worst: Amount) -> bool:
        """Reserves `worst` until `settle`; False if the allowance has no room for it."""
        after = self.committed.plus(worst)
        allowance = self.allowance
        if allowance.picodollars is not None and after.picodollars > allowance.picodollars:
            return False
        if allowance.tokens is not None and after.tokens > allowance.tokens:
            return False
        self.reserved = self.reserved.plus(worst)
        return True

    def recall(self, spent: Amount, reserved: Amount) -> None:
        """Adds amounts that earlier runs have spent and reserved."""
        self.reserved = self.reserved.plus(reserved)
        self.spent = self.spent.plus(spent)

    def settle(self, reserved: Amount, actual: Amount) -> None:
        """Releases a call's reservation and adds `actual` to the amount spent."""
        self.reserved = self.reserved.minus(reserved)
        self.spent = self.spent.plus(actual)


def parse_money(text: str, what: str = "budget") -> int:
    """Parses `5usd`, `0.50usd` or `$5` as picodollars.

    Raises ConfigError, which names `what`, unless the amount is above 0, at most a billion dollars,
    and a whole number of picodollars.
    """
    hint = "for example 5usd or 0.50usd"
    match = _MONEY.fullmatch(text.strip())
    if match is None or (match[1] is None) == (match[3] is None):
        raise ConfigError(f"{what} is not an amount of money: {text}", hint=hint)
    picodollars = Decimal(match[2]) * DOLLAR
    if not 1 <= picodollars <= _MOST_DOLLARS * DOLLAR or picodollars != int(picodollars):
        raise ConfigError(f"{what} is zero, too large or too precise: {text}", hint=hint)
    return int(picodollars)


def dollars_text(picodollars: int) -> str:
    """Formats an amount like `$12.34`, with 4 decimals below a dollar and 6 below a cent."""
    dollars = Decimal(picodollars) / DOLLAR
    places = 2 if dollars >= 1 or not picodollars else 4 if dollars >= Decimal("0.01") else 6
    return f"${dollars:,.{places}f}"
