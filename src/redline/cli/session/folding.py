"""Folds texts to the width of the screen, cuts them after a few lines, and aligns tables."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Sequence
from itertools import islice, starmap

from redline.process import cells, printable

_NARROWEST, _WIDEST = 40, 200
# When a text is cut, at most this many characters of one line are examined.
_LONGEST = 20_000
_WORD = re.compile("[^ \n]*")


def screen_width() -> int:
    """Returns the columns of the terminal, 40 to 200; 80 without one."""
    return min(max(shutil.get_terminal_size((80, 24)).columns, _NARROWEST), _WIDEST)


def aligned(
    rows: Sequence[Sequence[str]], *, is_figures: bool = False, least: int = 0
) -> list[str]:
    """Returns a line for each row, with columns as wide as their longest cell.

    is_figures: all columns but the first are right-aligned. least: the minimum width of a column.
    """
    widths = [max(least, *map(cells, column)) for column in zip(*rows, strict=True)]

    def padded(at: int, cell: str) -> str:
        space = " " * (widths[at] - cells(cell))
        return space + cell if is_figures and at else cell + space

    return ["  ".join(starmap(padded, enumerate(row))).rstrip() for row in rows]


def folded(text: str, width: int, most_lines: int, indent: str = "") -> list[str]:
    """Folds the text to at most `most_lines` lines of `width` columns, the indent included.

    If the text is longer, the last line states how many characters are left out, unless all of
    them are spaces or empty lines. Wide characters count as two columns.
    """
    text = printable(text[:_LONGEST]).expandtabs(4) + text[_LONGEST:]
    lines: list[str] = []
    used = 0
    for start, end in islice(_pieces(text, max(1, width - len(indent))), most_lines):
        if len(lines) == most_lines - 1 and text[end:].strip():
            left = f"... {len(text) - used:,} more characters"
            return [*lines, f"{indent}{left}"]
        lines.append(f"{indent}{text[start:end]}".rstrip())
        used = end
    return lines


def _pieces(text: str, width: int) -> Iterator[tuple[int, int]]:
    """Yields the start and end of each line; lines break at line feeds, spaces or in long words.

    width: the maximum width of a line in terminal columns.
    """
    start = 0
    while start < len(text):
        newline = text.find("\n", start, start + width + 1)
        end = newline if newline >= 0 else min(len(text), start + width)
        while end > start + 1 and cells(text[start:end]) > width:
            end -= max(1, (cells(text[start:end]) - width) // 2)
        if end < len(text) and text[end] not in " \n":
            space = text.rfind(" ", start + 1, end)
            word = _WORD.match(text, space + 1, space + width + 2)
            # A word wider than a line, such as a text without spaces, begins on this line.
            end = space if space > start and word and cells(word[0]) <= width else end
        yield start, end
        # The space or line feed at which the line ends is not shown.
        start = end + (end < len(text) and text[end] in " \n")
