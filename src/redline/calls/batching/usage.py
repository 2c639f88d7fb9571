"""Splits the usage of a call with many items among the requests that shared the call.

If the answer has a usage for each item, `added_usage` adds these up for each request. Otherwise
each count is apportioned: input tokens by the length of the inputs, output tokens by the length of
the answers. Lengths are in tokens for inputs that are given as tokens, and in bytes for texts.
Shares of a whole number are whole, and their sum is the count in the answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_WRITTEN = ("completion", "output")
_READ = ("prompt", "input")
# A sum of larger numbers may exceed the range of a float.
_MOST_ADDED = 10**300


def apportioned(total: int, weights: Sequence[int]) -> list[int]:
    """Returns `total`, 0 or more, divided into integers by weight (largest remainder method)."""
    weight = sum(weights)
    if not weight:
        weights, weight = [1] * len(weights), len(weights)
    # Integer arithmetic: a server may send a count beyond the range of a float.
    shares = [total * one // weight for one in weights]
    by_rest = sorted(range(len(weights)), key=lambda index: -(total * weights[index] % weight))
    for index in by_rest[: total - sum(shares)]:
        shares[index] += 1
    return shares


def split_usage(
    usage: Mapping[str, Any], reads: Sequence[int], writes: Sequence[int]
) -> list[dict[str, Any]]:
    """Returns the usage of each request. reads, writes: the lengths of its inputs and answers."""
    both = [read + write for read, write in zip(reads, writes, strict=True)]
    shares = {
        name: _shares(value, _weights(name, reads, writes, both)) for name, value in usage.items()
    }
    parts = _by_part(shares, len(reads))
    _add_up(usage, parts)
    return parts


def _weights(
    name: str, reads: Sequence[int], writes: Sequence[int], both: Sequence[int]
) -> Sequence[int]:
    """Returns the weights by which the count with this name is divided."""
    if name.startswith(_WRITTEN):
        return writes
    return reads if name.startswith(_READ) else both


def _by_part(shares: Mapping[str, Sequence[Any]], parts: int) -> list[dict[str, Any]]:
    """Returns each part's own share of every value."""
    return [{name: each[part] for name, each in shares.items()} for part in range(parts)]


def added_usage(usages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Adds up the usages of several items, field by field."""
    total: dict[str, Any] = {}
    for usage in usages:
        for name, value in usage.items():
            known = total.get(name)
            if isinstance(value, Mapping) and isinstance(known, Mapping):
                total[name] = added_usage([known, value])
            elif _is_number(value) and _is_number(known):
                total[name] = known + value
            else:
                total[name] = value
    return total


def _shares(value: Any, weights: Sequence[int]) -> list[Any]:
    if isinstance(value, Mapping):
        shares = {name: _shares(inner, weights) for name, inner in value.items()}
        return _by_part(shares, len(weights))
    if type(value) is int and value >= 0:
        return apportioned(value, weights)
    if type(value) is float:
        weight = sum(weights)
        return [value * one / weight if weight else value / len(weights) for one in weights]
    return [value] * len(weights)


def _add_up(usage: Mapping[str, Any], parts: list[dict[str, Any]]) -> None:
    """Sets each part's total_tokens to the sum of its counts, if `usage` itself has that sum."""
    names = [
        name for name in usage if name.startswith(_WRITTEN + _READ) and type(usage[name]) is int
    ]
    total = usage.get("total_tokens")
    if type(total) is int and names and total == sum(usage[name] for name in names):
        for part in parts:
            part["total_tokens"] = sum(part[name] for name in names)


def _is_number(value: Any) -> bool:
    return type(value) is float or (type(value) is int and abs(value) < _MOST_ADDED)
