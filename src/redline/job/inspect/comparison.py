"""Compares two outputs over the rows that both have: which rows ended or were answered differently.

Rows are matched as in a run: by their custom_id, otherwise by their content. For each answer of the
first output, a 64-bit hash and the offset of its line are kept in memory; only the lines of sampled
rows are read again.
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
from redline.journal import is_other, manifest

# The kinds of pairs, each with its description, in display order.
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
_UNGRADED, _WRONG, _RIGHT = range(3)


class Example(NamedTuple):
    """One row as an example. row: its number in the second output. name: see `Line.name`."""

    row: int
    name: str


class Pair(NamedTuple):
    """The places of one row's lines in two outputs. Readable while the outputs are open.

    first, second: the indexes of the two files. first_begin, second_begin: byte offsets.
    """

    key: int
    first: FileIndex
    first_begin: int
    second: FileIndex
    second_begin: int

    def lines(self) -> tuple[Line | None, Line | None]:
        """Returns the row's line in each output; None for a line that cannot be read."""
        first = read_line(self.first.line_at(self.first_begin))
        return first, read_line(self.second.line_at(self.second_begin))


class Difference(NamedTuple):
    """A setting that differs between two outputs.

    first, second: its values as JSON, empty if it is not set. Long values are cut to a few
    characters around their first difference.
    """

    name: str
    first: str
    second: str


class Comparison(msgspec.Struct, kw_only=True):
    """The comparison of two outputs over the rows that both have.

    first, second: each output's figures for these rows. only_first, only_second: the number of rows
    that only one output has. settings: those that differ. pairs: the number of rows of each of
    KINDS. examples: the first few rows of each kind. equal, different: the number of rows with
    equal or different answers. changed: the number of rows whose content differs. grades: the
    number of rows that are graded in both outputs, by whether the first and the second answer are
    right. samples: the sampled pairs of each kind.
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
        """The number of rows that both outputs have."""
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
    """Compares two outputs row by row. Blocks while it reads the current lines of both once.

    sample: the most pairs of each kind to sample. seed: determines which pairs. Memory: about 120
    bytes per row. Raises ConfigError if the two are the same file or have no row in common.
    """
    names = f"{first.name} and {second.name}"
    if first.name == second.name or os.path.samefile(first.output.path, second.output.path):
        raise ConfigError(f"{names} are the same file", hint="choose another file")
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
    """Returns the settings that differ, in order of their names; none without both manifests.

    The name of the input and the version of redline count as settings.
    """
    ones, others = _settings(first), _settings(second)
    if first.manifest is None or second.manifest is None:
        return []
    return [
        Difference(name, *manifest.both_shown(one, other))
        for name in sorted(ones.keys() | others.keys())
        if (one := ones.get(name)) != (other := others.get(name))
    ]


def _settings(opened: Opened) -> dict[str, Any]:
    manifest = opened.manifest
    if manifest is None:
        return {}
    return {**manifest.settings, "input": opened.input_name or None, "redline": manifest.redline}


class _Pairing:
    """Reads the first output, then the second, and compares the rows that are in both."""

    def __init__(
        self, first: Opened, second: Opened, tariff: Tariff, sample: int, seed: int
    ) -> None:
        self._first, self._second = first.lines, second.lines
        self.comparison = Comparison(
            first=Figures(first.cost(tariff)), second=Figures(second.cost(tariff))
        )
        self._samples: dict[str, Sample[Pair]] = {kind: Sample(sample, seed) for kind in KINDS}
        # Indexed by line number in the first output's results or, for the last array, its failures.
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
        """Counts a row of the second output that the first output also has."""
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
        """Counts a row that has an answer in both outputs, and returns its kind."""
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
    """Yields the current lines of rows that the other output also has; calls `add` with each."""
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
    """Adds an example; keeps only those with the lowest row numbers, in order."""
    if len(kept) < _MOST_EXAMPLES or example < kept[-1]:
        kept.append(example)
        kept.sort()
        del kept[_MOST_EXAMPLES:]
