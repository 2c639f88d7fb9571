"""Formats summaries and values as text, and moves the work on long answers to a thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from redline.process import in_thread

T = TypeVar("T")

# Extraction takes about a millisecond for an answer of this length.
_LONG_ANSWER = 50_000


def summary(lines: Sequence[str], figures: Mapping[str, object]) -> str:
    """Returns the lines for a reader and, after a blank line, `name: value` for each figure."""
    blank = [""] if lines and lines[-1] else []
    named = [f"{name}: {value}" for name, value in figures.items()]
    return "\n".join([*lines, *blank, *named]) + "\n"


def as_text(value: Any) -> str:
    """Returns a text as it is, and any other value as JSON."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


async def in_thread_if_long(answer: str, work: Callable[[str], T]) -> T:
    """Returns `work(answer)`, called in a thread if the answer has 50,000 characters or more."""
    if len(answer) < _LONG_ANSWER:
        return work(answer)
    return await in_thread(work, answer)
