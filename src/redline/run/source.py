"""Where rows come from: the right source for a path, for stdin, or for Python objects."""

from __future__ import annotations

import os
import stat
from collections.abc import AsyncIterable, Iterable, Mapping
from itertools import islice
from pathlib import Path

from redline.errors import ConfigError, nearest
from redline.run.lines import LineRows
from redline.run.source_arrow import open_dataset, open_parquet
from redline.run.source_bytes import COMPRESSIONS, ByteStream
from redline.run.source_iterable import AsyncRows, IterableRows
from redline.run.source_row import Row, Source
from redline.run.tables import CsvRows

__all__ = ["MAX_ROW_BYTES", "AsyncRows", "Row", "Source", "open_source"]

MAX_ROW_BYTES = 16 * 1024 * 1024

_LINES = (".jsonl", ".ndjson", ".jsonlines", ".json", ".txt", "")
_DELIMITERS = {".csv": ",", ".tsv": "\t"}
_MAX_LISTED = 2000
_FRAMES = {
    "iterrows": 'pass df.to_dict("records")',
    "iter_rows": "pass df.iter_rows(named=True)",
    "to_pylist": "pass table.to_pylist()",
}


def open_source(rows: object, *, max_row_bytes: int = MAX_ROW_BYTES) -> Source | AsyncRows:
    """The source of `rows`: a path, "-" for stdin, an iterable or an async iterable.

    A path is read by its suffix: JSON Lines (.jsonl, .ndjson, .json, .txt, none), .csv, .tsv,
    each also with .gz or .zst, .parquet, or a folder that Dataset.save_to_disk wrote.
    max_row_bytes: a longer row is a bad row. Close the source when done.
    Raises ConfigError where there is nothing that can be read. A file's beginning is read
    here; a pipe is first touched by `batches`.
    """
    if isinstance(rows, (str, os.PathLike)):
        path = os.fspath(rows)
        if path == "-":
            return LineRows(ByteStream(None), max_row_bytes)
        return _open_path(Path(os.fsdecode(path)), max_row_bytes)
    if isinstance(rows, AsyncIterable):
        return AsyncRows("<async iterable>", rows, max_row_bytes=max_row_bytes)
    for method, hint in _FRAMES.items():
        if hasattr(rows, method):
            raise ConfigError(f"a {type(rows).__name__} is not an iterable of rows", hint=hint)
    if isinstance(rows, Mapping):
        raise ConfigError("one mapping is not an iterable of rows", hint="pass [row] for one row")
    if isinstance(rows, Iterable) and not isinstance(rows, (bytes, bytearray, memoryview)):
        return IterableRows("<iterable>", rows, max_row_bytes)
    raise ConfigError(
        f"rows cannot come from a value of type {type(rows).__name__}",
        hint="pass a path, or an iterable of dicts or strings",
    )


def _open_path(path: Path, max_row_bytes: int) -> Source:
    mode = _mode(path)
    if stat.S_ISDIR(mode):
        return open_dataset(path, max_row_bytes)
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        return open_parquet(path, max_row_bytes)
    if suffix in COMPRESSIONS:
        suffix = Path(path.stem).suffix.lower()
    stream = ByteStream(path)
    source: CsvRows | LineRows
    if suffix in _DELIMITERS:
        source = CsvRows(stream, _DELIMITERS[suffix], max_row_bytes)
    elif suffix in _LINES:
        source = LineRows(stream, max_row_bytes)
    else:
        raise ConfigError(
            f"{path} has a suffix that is not known: {suffix}",
            hint="known are .jsonl, .ndjson, .json, .csv, .tsv, these with .gz or .zst, "
            "and .parquet",
        )
    if stat.S_ISREG(mode):
        source.open()
    return source


def _mode(path: Path) -> int:
    """The file's kind. Raises ConfigError where it is missing or hidden."""
    try:
        return path.stat().st_mode
    except FileNotFoundError as error:
        raise ConfigError(f"{path} does not exist", hint=_hint_for(path)) from error
    except PermissionError as error:
        raise ConfigError(
            f"no permission to read {path}", hint=f"look at the rights of {path.parent}"
        ) from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(f"cannot read {path}: {reason}") from error


def _hint_for(path: Path) -> str:
    """The nearest name in the same folder, or that the folder is missing too."""
    try:
        names = [entry.name for entry in islice(os.scandir(path.parent), _MAX_LISTED)]
    except OSError:
        return f"the folder {path.parent} does not exist or cannot be read"
    # By their stems: a shared suffix makes any two short names alike.
    stems = {Path(name).stem: name for name in names}
    close = nearest(path.stem, stems).removeprefix("did you mean ").removesuffix("?")
    return (
        f"did you mean {stems[close]}?"
        if close
        else f"no file in {path.parent.resolve()} has a name like it"
    )
