"""Counts by names that others choose, such as models and finish reasons: at most 100 of them."""

from __future__ import annotations

from typing import Any

MOST_NAMES = 100
OTHERS = "others"


def known_or_others(counts: dict[Any, Any], name: Any) -> Any:
    """Returns the name under which this one is counted: OTHERS once 100 names are known."""
    return name if name in counts or len(counts) < MOST_NAMES else OTHERS


def count_name(counts: dict[str, int], name: str) -> None:
    """Adds one to the count of this name, or of OTHERS."""
    name = known_or_others(counts, name)
    counts[name] = counts.get(name, 0) + 1
