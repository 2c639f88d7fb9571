"""Finds the prices of tokens by model.

A price is an integer number of picodollars per token, so that sums are exact: one dollar per
million tokens is 1,000,000 picodollars per token.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from redline.apis import Usage
from redline.errors import ConfigError, nearest

DOLLAR = 10**12
_PER_MILLION = 10**6
# A price above this is a mistake, such as a price in other units.
_MOST_DOLLARS = 100_000
PRICE_KEYS = ("input", "cached_input", "output")
# A batch costs half at OpenAI, Azure and Anthropic, for all their models.
BATCH_DIVISOR = 2
# Anthropic's price factor for an input token cached for an hour, the most expensive kind of input.
_CACHE_WRITE_FACTOR = 2
# `gpt-4o-mini-2024-07-18`, `claude-sonnet-4-20250514`; some clouds put an @ before the date.
_DATED = re.compile(r"(.+?)[-@](?:\d{4}-\d{2}-\d{2}|\d{8})")
_MODELS_KEPT = 1024


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """Picodollars per token of each kind, 0 or more.

    A token that is written to the provider's cache counts at twice the price of other input.
    """

    input: int
    cached_input: int
    output: int

    def of(self, usage: Usage) -> int:
        """Returns the cost of these tokens, in picodollars."""
        return (
            usage.input * self.input
            + usage.cached * self.cached_input
            + usage.written * self.input * _CACHE_WRITE_FACTOR
            + usage.output * self.output
        )

    def most(self, input_tokens: int, output_tokens: int, *, may_write: bool) -> int:
        """Returns the cost in picodollars if every input token is of the most expensive kind.

        may_write: whether the request asks the provider to cache its input.
        """
        dearest = self.input * _CACHE_WRITE_FACTOR if may_write else self.input
        return input_tokens * max(dearest, self.cached_input) + output_tokens * self.output


class Prices:
    """Prices by model: the user's own, and those that come with redline for other names.

    own: the user's prices. models: for each endpoint, its model names by the requested names.
    tariffs: for each endpoint, its own prices, if it has any. If a model has different prices at
    several endpoints, the highest price counts until one of them has answered.
    """

    def __init__(
        self,
        own: Mapping[str, Price] | None = None,
        models: Mapping[str, Mapping[str, str]] | None = None,
        tariffs: Mapping[str, Mapping[str, Price]] | None = None,
    ) -> None:
        self._own = dict(own or {})
        self._models, self._tariffs = dict(models or {}), dict(tariffs or {})
        # Identical endpoints need not be distinguished.
        if not any(self._models.values()) and not any(self._tariffs.values()):
            self._models = {}
        # Rows may have any number of different models.
        self._found = lru_cache(_MODELS_KEPT)(self._look_up)
        self._found_at = lru_cache(_MODELS_KEPT)(self._price_at)

    def find(self, model: object) -> Price | None:
        """Returns the price of a model by its name, with or without its date; None if unknown."""
        return self._found(model) if isinstance(model, str) else None

    def at(self, endpoint: str, model: object) -> Price | None:
        """Returns the price of a model at the endpoint that has answered; None if unknown."""
        if not isinstance(model, str) or endpoint not in self._models:
            return self.find(model)
        return self._found_at(endpoint, model)

    def checked(self, model: str) -> Price:
        """Returns the price of a model. Raises ConfigError, with a hint to add it, if unknown."""
        price = self.find(model)
        if price is None:
            raise ConfigError(unpriced(model), hint=how_to_price(model))
        return price

    def _look_up(self, model: str) -> Price | None:
        if not self._models:
            return self._stated(model)
        renaming = [endpoint for endpoint, names in self._models.items() if model in names]
        prices = [self._price_at(endpoint, model) for endpoint in renaming or self._models]
        known = [price for price in prices if price is not None]
        if len(known) < len(prices):
            return None
        return Price(
            input=max(price.input for price in known),
            cached_input=max(price.cached_input for price in known),
            output=max(price.output for price in known),
        )

    def _price_at(self, endpoint: str, model: str) -> Price | None:
        """Returns the price of a model at an endpoint; None if unknown.

        The endpoint's tariff comes first, then the user's price for a requested name that it
        renames, then the known price for the endpoint's own name. model: the requested name, or the
        endpoint's own name, as in its answers.
        """
        names = self._models[endpoint]
        called = names.get(model, model)
        if model not in names:
            asked = [name for name, own in names.items() if own == model]
            model = asked[0] if len(asked) == 1 else model
        tariff = self._tariffs.get(endpoint, {})
        return (
            _in(tariff, called)
            or _in(tariff, model)
            or (None if model == called else _in(self._own, model))
            or self._stated(called)
        )

    def _stated(self, model: str) -> Price | None:
        """Returns the price of the name itself, otherwise that of the name without a date."""
        return _in({**_known(), **self._own}, model)


def _in(table: Mapping[str, Price], model: str) -> Price | None:
    """Returns the price of a model in the table by its name, or by its name without a date."""
    if model in table:
        return table[model]
    dated = _DATED.fullmatch(model)
    return None if dated is None else table.get(dated[1])


def unpriced(model: str) -> str:
    """Returns the message for a model without a price."""
    return f"a budget in dollars needs the price of {model}, which is not known"


def how_to_price(model: str) -> str:
    """Returns the hint for a model without a price."""
    return (
        f'write [prices."{model}"] into redline.toml with input and output, in dollars per '
        "million tokens; in Python, pass prices="
    )


def parse_price(name: str, table: Mapping[str, Any], where: str = "") -> Price:
    """Reads a price from a table of dollars per million tokens.

    Without `cached_input`, cached tokens cost as much as other input. Raises ConfigError, which
    names the key, for an unknown or missing key and for a value that is not a price.
    """
    if not isinstance(table, Mapping):
        hint = "write input and output, in dollars per million tokens"
        raise ConfigError(f"the price of {name} must be a table", where=where, hint=hint)
    for key, value in table.items():
        if key not in PRICE_KEYS:
            hint = nearest(str(key), PRICE_KEYS) or f"known settings: {', '.join(PRICE_KEYS)}"
            if isinstance(value, Mapping):
                hint = f'quote a name that contains a dot: "{name}.{key}"'
            raise ConfigError(f"unknown setting: {key}", where=where, hint=hint)
    for key in ("input", "output"):
        if key not in table:
            raise ConfigError(
                f"the price of {name} has no {key}",
                where=where,
                hint=f"write {key} = 0.5 for half a dollar per million tokens",
            )
    cached = table.get("cached_input", table["input"])
    return Price(
        input=_picodollars("input", table["input"], where),
        cached_input=_picodollars("cached_input", cached, where),
        output=_picodollars("output", table["output"], where),
    )


def _picodollars(key: str, value: object, where: str) -> int:
    """Converts dollars per million tokens to picodollars per token. Raises ConfigError."""
    hint = "write dollars per million tokens, such as 0.15"
    try:
        # Read from its text: 0.15 means the decimal number, not the nearest float.
        dollars = Decimal(str(value).strip())
    except InvalidOperation:
        raise ConfigError(f"{key} is not a price: {value}", where=where, hint=hint) from None
    if isinstance(value, bool) or not dollars.is_finite() or not 0 <= dollars <= _MOST_DOLLARS:
        raise ConfigError(f"{key} is not a price: {value}", where=where, hint=hint)
    picodollars = dollars * _PER_MILLION
    if picodollars != int(picodollars):
        raise ConfigError(
            f"{key} has more than six decimals: {value}", where=where, hint="round it up"
        )
    return int(picodollars)


class _File(msgspec.Struct):
    dollars_per_million_tokens: dict[str, dict[str, Decimal]]


@lru_cache(maxsize=1)
def _known() -> dict[str, Price]:
    """Returns the prices that come with redline."""
    data = Path(__file__).with_name("prices.json").read_bytes()
    tables = msgspec.json.decode(data, type=_File).dollars_per_million_tokens
    return {name: parse_price(name, table) for name, table in tables.items()}
