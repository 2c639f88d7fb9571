"""Compares two outputs by their common rows: which of them ended, or were answered, differently.

Rows are matched as in a run: by their custom_id, otherwise by their content. For each answer, a
64-bit hash and the offset of its line are kept; only the lines of the sample are read again.
"""

from __future__ import annotations

import os
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec

from redline.errors import ConfigError
from redline.job.inspect.cost import Tariff
from redline.job.inspect.current import CurrentLines, FileIndex, Place
from redline.job.inspect.figures import Figures
from redline.job.inspect.lines import Line, read_line
from redline.job.inspect.opening import Opened
from redline.job.inspect.sampling import Sample
from redline.journal import is_other

# Pairs of rows by their difference, in the order in which they are shown.
KINDS = {
    "lost": "finished in A, failed in B",
    "gained": "failed in A, finished in B",
    "worse": "right in A, not in B",
    "better": "right in B, not in A",
    "different": "different outputs",
    "equal": "equal outputs",
    "failed": "failed in both",
}
_MOST_EXAMPLES = 5
_SHOWN_CHARACTERS = 60
_UNGRADED, _WRONG, _RIGHT = range(3)


class Example(NamedTuple):
    """A row by its number in the second output, and its name."""

    row: int
    name: str


class Pair(NamedTuple):
    """One row in both outputs, by where its lines are; readable as long as the outputs are open."""

    key: int
    first: FileIndex
    first_begin: int
    second: FileIndex
    second_begin: int

    def lines(self) -> tuple[Line | None, Line | None]:
        """Returns the line in each output, None for one that cannot be read."""
        first = read_line(self.first.line_at(self.first_begin))
        return first, read_line(self.second.line_at(self.second_begin))


class Difference(NamedTuple):
    """A setting that decides answers, as JSON; empty if it is not set.

    Long values are cut to where they differ.
    """

    name: str
    first: str
    second: str


class Comparison(msgspec.Struct, kw_only=True):
    """Two outputs over the rows that both have.

    first, second: figures of these rows. only_first, only_second: rows that one output alone has.
    pairs: rows by KINDS. examples: for each kind the first few rows. equal: rows with equal
    outputs; different: with different ones. changed: rows whose content differs. grades: rows with
    graded answers, by whether each is right; empty if the outputs are not graded. samples: of each
    kind, some pairs.
    """

    first: Figures
    second: Figures
    only_first: int = 0
    only_second: int = 0
    settings: list[Difference] = []
    pairs: Counter[str] = msgspec.field(default_factory=Counter)
    examples: dict[str, list[Example]] = msgspec.field(default_factory=dict)
    equal: int = 0
    different: int = 0
    changed: int = 0
    grades: Counter[tuple[bool, bool]] = msgspec.field(default_factory=Counter)
    samples: dict[str, list[Pair]] = msgspec.field(default_factory=dict)

    @property
    def common(self) -> int:
        """Rows that both outputs have."""
        return self.pairs.total()

    def as_fields(self) -> dict[str, Any]:
        """Returns the comparison as JSON fields, for programs."""
        fields: dict[str, Any] = {
            "common": self.common,
            "only_first": self.only_first,
            "only_second": self.only_second,
            "changed": self.changed,
            "equal": self.equal,
            "different": self.different,
            "pairs": {kind: self.pairs[kind] for kind in KINDS},
            "examples": {kind: [one.row for one in rows] for kind, rows in self.examples.items()},
            "settings": {each.name: [each.first, each.second] for each in self.settings},
            "first": self.first.as_fields(),
            "second": self.second.as_fields(),
        }
        if self.grades:
            fields["grades"] = {
                "both_right": self.grades[True, True],
                "only_first_right": self.grades[True, False],
                "only_second_right": self.grades[False, True],
                "neither_right": self.grades[False, False],
            }
        return fields


def compare_outputs(
    first: Opened, second: Opened, tariff: Tariff, *, sample: int = 0, seed: int = 0
) -> Comparison:
    """Compares two outputs by their rows. Blocks while it reads the current lines of both once.

    sample: pairs of each kind to be kept. Memory: about 120 bytes a row.
    Raises ConfigError if the two are one file, or have no row in common.
    """
    names = f"{first.name} and {second.name}"
    if first.name == second.name or os.path.samefile(first.output.path, second.output.path):
        raise ConfigError(f"{names} are the same file", hint="name another one")
    found = _Pairing(first, second, tariff, sample, seed).comparison
    if not found.common:
        hint = (
            "rows are matched by custom_id, otherwise by their content: add a custom_id to the "
            "rows of both inputs"
        )
        if first.settings.get("samples") != second.settings.get("samples"):
            hint = "their numbers of samples differ; redline eval compare matches questions instead"
        raise ConfigError(f"{names} have no row in common", hint=hint)
    found.only_first = first.lines.rows - found.common
    found.only_second = second.lines.rows - found.common
    found.settings = differences(first, second)
    return found


def differences(first: Opened, second: Opened) -> list[Difference]:
    """Returns the settings that two outputs were made with and that differ, by name."""
    ones, others = _settings(first), _settings(second)
    if first.manifest is None or second.manifest is None:
        return []
    return [
        Difference(name, *_cut(_json(ones.get(name)), _json(others.get(name))))
        for name in sorted(ones.keys() | others.keys())
        if ones.get(name) != others.get(name)
    ]


def _settings(opened: Opened) -> dict[str, Any]:
    manifest = opened.manifest
    if manifest is None:
        return {}
    return {**manifest.settings, "input": opened.input_name or None, "redline": manifest.redline}


def _json(value: Any) -> str:
    return "" if value is None else msgspec.json.encode(value).decode()


def _cut(first: str, second: str) -> tuple[str, str]:
    """Returns both texts, from shortly before where they differ if one of them is long."""
    begin = 0
    if max(len(first), len(second)) > _SHOWN_CHARACTERS:
        pairs = enumerate(zip(first, second, strict=False))
        same = next((at for at, (one, two) in pairs if one != two), min(len(first), len(second)))
        begin = max(0, same - _SHOWN_CHARACTERS // 3)
    return _from(first, begin), _from(second, begin)


def _from(text: str, begin: int) -> str:
    left = text[begin:]
    shown = left if len(left) <= _SHOWN_CHARACTERS else f"{left[:_SHOWN_CHARACTERS]}..."
    return f"...{shown}" if begin and shown else shown


class _Pairing:
    """Reads the first output, then the second, whose rows it finds in what it kept of the first."""

    def __init__(
        self, first: Opened, second: Opened, tariff: Tariff, sample: int, seed: int
    ) -> None:
        self._first, self._second = first.lines, second.lines
        self.comparison = Comparison(
            first=Figures(first.cost(tariff)), second=Figures(second.cost(tariff))
        )
        self._samples: dict[str, Sample[Pair]] = {kind: Sample(sample, seed) for kind in KINDS}
        # Keyed by the line's number in the first results.
        lines = first.lines.results.lines
        self._hashes = array("Q", [0]) * lines
        self._begins = array("Q", [0]) * lines
        self._grades = bytearray(lines)
        self._failure_begins = array("Q", [0]) * first.lines.failures.lines
        self._read_first()
        self._read_second()
        self.comparison.samples = {kind: found.items() for kind, found in self._samples.items()}

    def _read_first(self) -> None:
        figures = self.comparison.first
        for place, line in _common(self._first.results, self._second, figures.add_result):
            self._begins[place.number] = place.begin
            if line is not None:
                self._hashes[place.number] = line.output_hash()
                self._grades[place.number] = _grade(line)
        for place, _ in _common(self._first.failures, self._second, figures.add_failure):
            self._failure_begins[place.number] = place.begin

    def _read_second(self) -> None:
        figures, second = self.comparison.second, self._second
        for index, add in (
            (second.results, figures.add_result),
            (second.failures, figures.add_failure),
        ):
            for place, line in _common(index, self._first, add):
                self._add(place, line, index)

    def _add(self, place: Place, line: Line | None, index: FileIndex) -> None:
        """Takes a row of the second output that the first has, too."""
        key, results = place.key, self._first.results
        is_result = index is self._second.results
        number = results.keys.mark_of(key) - 1
        if number >= 0:
            kind = self._kind(number, line) if is_result else "lost"
            here, begin = results, self._begins[number]
        else:
            kind = "gained" if is_result else "failed"
            here = self._first.failures
            begin = self._failure_begins[here.keys.mark_of(key) - 1]
        found = self.comparison
        found.pairs[kind] += 1
        found.changed += is_other(self._first.mark_of(key), self._second.mark_of(key))
        if line is not None:
            _keep_first(found.examples.setdefault(kind, []), Example(line.row, line.name))
        self._samples[kind].offer(key, Pair(key, here, begin, index, place.begin))

    def _kind(self, number: int, line: Line | None) -> str:
        """Returns the kind of a row that both outputs have an answer to."""
        found = self.comparison
        is_equal = line is not None and self._hashes[number] == line.output_hash()
        found.equal += is_equal
        found.different += not is_equal
        grades = (self._grades[number], _UNGRADED if line is None else _grade(line))
        if _UNGRADED not in grades:
            found.grades[grades[0] == _RIGHT, grades[1] == _RIGHT] += 1
            if grades[0] != grades[1]:
                return "better" if grades[1] == _RIGHT else "worse"
        return "equal" if is_equal else "different"


def _common(
    index: FileIndex, other: CurrentLines, add: Callable[[Line | None], None]
) -> Iterator[tuple[Place, Line | None]]:
    """Yields the lines of rows that the other output has, too; adds each to the figures."""
    for place in index.places():
        if place.key in other:
            line = read_line(place.line)
            add(line)
            yield place, line


def _grade(line: Line) -> int:
    if not isinstance(line.correct, bool):
        return _UNGRADED
    return _RIGHT if line.correct else _WRONG


def _keep_first(kept: list[Example], example: Example) -> None:
    """Keeps the few examples of the lowest row numbers, in order."""
    if len(kept) < _MOST_EXAMPLES or example < kept[-1]:
        kept.append(example)
        kept.sort()
        del kept[_MOST_EXAMPLES:]
