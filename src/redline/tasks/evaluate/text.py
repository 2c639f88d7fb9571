"""Summaries and values as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec


def summary(lines: Sequence[str], figures: Mapping[str, object]) -> str:
    """Returns the lines for a reader and, after a blank one, `name: value` for each figure."""
    blank = [""] if lines and lines[-1] else []
    named = [f"{name}: {value}" for name, value in figures.items()]
    return "\n".join([*lines, *blank, *named]) + "\n"


def as_text(value: Any) -> str:
    """Returns a text as it is, and any other value as JSON."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
