"""Tables of what models write and what is to be found in it: one JSON object to a line."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

from redline.tasks.answers import Number

_FOLDER = Path(__file__).parents[1] / "unit" / "tasks"


def rows(name: str) -> list[dict[str, Any]]:
    """The rows of one table, in order."""
    text = (_FOLDER / f"{name}.jsonl").read_text("utf-8")
    return [json.loads(line) for line in text.splitlines()]


def number(text: str | None) -> Number | None:
    """The number of a table: `18`, `-3/4`, `1.5`, `25%`; None where none is to be found."""
    if text is None:
        return None
    return Number(Fraction(text.removesuffix("%")), text.endswith("%"))
