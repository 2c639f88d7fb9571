"""The rows of a failures file by kind of error, with a few examples of each; read in one pass."""

from __future__ import annotations

from pathlib import Path

import msgspec

from redline.process import printable

_MOST_EXAMPLES = 3
# Kinds are redline's own, but a file may hold anything.
_MOST_KINDS = 50
_LONGEST = 300


class FailedRow(msgspec.Struct, frozen=True, kw_only=True):
    """One failed row, as an example.

    name: its custom_id, or its number in the input.
    """

    name: str
    attempts: int
    message: str


class FailedKind(msgspec.Struct, kw_only=True):
    """Rows that failed with one kind of error, and the first few of them."""

    kind: str
    rows: int = 0
    examples: list[FailedRow] = []


class _Error(msgspec.Struct):
    kind: str
    message: str = ""


class _Line(msgspec.Struct):
    error: _Error
    row: int = 0
    custom_id: str | None = None
    attempts: int = 0


_DECODE = msgspec.json.Decoder(_Line).decode


def failed_rows(path: Path) -> list[FailedKind]:
    """Returns the kinds in the failures file at `path`, most frequent first; at most 50.

    Empty without a file. Lines that cannot be read are passed over, such as one that is being
    written. Raises OSError.
    """
    kinds: dict[str, FailedKind] = {}
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return []
    with file:
        for data in file:
            try:
                line = _DECODE(data)
            except (msgspec.DecodeError, UnicodeDecodeError):
                continue
            kind = kinds.get(line.error.kind)
            if kind is None and len(kinds) < _MOST_KINDS:
                kind = kinds[line.error.kind] = FailedKind(kind=shown(line.error.kind))
            if kind is None:
                continue
            kind.rows += 1
            if len(kind.examples) < _MOST_EXAMPLES:
                kind.examples.append(_example(line))
    return sorted(kinds.values(), key=lambda one: -one.rows)


def _example(line: _Line) -> FailedRow:
    name = f"row {line.row:,}" if line.custom_id is None else line.custom_id
    return FailedRow(name=shown(name), attempts=line.attempts, message=shown(line.error.message))


def shown(text: str, longest: int = _LONGEST) -> str:
    """Returns the text, printable and cut to `longest` characters."""
    text = printable(text[: 2 * longest].encode("utf-8", "replace").decode())
    return text if len(text) <= longest else text[: longest - 3] + "..."
