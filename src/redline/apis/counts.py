"""How many answers a request asks for, from numbers as lenient servers read them."""

from __future__ import annotations

import math
from typing import Any

# Above what any endpoint answers to one request: a larger number is a false one.
_MOST_CHOICES = 100_000


def number(value: Any) -> int | None:
    """`value` as a whole number, rounded up; None if it is not a number.

    Many servers take "4" and 4.0 for 4, as pydantic does unless told otherwise.
    """
    if type(value) is int:
        return value
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    return math.ceil(value) if isinstance(value, float) and math.isfinite(value) else None


def choices(body: dict[str, Any]) -> int:
    """Answers to one request: `n` to each of its prompts; at most 100,000."""
    return _copies(number(body.get("n")), body)


def drafts(body: dict[str, Any]) -> int:
    """Answers that are billed: `best_of` of them are written, whether they are sent or not."""
    n, best_of = number(body.get("n")), number(body.get("best_of"))
    return _copies(n if best_of is None else max(n or 1, best_of), body)


def _copies(each: int | None, body: dict[str, Any]) -> int:
    copies = each if each is not None and each > 0 else 1
    prompts = body.get("prompt")
    if isinstance(prompts, list) and prompts and not isinstance(prompts[0], int | float):
        copies *= len(prompts)
    return min(copies, _MOST_CHOICES)


def inputs(body: dict[str, Any]) -> int | None:
    """Vectors that a request for embeddings asks for; None if the body does not tell."""
    value = body.get("input")
    if isinstance(value, list):
        # A list of numbers is one input, given as token ids.
        return len(value) if value and not isinstance(value[0], int | float) else 1
    return None if value is None else 1
