"""Defines the cost of one call against the limits, and the kinds of amounts that limits count."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

import msgspec

from redline.structs import check_number

Kind = Literal["requests", "tokens", "input_tokens", "output_tokens"]
KINDS: tuple[Kind, ...] = get_args(Kind)


class Spread(msgspec.Struct, frozen=True, gc=False):
    """The uncertainty of an amount around its estimate, which is its mean.

    variance, third: the second and third central moments, 0 or more. most: the most by which the
    true amount can exceed the estimate.
    """

    variance: float = 0.0
    third: float = 0.0
    most: float = 0.0


CERTAIN = Spread()


class Cost(msgspec.Struct, frozen=True, gc=False):
    """The expected use of a call: one request and these tokens, each 0 or more.

    output_tokens: a mean, if it is learned from earlier calls. spread: the uncertainty of
    output_tokens. is_bound: whether input_tokens is an upper bound rather than an estimate; a bound
    is enough while the limits have ample room.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    spread: Spread = CERTAIN
    is_bound: bool = False

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    def amount(self, kind: Kind) -> int:
        """Returns the amount that a limit of this kind counts."""
        return AMOUNT_OF[kind](self)

    def spread_of(self, kind: Kind) -> Spread:
        """Returns the uncertainty of the amount that a limit of this kind counts."""
        return self.spread if kind in ("tokens", "output_tokens") else CERTAIN


def stated_cost(tokens: int, output_tokens: int) -> Cost:
    """Returns the cost that a caller states. Raises ConfigError unless both numbers are finite.

    tokens: of the input, or of input and output together. output_tokens: of the output alone; 0 if
    included in `tokens`.
    """
    check_number("tokens", tokens)
    check_number("output_tokens", output_tokens)
    return Cost(tokens, output_tokens)


AmountOf = Callable[[Cost], int]
# For each kind of limit, the amount that it counts for a call.
AMOUNT_OF: dict[Kind, AmountOf] = {
    "requests": lambda cost: 1,
    "tokens": lambda cost: cost.input_tokens + cost.output_tokens,
    "input_tokens": lambda cost: cost.input_tokens,
    "output_tokens": lambda cost: cost.output_tokens,
}
