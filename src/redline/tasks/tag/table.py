"""Writes tags as a table for other programs, with a line for each row that has a tag.

The columns of the rows come first, then the fields of their tags, each in order of first
occurrence. A field with the name of a column becomes `tag_NAME`. Lists and objects are JSON.

| values of a column       | in Parquet | in CSV           |
|--------------------------|------------|------------------|
| texts                    | string     | as they are      |
| whole numbers of 64 bits | int64      | digits           |
| numbers                  | double     | as JSON          |
| true and false           | bool       | `true`, `false`  |
| several of these kinds   | string     | each as above    |
| null, or missing         | null       | empty            |

The results are read twice, so that the columns and their types are known before the first line.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from redline.errors import ConfigError
from redline.journal import read_results
from redline.process import replace_file
from redline.sources import extra
from redline.tasks.evaluate import as_text
from redline.tasks.tag.csv_lines import row_writer
from redline.tasks.tag.tags import Line

SUFFIXES = (".csv", ".parquet")
_BATCH_ROWS = 2_000
_MOST_INT = 2**63 - 1


class _Columns:
    """The columns of a table, and the kinds of values in each.

    tags: the column name of each field of a tag; it differs from the names of all columns of the
    rows. rows: the number of rows in the table.
    """

    def __init__(self, results: Path) -> None:
        rows: dict[str, set[str]] = {}
        fields: dict[str, set[str]] = {}
        self.rows = 0
        for line in read_results(results, Line):
            self.rows += 1
            _note(rows, _row(line))
            _note(fields, _tag(line))
        self.tags: dict[str, str] = {}
        taken = {*rows, *fields}
        for field in fields:
            name = field
            while name in rows or (name != field and name in taken):
                name = f"tag_{name}"
            self.tags[field] = name
            taken.add(name)
        self.kinds = rows | {self.tags[field]: kinds for field, kinds in fields.items()}

    def of(self, line: Line) -> dict[str, Any]:
        """Returns the line's values by column name, without missing ones."""
        named = {self.tags[field]: value for field, value in _tag(line).items()}
        return {name: _plain(value) for name, value in (*_row(line).items(), *named.items())}


def check_path(path: Path) -> None:
    """Raises ConfigError if the path has another suffix or no folder, or if an extra is missing."""
    if path.suffix.lower() not in SUFFIXES:
        raise ConfigError(f"cannot export to {path}", hint=f"use one of {', '.join(SUFFIXES)}")
    if path.is_dir() or not path.parent.is_dir():
        what = f"cannot export to {path}: its folder does not exist, or the path is a folder"
        raise ConfigError(what)
    if path.suffix.lower() == ".parquet":
        _arrow(path)


def write_table(results: Path, path: Path) -> int:
    """Writes the tagged rows in `results` to a new table at `path`, and returns their number.

    Raises ConfigError for a missing extra, and JournalError if a file cannot be read or written.
    """
    columns = _Columns(results)
    write = _write_csv if path.suffix.lower() == ".csv" else _write_parquet
    replace_file(path, lambda fd: write(fd, read_results(results, Line), columns))
    return columns.rows


def _row(line: Line) -> dict[str, Any]:
    return line.input if isinstance(line.input, dict) else {}


def _tag(line: Line) -> dict[str, Any]:
    return line.output if isinstance(line.output, dict) else {"output": line.output}


def _note(kinds: dict[str, set[str]], values: dict[str, Any]) -> None:
    for name, value in values.items():
        found = kinds.setdefault(name, set())
        if value is not None:
            found.add(_kind(value))


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int) and abs(value) <= _MOST_INT:
        return "int"
    return "float" if isinstance(value, float) else "text"


def _plain(value: Any) -> Any:
    return as_text(value) if isinstance(value, (list, dict)) else value


def _text(value: Any) -> str:
    """Formats a cell as text: a text as it is, None as empty, any other value as JSON."""
    return "" if value is None else as_text(value)


def _write_csv(fd: int, lines: Iterator[Line], columns: _Columns) -> None:
    with open(fd, "w", encoding="utf-8", newline="", closefd=False) as file:
        write_row = row_writer(file)
        write_row(columns.kinds)
        for line in lines:
            values = columns.of(line)
            write_row([_text(values.get(name)) for name in columns.kinds])


def _write_parquet(fd: int, lines: Iterator[Line], columns: _Columns) -> None:
    arrow, parquet = _arrow(Path("a Parquet table"))
    types = {name: _type(kinds) for name, kinds in columns.kinds.items()}
    schema = arrow.schema([(name, arrow.type_for_alias(kind)) for name, kind in types.items()])
    with os.fdopen(fd, "wb", closefd=False) as file, parquet.ParquetWriter(file, schema) as writer:
        while batch := [columns.of(line) for line in islice(lines, _BATCH_ROWS)]:
            rows = [
                {name: _cell(value, types[name]) for name, value in values.items()}
                for values in batch
            ]
            writer.write_table(arrow.Table.from_pylist(rows, schema=schema))


def _arrow(path: Path) -> tuple[Any, Any]:
    purpose = f"writing {path}"
    return extra("pyarrow", "parquet", purpose), extra("pyarrow.parquet", "parquet", purpose)


def _type(kinds: set[str]) -> str:
    """Returns Arrow's name for the type of a column."""
    if kinds == {"bool"}:
        return "bool"
    if kinds == {"int"}:
        return "int64"
    return "float64" if kinds and kinds <= {"int", "float"} else "string"


def _cell(value: Any, kind: str) -> Any:
    """Converts the value to the type of its column."""
    if value is None:
        return None
    if kind == "string":
        return as_text(value)
    return float(value) if kind == "float64" else value
