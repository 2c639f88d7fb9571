"""Defines a row, and what all sources of rows have in common."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b
from numbers import Integral, Real
from typing import Any, Protocol

import msgspec

from redline.errors import ConfigError
from redline.process import counted
from redline.sources.blocks import CorruptInput, share_of

MAX_ROW_BYTES = 16 * 1024 * 1024
BATCH_ROWS = 256
BATCH_BYTES = 4 * 1024 * 1024

# Every whole number below this is exact as a float.
_MOST_WHOLE = 2.0**53
_MEGABYTE = 1024 * 1024
_KINDS = {
    list: "a list",
    str: "a string",
    int: "a number",
    float: "a number",
    bool: "a boolean",
    type(None): "null",
}
_CONTAINERS = frozenset((dict, list))
# Methods that return a plain form: of dates, of arrays and tensors, and of pydantic models.
_PLAIN_FORMS = ("isoformat", "tolist", "model_dump")
# Attributes of types whose plain form is their text: paths, IP addresses, and pydantic's URLs and
# secrets.
_TEXTS = ("as_posix", "max_prefixlen", "unicode_string", "get_secret_value")
_decode = msgspec.json.Decoder().decode


class Row(msgspec.Struct, gc=False):
    """One row of the input, good or bad.

    number: from 1, in input order; blank lines are not rows.
    line: where to find it, from 1: its first line in a text file, otherwise `number`.
    data: the row's content; None if it cannot be read. problem: why the row is bad; None if it is
    good. content: the bytes that identify the row when a run is resumed.
    """

    number: int
    line: int
    data: dict[str, Any] | None
    content: bytes
    problem: str | None = None


class Source(Protocol):
    """A source of rows, in input order.

    name: for messages. total_rows: None if the rows would have to be read to be counted.
    """

    name: str
    total_rows: int | None

    def batches(self) -> Iterator[list[Row]]:
        """Yields lists of 1 to 256 rows, of at most about 4 MB (one row may be larger). Blocks.

        Call it once. Raises ConfigError if reading the input fails, or if it has no row.
        """

    def read_fraction(self) -> float | None:
        """Returns the share of the input read so far, 0 to 1; None if unknown. Thread-safe."""

    def check(self) -> None:
        """Raises ConfigError if a local file no longer contains what was read from it. Blocks.

        Call it before `close`; afterwards it does nothing.
        """

    def close(self) -> None:
        """Releases the input; `batches` then ends early, without an error. Thread-safe."""


def in_batches(rows: Iterable[Row | None]) -> Iterator[list[Row]]:
    """Groups rows into lists of 1 to 256 rows, at most about 4 MB; a None in `rows` ends a list.

    If `rows` raises an error, the rows before it are yielded first.
    """
    batch: list[Row] = []
    size_bytes = 0
    try:
        for row in rows:
            if row is not None:
                batch.append(row)
                size_bytes += len(row.content)
            is_full = len(batch) >= BATCH_ROWS or size_bytes >= BATCH_BYTES
            if batch and (row is None or is_full):
                yield batch
                batch, size_bytes = [], 0
    except Exception:
        if batch:
            yield batch
        raise
    if batch:
        yield batch


def row_of(value: object, number: int, max_row_bytes: int) -> Row:
    """Converts a Python value to a row; to a bad row if it is not a JSON object.

    `data` is a copy with JSON values only: dates are ISO strings, decimals are strings, sets are
    sorted lists. The caller may change the original value afterwards.
    """
    try:
        content = msgspec.json.encode(value, enc_hook=plain_form)
    except (TypeError, ValueError, RecursionError) as error:
        problem = f"not JSON: {str(error) or type(error).__name__}"
        return Row(number, number, None, problem.encode("utf-8", "replace"), problem)
    if len(content) > max_row_bytes:
        return long_row(number, number, digest(content), len(content), max_row_bytes)
    data = _decode(content)
    if type(data) is not dict:
        return Row(number, number, None, content, not_an_object(data))
    if not _CONTAINERS.isdisjoint(map(type, data.values())) and sort_sets(value, data):
        content = msgspec.json.encode(data)
    return Row(number, number, data, content)


def sort_sets(value: object, data: object) -> bool:
    """Sorts the lists in `data` that were sets in `value`; returns whether there are any.

    A set's own order differs between processes, so the same row would differ between runs.
    """
    pairs: list[tuple[Any, Any]] = [(value, data)]
    sets = []
    # `pairs` grows in the loop. No recursion, because values may be nested deeper than calls may.
    for whole, plain in pairs:
        members = plain.values() if type(plain) is dict else plain
        if type(plain) is list and isinstance(whole, (set, frozenset)):
            sets.append(plain)
        if _CONTAINERS.isdisjoint(map(type, members)):
            continue
        found = zip(_members(whole, plain), members, strict=False)
        pairs += [pair for pair in found if type(pair[1]) in _CONTAINERS]
    # A set inside a set comes later in `pairs`, but must be sorted first.
    for plain in reversed(sets):
        plain.sort(key=msgspec.json.encode)
    return bool(sets)


def _members(whole: Any, plain: dict[str, Any] | list[Any]) -> Iterable[object]:
    """Returns the values in a container or record, in the order of its plain form."""
    if isinstance(whole, (dict, Mapping)):
        # Two keys may have the same plain form, such as 1 and "1".
        return whole.values() if len(whole) == len(plain) else ()
    if isinstance(plain, list):
        return whole if isinstance(whole, (list, tuple, set, frozenset)) else ()
    encoded = getattr(whole, "__struct_encode_fields__", ())
    fields = dict(zip(encoded, getattr(whole, "__struct_fields__", ()), strict=False))
    return [getattr(whole, fields.get(key, key), None) for key in plain]


def plain_form(value: Any) -> object:
    """Converts a value that msgspec cannot encode to one that it can; an `enc_hook` for msgspec.

    Raises TypeError if there is no such form.
    """
    name = type(value).__name__
    if name in ("NaTType", "NAType"):
        return None  # missing in pandas; `isoformat` of NaT returns "NaT"
    try:
        if isinstance(value, Mapping):
            return dict(value)
        if isinstance(value, Integral):
            return int(value)
        if isinstance(value, Real):
            return float(value)
        if isinstance(value, str):
            return str(value)
        if getattr(value, "dtype", None) == "datetime64[ns]":
            # numpy converts nanoseconds to numbers, but all coarser units to dates.
            value = value.astype("datetime64[us]")
        for method in _PLAIN_FORMS:
            to_plain = getattr(value, method, None)
            if callable(to_plain):
                return to_plain()
        if any(hasattr(type(value), name) for name in _TEXTS):
            return str(value)
    except Exception as error:
        # The value's own code may raise any exception, but callers catch only TypeError.
        raise TypeError(f"a {name} raised {type(error).__name__}: {error}") from error
    raise TypeError(f"a key or value of type {name} is not JSON serializable")


def long_row(number: int, line: int, content: bytes, size_bytes: int, limit_bytes: int) -> Row:
    """Returns the bad row for a row above the size limit; `content` is its digest."""
    problem = f"{_size(size_bytes, '.1f')} long, above the limit of {_size(limit_bytes, 'g')}"
    return Row(number, line, None, content, problem)


def _size(size_bytes: int, form: str) -> str:
    if size_bytes < _MEGABYTE:
        return f"{size_bytes} bytes"
    return f"{size_bytes / _MEGABYTE:{form}} MB"


def not_an_object(value: object) -> str:
    """Returns the problem of a row that is valid JSON but not an object."""
    return f"not an object but {_KINDS[type(value)]}"


def digest(content: bytes) -> bytes:
    """Returns the hex BLAKE2b digest that replaces the content of a row above the size limit."""
    return blake2b(content).hexdigest().encode()


def no_rows(name: str, hint: str = "") -> ConfigError:
    """Returns the error for an input without rows."""
    return ConfigError(f"no rows in {name}", hint=hint)


class Rows:
    """Base of most sources: counts the rows, and records whether it is closed."""

    _when_empty = ""  # the hint if there is no row
    _max_row_bytes = MAX_ROW_BYTES  # a longer row is a bad row

    def __init__(self, name: str, total_rows: int | None) -> None:
        self.name = name
        self.total_rows = total_rows
        self._number = 0
        self._is_closed = False

    def read_fraction(self) -> float | None:
        """Returns the share of the rows read so far, 0 to 1; None if their number is unknown."""
        return share_of(self._number, self.total_rows)

    def check(self) -> None:
        """Does nothing: there is no file."""

    def close(self) -> None:
        """Makes `batches` end before its next batch; the caller's own objects stay open."""
        self._is_closed = True

    def _end(self) -> None:
        """Raises ConfigError if there was no row, except after `close`."""
        if self._number == 0 and not self._is_closed:
            raise no_rows(self.name, self._when_empty)


class BlockingRows(Rows):
    """Base of sources that block. A subclass overrides `_rows` or `_batches`."""

    def batches(self) -> Iterator[list[Row]]:
        """Yields lists of 1 to 256 rows, see `Source`."""
        yield from self._read()
        self._end()

    def _read(self) -> Iterator[list[Row]]:
        """Yields the rows in lists. Raises CorruptInput, which says how many rows came before."""
        try:
            for batch in self._batches():
                if self._is_closed:
                    return
                yield batch
        except CorruptInput as error:
            error.where = f"after {counted(self._number, 'row')}"
            raise

    def _batches(self) -> Iterator[list[Row]]:
        return in_batches(self._rows())

    def _rows(self) -> Iterator[Row | None]:
        """Yields the rows in order, and None if the next row may have to be waited for."""
        raise NotImplementedError


def custom_id(row: Row) -> str | None:
    """Returns the row's `custom_id` as text; None if it has none.

    A number counts as its decimal digits. A whole float loses its decimals, because tables turn
    integers into floats if their column also has a null.
    """
    data = row.data
    value = data.get("custom_id") if data is not None else None
    if type(value) is str:
        return value or None
    if type(value) is float:
        is_whole = value.is_integer() and abs(value) < _MOST_WHOLE
        return str(int(value)) if is_whole else str(value)
    return str(value) if type(value) is int else None


def check_names(names: list[str], table: str) -> None:
    """Raises ConfigError if a column has no name, or if two columns have the same name."""
    hint = "give every column a unique name"
    for position, name in enumerate(names, start=1):
        if not name.strip():
            raise ConfigError(f"column {position} of {table} has no name", hint=hint)
    name, count = Counter(names).most_common(1)[0]
    if count > 1:
        raise ConfigError(f"{count} columns of {table} are named {name}", hint=hint)
