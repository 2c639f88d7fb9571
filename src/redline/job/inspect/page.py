"""Renders a comparison as one HTML page: its figures, and sampled answers side by side.

The page loads nothing and runs no script. All texts from the outputs are escaped, their unprintable
characters are removed, and each text has its own writing direction.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from redline.job.inspect.comparison import KINDS, Comparison, Pair
from redline.job.inspect.lines import Line, input_text
from redline.job.inspect.opening import Opened
from redline.job.inspect.rendering import rendered
from redline.process import printable

# At most this number of characters of a text is shown: a few screens.
_MOST_CHARACTERS = 4000
# A row with more characters than this is collapsed.
_SHORT_CHARACTERS = 600


class _Text(NamedTuple):
    """One side of a pair.

    left_out: the number of characters that are not shown. note: how the row ended. kind: the CSS
    class: `right`, `wrong`, `failed` or empty.
    """

    text: str
    left_out: int
    note: str
    kind: str


def page_of(
    comparison: Comparison,
    sides: tuple[Opened, Opened],
    table: list[tuple[str, str, str]],
    scores: str,
) -> str:
    """Returns the page of a comparison.

    sides: the outputs, still open. table: lines with a figure's name and its value for each output.
    scores: the scores in words, or empty. Memory: all texts that are shown, and one pair of lines
    at a time.
    """
    groups = [
        (words, comparison.pairs[kind], [_row(pair) for pair in comparison.samples.get(kind, [])])
        for kind, words in KINDS.items()
        if comparison.pairs[kind]
    ]
    rows = {row["key"]: row for _, _, found in groups for row in found}
    for side in sides:
        without = (key for key, row in rows.items() if not row["asked"][0])
        for key, data in side.rows_asked(without):
            rows[key].update(_asked(input_text(data)))
    return rendered(
        Path(__file__).with_name("page.html.jinja"),
        comparison=comparison,
        sides=sides,
        table=table,
        scores=scores,
        groups=groups,
    )


def _row(pair: Pair) -> dict[str, Any]:
    found = pair.lines()
    lines = [line for line in found if line is not None]
    asked = next((text for line in lines if (text := line.input_text())), "")
    return {
        "key": pair.key,
        "name": printable(lines[-1].name) if lines else "a row",
        **_asked(asked),
        "sides": [_side(line) for line in found],
    }


def _asked(text: str) -> dict[str, Any]:
    return {"asked": _cut(text), "is_short": len(text) <= _SHORT_CHARACTERS}


def _side(line: Line | None) -> _Text:
    if line is None:
        return _Text("this line cannot be read", 0, "", "failed")
    if line.error is not None:
        what = f"{line.error.kind}: {line.error.message}"
        return _Text(*_cut(what), "failed", "failed")
    text, left_out = _cut(line.text())
    notes = [line.reason] if line.reason not in (None, "stop") else []
    notes += [line.verdict] if isinstance(line.verdict, str) else []
    kind = "" if not isinstance(line.correct, bool) else "right" if line.correct else "wrong"
    return _Text(text, left_out, ", ".join(filter(None, notes)), kind)


def _cut(text: str) -> tuple[str, int]:
    """Returns the printable text to show, and the number of characters left out."""
    return printable(text[:_MOST_CHARACTERS]), max(0, len(text) - _MOST_CHARACTERS)
