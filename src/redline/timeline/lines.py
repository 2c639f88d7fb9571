"""Lines of JSON that a reader passes over, and the version of the one that begins a run."""

from __future__ import annotations

from collections.abc import Container
from typing import Literal

import msgspec


class _Record(msgspec.Struct):
    kind: str


class _Run(msgspec.Struct):
    kind: Literal["run"]
    v: int


_RECORD = msgspec.json.Decoder(_Record).decode
_RUN = msgspec.json.Decoder(_Run).decode


def version_of(line: bytes) -> int | None:
    """The version of the run that the line begins; None for any other line."""
    try:
        return _RUN(line).v
    except ValueError:
        return None


def is_of_unknown_kind(line: bytes, known: Container[str]) -> bool:
    """Whether the line is a record, of a kind other than those known."""
    try:
        return _RECORD(line).kind not in known
    except ValueError:
        return False
