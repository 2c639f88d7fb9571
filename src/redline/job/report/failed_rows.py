"""The rows of an output that failed, by kind of error, with a few examples of each."""

from __future__ import annotations

import msgspec

from redline.job.inspect import Line, current_lines, read_line
from redline.journal import Output
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


def failed_rows(output: Output) -> list[FailedKind]:
    """Returns the kinds of errors with which rows failed, most frequent first; at most 50.

    Counts each row once, by its current line, and leaves out rows that have a result, so that both
    files are read. Lines that cannot be read are passed over. Raises JournalError and OSError.
    """
    if not output.failed_path.exists():
        return []
    kinds: dict[str, FailedKind] = {}
    with current_lines(output) as lines:
        for place in lines.failures.places():
            line = read_line(place.line)
            if line is None or line.error is None:
                continue
            name, message = line.error.kind, line.error.message
            kind = kinds.get(name)
            if kind is None and len(kinds) < _MOST_KINDS:
                kind = kinds[name] = FailedKind(kind=shown(name))
            if kind is None:
                continue
            kind.rows += 1
            if len(kind.examples) < _MOST_EXAMPLES:
                kind.examples.append(_example(line, message))
    return sorted(kinds.values(), key=lambda one: -one.rows)


def _example(line: Line, message: str) -> FailedRow:
    name = f"row {line.row:,}" if line.custom_id is None else line.custom_id
    return FailedRow(name=shown(name), attempts=line.attempts, message=shown(message))


def shown(text: str, longest: int = _LONGEST) -> str:
    """Returns the text, printable and cut to `longest` characters."""
    text = printable(text[: 2 * longest].encode("utf-8", "replace").decode())
    return text if len(text) <= longest else text[: longest - 3] + "..."
