"""Counts by name, for names that servers choose, such as models: at most 100 different names."""

from __future__ import annotations

from typing import Any

MOST_NAMES = 100
OTHERS = "others"


def known_or_others(counts: dict[Any, Any], name: Any) -> Any:
    """Returns the name to count under: OTHERS for a new name once there are 100 names."""
    return name if name in counts or len(counts) < MOST_NAMES else OTHERS


def count_name(counts: dict[str, int], name: str) -> None:
    """Adds 1 to the count of this name, or of OTHERS: see `known_or_others`."""
    name = known_or_others(counts, name)
    counts[name] = counts.get(name, 0) + 1
