"""The usage of a call with many items, split between the requests that shared it.

Counts that the answer states for each item are added up. Otherwise each count is apportioned: input
tokens by the length of the inputs, output tokens by the length of the answers, in tokens for inputs
that are given as tokens and in bytes for texts. Shares are whole numbers, and their sum is the
count that the answer states.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_WRITTEN = ("completion", "output")
_READ = ("prompt", "input")
# A sum of larger numbers may be beyond what a float holds.
_MOST_ADDED = 10**300


def apportioned(total: int, weights: Sequence[int]) -> list[int]:
    """Divides `total`, 0 or more, into whole shares by weight, by the largest remainders."""
    weight = sum(weights)
    if not weight:
        weights, weight = [1] * len(weights), len(weights)
    # In whole numbers: a server may state a count that no float holds.
    shares = [total * one // weight for one in weights]
    by_rest = sorted(range(len(weights)), key=lambda index: -(total * weights[index] % weight))
    for index in by_rest[: total - sum(shares)]:
        shares[index] += 1
    return shares


def split_usage(
    usage: Mapping[str, Any], reads: Sequence[int], writes: Sequence[int]
) -> list[dict[str, Any]]:
    """Returns the usage of each request. reads, writes: lengths of its inputs and answers."""
    parts: list[dict[str, Any]] = [{} for _ in reads]
    both = [read + write for read, write in zip(reads, writes, strict=True)]
    for name, value in usage.items():
        weights = writes if _has(name, _WRITTEN) else reads if _has(name, _READ) else both
        for part, share in zip(parts, _shares(value, weights), strict=True):
            part[name] = share
    _add_up(usage, parts)
    return parts


def added_usage(usages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Adds up the counts that items state."""
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
        parts: list[dict[str, Any]] = [{} for _ in weights]
        for name, inner in value.items():
            for part, share in zip(parts, _shares(inner, weights), strict=True):
                part[name] = share
        return parts
    if type(value) is int and value >= 0:
        return apportioned(value, weights)
    if type(value) is float:
        weight = sum(weights)
        return [value * one / weight if weight else value / len(weights) for one in weights]
    return [value] * len(weights)


def _add_up(usage: Mapping[str, Any], parts: list[dict[str, Any]]) -> None:
    """Sets each part's total_tokens to the sum of its counts, if the whole's total is that sum."""
    names = [name for name in usage if _has(name, _WRITTEN + _READ) and type(usage[name]) is int]
    total = usage.get("total_tokens")
    if type(total) is int and names and total == sum(usage[name] for name in names):
        for part in parts:
            part["total_tokens"] = sum(part[name] for name in names)


def _has(name: str, words: Sequence[str]) -> bool:
    return name.startswith(tuple(words))


def _is_number(value: Any) -> bool:
    return type(value) is float or (type(value) is int and abs(value) < _MOST_ADDED)
