"""Selects rows of an output: those that failed or were cut, one of them, or a sample."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from redline.job.inspect.cost import Tariff
from redline.job.inspect.current import CurrentLines, FileIndex, Place
from redline.job.inspect.figures import Figures
from redline.job.inspect.lines import Line, read_line
from redline.job.inspect.opening import Opened
from redline.job.inspect.sampling import Sample

_Where = tuple[int, FileIndex, int]
_MOST_DIGITS = 18


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """Which rows to select: all rows, unless failed, cut or row is set.

    failed: the rows that failed. cut: the successes whose answers were cut at the token limit; with
    failed, both are selected. row: the rows with this number or custom_id; failed and cut are then
    ignored. sample: the most rows to draw from those selected, see `Sample`. adds_input: with row
    or sample, reads the rows from the input if their lines do not contain them.
    """

    failed: bool = False
    cut: bool = False
    row: str | None = None
    sample: int | None = None
    seed: int = 0
    adds_input: bool = False

    @property
    def is_everything(self) -> bool:
        return not (self.failed or self.cut or self.row is not None)


class Found(NamedTuple):
    """A selected row. data: its line as it is in the file. line: None if it cannot be parsed."""

    data: bytes
    line: Line | None


def figures_of(opened: Opened, tariff: Tariff) -> Figures:
    """Returns the figures of all rows. Blocks while it reads the current lines once."""
    figures = Figures(opened.cost(tariff))
    for place in opened.lines.results.places():
        figures.add_result(read_line(place.line))
    for place in opened.lines.failures.places():
        figures.add_failure(read_line(place.line))
    return figures


def select(opened: Opened, selection: Selection) -> Iterator[Found]:
    """Yields the selected rows, successes first, in the order of the files. Blocks.

    Memory: one row at a time; for a row or a sample, also the places of its lines and, with
    adds_input, the rows read from the input.
    """
    found = _matching(opened.lines, selection)
    if selection.sample is None and selection.row is None:
        for _, place in found:
            yield Found(place.line, read_line(place.line))
        return
    sample: Sample[_Where] = Sample(selection.sample or sys.maxsize, selection.seed)
    for index, place in found:
        sample.offer(place.key, (place.key, index, place.begin))
    drawn = sample.items()
    keys = [key for key, *_ in drawn] if selection.adds_input else []
    asked = {} if opened.settings.get("keep_input") else dict(opened.rows_asked(keys))
    for key, index, begin in drawn:
        data = index.line_at(begin)
        line = read_line(data)
        if line is not None and not line.has_input and key in asked:
            line.input = asked[key]
        yield Found(data, line)


def _matching(lines: CurrentLines, selection: Selection) -> Iterator[tuple[FileIndex, Place]]:
    results, failures = lines.results, lines.failures
    if selection.row is not None:
        for index in (results, failures):
            yield from ((index, place) for place in _of_row(index, selection.row))
        return
    if selection.cut or selection.is_everything:
        for place in results.places():
            if selection.is_everything or _is_cut(place.line):
                yield results, place
    if selection.failed or selection.is_everything:
        yield from ((failures, place) for place in failures.places())


def _is_cut(data: bytes) -> bool:
    # Parsing is slow, and this search rules out nearly every line.
    may_be = b'"length"' in data or b'"max_output_tokens"' in data
    line = read_line(data) if may_be else None
    return line is not None and line.is_cut


def row_number(row: str) -> int | None:
    """Parses a row number; returns None for a text that can only be a custom_id."""
    is_number = row.isascii() and row.isdigit() and len(row) <= _MOST_DIGITS
    return int(row) if is_number else None


def _of_row(index: FileIndex, row: str) -> Iterator[Place]:
    """Yields the lines of rows with this number or custom_id.

    The custom_id `NAME` also matches the samples of this row: `NAME#2` and so on.
    """
    number = row_number(row)
    # In the form in which lines contain it. A name that is not valid UTF-8 is in no line.
    name = msgspec.json.encode(row.encode("utf-8", "replace").decode())
    marks = [b'"custom_id":' + name[:-1]]
    if number is not None:
        marks.append(b'"row":%d,' % number)
    for place in index.places():
        if not any(mark in place.line for mark in marks):
            continue
        line = read_line(place.line)
        if line is None or line.row == number or _is_named(line.custom_id or "", row):
            yield place


def _is_named(custom_id: str, row: str) -> bool:
    base, hash_sign, number = custom_id.rpartition("#")
    return custom_id == row or (bool(hash_sign) and base == row and number.isdigit())
