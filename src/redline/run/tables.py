"""Rows of CSV and TSV, and what every table asks of its column names."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator

import msgspec

from redline.errors import ConfigError
from redline.run.lines import LongLine, split_lines
from redline.run.source_blocks import CorruptInput
from redline.run.source_bytes import ByteStream
from redline.run.source_row import Batch, Row, digest, long_row, no_rows

# csv keeps its limit in a C long, which has 32 bits on some systems.
_MAX_FIELD = 2**31 - 1


class _TooLong(Exception):
    """The record at hand is above the size limit."""


class _Feed:
    """The text lines that csv.reader pulls, and what it took for the record at hand."""

    def __init__(self, stream: ByteStream, max_row_bytes: int) -> None:
        self._chunks = split_lines(stream, max_row_bytes)
        self._lines: Iterator[bytes | LongLine] = iter(())
        self._lines_left = 0
        self._max_row_bytes = max_row_bytes
        self.line = 0
        self.start_record()

    def start_record(self) -> None:
        self.taken: list[bytes] = []
        self.taken_bytes = 0
        self.is_utf8 = True
        self.is_at_end = False

    @property
    def has_lines(self) -> bool:
        """Whether the next line is at hand, so that taking it cannot block."""
        return self._lines_left > 0

    def __iter__(self) -> _Feed:
        return self

    def __next__(self) -> str:
        while not self._lines_left:
            lines = next(self._chunks, None)
            if lines is None:
                self.is_at_end = True
                raise StopIteration
            self._lines, self._lines_left = iter(lines), len(lines)
        line = next(self._lines)
        self._lines_left -= 1
        self.line += 1
        if isinstance(line, LongLine):
            self.taken_bytes += line.size_bytes + bool(self.taken)
            self.taken.append(line.digest)
            raise _TooLong
        # Between the lines of a record stands a newline that belongs to it.
        self.taken_bytes += len(line) + bool(self.taken)
        self.taken.append(line)
        if self.taken_bytes > self._max_row_bytes:
            raise _TooLong
        try:
            return line.decode() + "\n"
        except UnicodeDecodeError:
            self.is_utf8 = False
            return line.decode("utf-8", "replace") + "\n"


class CsvRows:
    """The rows of CSV or TSV with a header row; every value is a string.

    A row with too many or too few fields is a bad row. Raises ConfigError where the header has
    an empty or a repeated name, the input is cut short, or there is no row.
    """

    def __init__(self, stream: ByteStream, delimiter: str, max_row_bytes: int) -> None:
        self.name = stream.name
        self.total_rows: int | None = None
        self._stream = stream
        self._delimiter = delimiter
        self._max_row_bytes = max_row_bytes
        self._number = 0

    def open(self) -> None:
        """Reads the beginning, so that a wrong file is refused before the run starts."""
        self._stream.open()

    def batches(self) -> Iterator[list[Row]]:
        """Lists of 1 to 256 rows, at once what the chunk at hand holds."""
        # The limit is one for the process: it may be raised here, but not lowered for others.
        csv.field_size_limit(max(csv.field_size_limit(), min(self._max_row_bytes, _MAX_FIELD)))
        feed = _Feed(self._stream, self._max_row_bytes)
        reader = csv.reader(feed, delimiter=self._delimiter)
        batch = Batch()
        try:
            header = self._header(reader, feed)
            while True:
                if batch.rows and (batch.is_full or not feed.has_lines):
                    yield batch.take()
                row = self._next_row(reader, feed, header)
                if row is None or self._stream.is_closed:
                    break
                batch.add(row)
        except CorruptInput as error:
            if batch.rows:
                yield batch.take()
            error.where = f"after {self._number} rows"
            raise
        if batch.rows:
            yield batch.take()
        if self._number == 0 and not self._stream.is_closed:
            raise no_rows(self.name, "it holds a header and nothing below it")

    def read_fraction(self) -> float | None:
        """Share of the file's bytes that is read, 0 to 1; None for a pipe."""
        return self._stream.read_fraction()

    def close(self) -> None:
        """Closes the file; `batches` ends at its next row."""
        self._stream.close()

    def _header(self, reader: Iterator[list[str]], feed: _Feed) -> list[str]:
        """The column names from the first line that is not blank."""
        names: list[str] = []
        try:
            while not names:
                feed.start_record()
                names = next(reader)
        except StopIteration:
            if self._stream.is_closed:
                return []
            raise no_rows(self.name) from None
        except (_TooLong, csv.Error) as error:
            raise ConfigError(
                f"the first line of {self.name} is no CSV header: "
                f"{error if str(error) else 'it is too long'}",
                hint="the first line must name the columns",
            ) from error
        if not feed.is_utf8:
            raise ConfigError(
                f"{self.name} is not in UTF-8",
                hint=self._stream.command("iconv -f WINDOWS-1252 -t UTF-8", ".utf8.csv"),
            )
        check_names(names, self.name)
        return names

    def _next_row(self, reader: Iterator[list[str]], feed: _Feed, header: list[str]) -> Row | None:
        """The next row, good or bad; None at the end."""
        while True:
            feed.start_record()
            line = feed.line + 1
            fields: list[str] = []
            problem = None
            try:
                fields = next(reader)
            except StopIteration:
                return None
            except _TooLong:
                return self._long_row(feed, line)
            except csv.Error as error:
                problem = f"not CSV: {str(error).partition(' - ')[0]}"
            if fields or problem:
                break
        self._number += 1
        # csv.reader asks for another line within one record only inside a quoted field.
        if feed.is_at_end:
            problem = "a quote is opened and never closed"
        elif not feed.is_utf8:
            problem = "not UTF-8"
        elif problem is None and len(fields) != len(header):
            plural = "field" if len(fields) == 1 else "fields"
            problem = f"{len(fields)} {plural} where the header names {len(header)}"
        if problem is not None:
            return Row(self._number, line, None, b"\n".join(feed.taken).strip(), problem)
        data = dict(zip(header, fields, strict=True))
        return Row(self._number, line, data, msgspec.json.encode(data))

    def _long_row(self, feed: _Feed, line: int) -> Row:
        self._number += 1
        content = feed.taken[0] if len(feed.taken) == 1 else b"\n".join(feed.taken)
        if len(feed.taken) > 1:
            content = digest(content)
        return long_row(self._number, line, content, feed.taken_bytes, self._max_row_bytes)


def check_names(names: list[str], table: str) -> None:
    """Raises ConfigError where a column has no name, or two have the same."""
    hint = "give every column a name of its own"
    for position, name in enumerate(names, start=1):
        if not name.strip():
            raise ConfigError(f"column {position} of {table} has no name", hint=hint)
    name, count = Counter(names).most_common(1)[0]
    if count > 1:
        raise ConfigError(f"{count} columns of {table} are named {name}", hint=hint)
