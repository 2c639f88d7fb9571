"""Reads rows of Parquet files and of Hugging Face dataset folders, both through Arrow."""

from __future__ import annotations

import base64
import shlex
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from io import RawIOBase
from itertools import islice
from pathlib import Path
from typing import Any

from redline.errors import ConfigError
from redline.sources.blocks import CorruptInput
from redline.sources.row import BATCH_BYTES, BATCH_ROWS, BlockingRows, Row, check_names, row_of
from redline.sources.text import extra

_MAX_LISTED = 1000
_ID = "custom_id"


# A record batch or table of pyarrow, which has no type annotations.
_Table = Any


class ArrowRows(BlockingRows):
    """The rows of a Parquet file or of a dataset folder, read a few at a time.

    Values without a JSON type are converted: dates and times to ISO strings, decimals to strings,
    bytes to text if they are UTF-8 and otherwise to base64, NaN and infinity to null. Times are cut
    to microseconds, except in `custom_id`. If a map has a key twice, the last value counts, as the
    format requires. `batches` raises ConfigError if there is no row, or if reading fails.
    """

    def __init__(
        self,
        name: str,
        total_rows: int,
        tables: Iterator[_Table],
        arrow: Any,
        files: Iterable[Path],
    ) -> None:
        super().__init__(name, total_rows)
        self._tables = tables
        self._arrow = arrow
        self._seen = _stamps(files)

    def _rows(self) -> Iterator[Row | None]:
        try:
            for table in self._tables:
                for value in self._values(table):
                    yield self._row(value)
                yield None
        except (OSError, ValueError, NotImplementedError) as error:
            raise CorruptInput(f"cannot continue reading {self.name}: {error}") from error

    def check(self) -> None:
        """Raises CorruptInput if a local file was changed since it was opened."""
        now = _stamps(self._seen)
        if not self._is_closed and any(now[file] != self._seen[file] for file in now):
            raise CorruptInput(
                f"{self.name} was changed while its rows were being processed",
                hint="the results are for the rows as they were read; with -o, the same command "
                "then processes the rows that are new or changed",
            )

    def _row(self, value: object) -> Row:
        self._number += 1
        if isinstance(value, Exception):
            problem = f"not readable: {value}"
            return Row(self._number, self._number, None, problem.encode(), problem)
        return row_of(value, self._number, self._max_row_bytes)

    def _values(self, table: _Table) -> list[Any]:
        """Returns the table's rows as dicts; for a row that has no Python form, the error."""
        exact = _nanosecond_ids(self._arrow, table)
        plain = table
        for index, field in enumerate(table.schema):
            kind = _plain_type(self._arrow, field.type)
            # Arrow cannot cast every column, not even to its own type.
            if kind != field.type:
                column = table.column(index).cast(kind, safe=False)
                column.validate()  # `to_pylist` would end the process
                plain = plain.set_column(index, field.name, column)
        # A struct field with "binary" in its name causes a needless walk, but no bytes are missed.
        has_bytes = any("binary" in str(field.type) for field in table.schema)
        try:
            values: list[Any] = [*plain.to_pylist(maps_as_pydicts="lossy")]
        except (ValueError, OverflowError, TypeError) as error:
            if table.num_rows == 1:
                return [error]
            singles = (table.slice(index, 1) for index in range(table.num_rows))
            return [value for single in singles for value in self._values(single)]
        for value, number in zip(values, exact, strict=False):
            if number is not None and number % 1000:
                value[_ID] = _iso(value[_ID], number)
        return [_with_text(value) for value in values] if has_bytes else values


def _nanosecond_ids(arrow: Any, table: _Table) -> list[int | None]:
    """Returns the ids as numbers if they are timestamps in nanoseconds, otherwise an empty list.

    Python's own timestamps have only microseconds.
    """
    if _ID not in table.schema.names:
        return []
    kind = table.schema.field(_ID).type
    if not arrow.types.is_timestamp(kind) or kind.unit != "ns":
        return []
    ids: list[int | None] = table.column(_ID).cast(arrow.int64()).to_pylist()
    return ids


def _iso(moment: datetime, nanoseconds: int) -> str:
    """Returns ISO 8601 with nine decimals.

    nanoseconds: since 1970, not whole microseconds. moment: the same, cut towards 1970.
    """
    text = (moment - timedelta(microseconds=nanoseconds < 0)).isoformat(timespec="microseconds")
    end = len("2020-01-01T00:00:00.000000")
    return f"{text[:end]}{nanoseconds % 1000:03d}{text[end:]}".replace("+00:00", "Z")


def _stamps(files: Iterable[Path]) -> dict[Path, tuple[int, int, int]]:
    """Returns metadata that shows whether files were changed; removed files are left out."""
    found = [(file, file.stat()) for file in files if file.exists()]
    return {file: (info.st_ino, info.st_size, info.st_mtime_ns) for file, info in found}


def _plain_type(arrow: Any, kind: Any) -> Any:
    """Returns the type without nanoseconds and half floats, which plain Python does not have."""
    types = arrow.types
    if getattr(kind, "unit", "") == "ns":
        if types.is_timestamp(kind):
            return arrow.timestamp("us", kind.tz)
        return arrow.time64("us") if types.is_time64(kind) else arrow.duration("us")
    if types.is_float16(kind):
        return arrow.float32()
    if types.is_map(kind):
        key, item = (_plain_type(arrow, inner) for inner in (kind.key_type, kind.item_type))
        return arrow.map_(key, kind.item_field.with_type(item), keys_sorted=kind.keys_sorted)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        plain = _plain_type(arrow, kind.value_type)
        if plain != kind.value_type:
            return arrow.list_(kind.value_field.with_type(plain))
    if types.is_struct(kind):
        return arrow.struct([f.with_type(_plain_type(arrow, f.type)) for f in kind])
    return kind


def _with_text(value: Any) -> Any:
    """Returns the value with all bytes as text: UTF-8 if valid, otherwise base64."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return base64.b64encode(value).decode()
    if isinstance(value, dict):
        return {_with_text(key): _with_text(item) for key, item in value.items()}
    return list(map(_with_text, value)) if isinstance(value, (list, tuple)) else value


def _batch_rows(size_bytes: int, rows: int) -> int:
    """Returns how many rows to read at a time, for about 4 MB: 1 to 256."""
    return max(1, min(BATCH_ROWS, BATCH_BYTES * rows // max(1, size_bytes)))


def open_parquet(place: Path | RawIOBase, name: str) -> ArrowRows:
    """Opens a Parquet file, given as a path or an open file. Raises ConfigError for other files."""
    arrow = extra("pyarrow", "parquet", f"reading {name}")
    parquet = extra("pyarrow.parquet", "parquet", f"reading {name}")
    try:
        # Without a pre-buffer, and with a small buffer for pages, a row group of any size is never
        # in memory as a whole.
        file = parquet.ParquetFile(place, pre_buffer=False, buffer_size=1024 * 1024)
    except (OSError, ValueError, NotImplementedError) as error:
        raise _unreadable(name, "a Parquet file", error) from error
    check_names(file.schema_arrow.names, name)
    meta = file.metadata
    size = sum(meta.row_group(index).total_byte_size for index in range(meta.num_row_groups))
    batch_rows = _batch_rows(size, meta.num_rows)
    # One row group at a time: Arrow cannot cast every column of a batch that spans two of them.
    tables = (
        table
        for group in range(meta.num_row_groups)
        for table in file.iter_batches(batch_rows, row_groups=[group], use_threads=False)
    )
    files = [place] if isinstance(place, Path) else []
    return ArrowRows(name, meta.num_rows, tables, arrow, files)


def open_dataset(path: Path) -> ArrowRows:
    """Opens a folder that `Dataset.save_to_disk` wrote. Raises ConfigError for other folders."""
    name = str(path)
    _check_folder(path, name)
    datasets = extra("datasets", "hf", f"reading the dataset folder {name}")
    arrow = extra("pyarrow", "hf", f"reading the dataset folder {name}")
    try:
        dataset = datasets.load_from_disk(name)
    except (OSError, ValueError, TypeError, KeyError, NotImplementedError) as error:
        raise _unreadable(name, "a dataset folder", error) from error
    rows = len(dataset)
    batch_rows = _batch_rows(dataset.data.nbytes, rows)
    tables = dataset.with_format("arrow").iter(batch_size=batch_rows)
    files = [Path(file["filename"]) for file in dataset.cache_files]
    return ArrowRows(name, rows, tables, arrow, files)


def _check_folder(path: Path, name: str) -> None:
    """Raises ConfigError, with a hint about what to pass, if the folder is not a single dataset."""
    try:
        entries = sorted(islice(path.iterdir(), _MAX_LISTED))
    except OSError as error:
        raise ConfigError(f"cannot read the folder {name}: {error.strerror}") from error
    names = {entry.name for entry in entries}
    if {"state.json", "dataset_info.json"} <= names:
        return
    splits = [entry for entry in entries if (entry / "state.json").is_file()]
    if splits:
        raise ConfigError(
            f"{name} is a folder of datasets",
            hint=f"choose one of them: {', '.join(shlex.quote(str(split)) for split in splits)}",
        )
    hint = "pass a file, or a folder that Dataset.save_to_disk wrote"
    for entry in entries:
        if entry.suffix in (".jsonl", ".csv", ".parquet", ".gz", ".zst"):
            hint = f"pass one file in it, such as {shlex.quote(str(entry))}"
            break
    raise ConfigError(f"{name} is a folder, but not a dataset that save_to_disk wrote", hint=hint)


def _unreadable(name: str, kind: str, error: Exception) -> ConfigError:
    return ConfigError(f"{name} cannot be read as {kind}: {error}", hint="check it, or recreate it")
