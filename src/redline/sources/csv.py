"""Reads rows of CSV and TSV with a header row.

A quote means different things in the two formats. In CSV (RFC 4180), a field that begins with a
quote ends with a quote, and may contain newlines. TSV, as registered with IANA, has no quotes and
one line per row, but spreadsheets and pandas write it with the quotes of CSV. Therefore a TSV line
is read with quotes if it then has as many fields as the header; otherwise quotes are plain
characters, as in `"6 inch`.
"""

from __future__ import annotations

import csv
import re
from collections import deque
from collections.abc import Iterator

import msgspec

from redline.errors import ConfigError
from redline.process import counted
from redline.sources.jsonl import LongLine, split_lines
from redline.sources.row import Row, check_names, long_row, no_rows
from redline.sources.text import ByteStream, StreamRows

# csv keeps its limit in a C long, which has 32 bits on some systems.
_MAX_FIELD = 2**31 - 1
_COUNTED_AT_ONCE = 500


class _TooLong(csv.Error):
    """Raised if the current record is above the size limit."""


class _Feed:
    """Feeds lines of text to csv.reader, and keeps the lines it took for the current record."""

    def __init__(self, stream: ByteStream, max_row_bytes: int) -> None:
        self._chunks = split_lines(stream, max_row_bytes)
        self._lines: deque[bytes | LongLine] = deque()
        self._max_row_bytes = max_row_bytes
        self.line = 0
        # The line at which the last record with an unclosed quote failed, and why it failed.
        self._failed_line = 0
        self._problem = ""
        self.start_record()

    def start_record(self) -> None:
        self.taken: list[bytes | LongLine] = []
        self.taken_bytes = 0
        self.is_utf8 = True
        self.is_at_end = False

    @property
    def has_lines(self) -> bool:
        """Whether the next line has been read already, so that taking it cannot block."""
        return bool(self._lines)

    @property
    def content(self) -> bytes:
        """The record's lines, joined; a line that is too long is replaced by its digest."""
        return b"\n".join(
            [line.digest if isinstance(line, LongLine) else line for line in self.taken]
        )

    @property
    def texts(self) -> Iterator[str]:
        """The record's lines as `next` returned them, except lines that are too long."""
        return (str(line, "utf-8", "replace") + "\n" for line in self.taken if type(line) is bytes)

    def keep(self, problem: str = "") -> str:
        """Reduces the failed record to its first line; its other lines are read again.

        problem: why it failed. Returns that reason, or the reason of an earlier failed record that
        included this line.
        """
        if self.line >= self._failed_line:
            self._failed_line, self._problem = self.line, problem
        self._lines.extendleft(reversed(self.taken))
        self.line -= len(self.taken)
        self.start_record()
        next(self)
        return self._problem

    def skip_whole(self, whole: re.Pattern[bytes]) -> int:
        """Skips the available lines that are each a whole record; returns how many are not blank.

        whole: matches a line that is a whole record.
        """
        lines, records = self._lines, 0
        available = len(lines)
        while lines and type(line := lines[0]) is bytes and (b'"' not in line or whole.match(line)):
            records += line.strip(b"\r") != b""
            lines.popleft()
        self.line += available - len(lines)
        return records

    def __iter__(self) -> _Feed:
        return self

    def __next__(self) -> str:
        # An earlier record failed at a later line, with a quote unclosed. If this record's quote is
        # unclosed here, it would fail at that line too, so it fails now. Otherwise, each line could
        # cause a read to the end of the file.
        if self.taken and self.line < self._failed_line:
            raise csv.Error
        while not self._lines:
            lines = next(self._chunks, None)
            if lines is None:
                self.is_at_end = True
                raise StopIteration
            self._lines.extend(lines)
        line = self._lines.popleft()
        self.line += 1
        # The newlines between the lines of a record count towards its size.
        between = bool(self.taken)
        self.taken.append(line)
        if isinstance(line, LongLine):
            self.taken_bytes += line.size_bytes + between
            raise _TooLong
        self.taken_bytes += len(line) + between
        if self.taken_bytes > self._max_row_bytes:
            raise _TooLong
        try:
            return line.decode() + "\n"
        except UnicodeDecodeError:
            self.is_utf8 = False
            return line.decode("utf-8", "replace") + "\n"


class CsvRows(StreamRows):
    """The rows of CSV or TSV with a header row; every value is a string.

    A row with too many or too few fields is a bad row. `batches` raises ConfigError if the header
    cannot be read or has an empty or a repeated name, if compressed data is cut short, or if there
    is no row.
    """

    _when_empty = "it has a header but no rows below it"

    def __init__(self, stream: ByteStream, delimiter: str) -> None:
        super().__init__(stream)
        self._delimiter = delimiter
        self._is_tsv = delimiter == "\t"

    def open(self) -> None:
        """Opens the input and reads its beginning, so that a bad file is refused at once."""
        self._stream.open()

    def _rows(self) -> Iterator[Row | None]:
        feed = self._feed()
        header = self._header(feed)
        for line, record in self._records(feed, len(header)):
            self._number += 1
            yield self._row(feed, line, header, record)
            if not feed.has_lines:
                yield None

    def counts(self) -> Iterator[int]:
        """Yields numbers that add up to the input's number of rows. Call it instead of `batches`.

        Raises ConfigError if the input or its header cannot be read.
        """
        try:
            feed = self._feed()
            columns = len(self._header(feed))
            # A line whose quotes are all closed is a record. This is three times as fast as csv.
            field = rb'(?:"(?:[^"]++|"")*+"|[^"%b]*+)' % self._delimiter.encode()
            whole = re.compile(rb"%b(?:%b%b)*+\r?$" % (field, self._delimiter.encode(), field))
            rows = 0
            while not self._stream.is_closed:
                rows += feed.skip_whole(whole)
                if rows >= _COUNTED_AT_ONCE:
                    yield rows
                    rows = 0
                feed.start_record()
                try:
                    rows += bool(self._fields(feed, columns))
                except StopIteration:
                    break
                except csv.Error:
                    rows += 1
            yield rows
        finally:
            self.close()

    def _feed(self) -> _Feed:
        """Returns the lines of the input, and sets `_reader` to read them."""
        # The limit applies to the whole process: it may be raised here, but not lowered.
        csv.field_size_limit(max(csv.field_size_limit(), min(self._max_row_bytes, _MAX_FIELD)))
        feed = _Feed(self._stream, self._max_row_bytes)
        self._reader = csv.reader(
            feed,
            delimiter=self._delimiter,
            quoting=csv.QUOTE_NONE if self._is_tsv else csv.QUOTE_MINIMAL,
            strict=True,
        )
        return feed

    def _header(self, feed: _Feed) -> list[str]:
        """Reads the column names from the first record that is not blank."""
        names: list[str] = []
        try:
            while not names:
                feed.start_record()
                names = self._fields(feed, None)
        except StopIteration:
            if self._stream.is_closed:
                return []
            raise no_rows(self.name) from None
        except csv.Error as error:
            if "new-line" in str(error):
                raise ConfigError(
                    f"the header of {self.name} has a CR without LF, as in files from old Macs",
                    hint=self._stream.command(r"tr '\r' '\n' <", ".lf.csv"),
                ) from error
            raise ConfigError(
                f"the first line of {self.name} is not a CSV header: "
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

    def _fields(self, feed: _Feed, columns: int | None) -> list[str]:
        """Returns the fields of the next record; an empty list for a blank line.

        columns: the header's number of fields; None to read the header itself. Raises StopIteration
        at the end, _TooLong, and csv.Error if the record is not valid CSV. An unclosed quote makes
        only its own line invalid; the lines after it are read again.
        """
        if self._is_tsv:
            try:
                fields = next(self._reader)
            except _TooLong:
                raise
            except csv.Error:
                # A CR within the line, which only a quoted field may contain.
                if quoted := self._quoted(feed, columns):
                    return quoted
                raise
            if any(field.startswith('"') for field in fields):
                return self._quoted(feed, columns) or fields
            return fields
        try:
            return next(self._reader)
        except _TooLong:
            if len(feed.taken) == 1:
                raise
            problem = f"a quote is opened and not closed within {self._max_row_bytes:,} bytes"
        except csv.Error:
            if len(feed.taken) == 1 and (fields := self._loose(*feed.texts)):
                return fields
            if feed.is_at_end:
                problem = "a quote is opened and never closed"
            else:
                problem = "a quote is opened and not closed where its field ends"
        raise csv.Error(feed.keep(problem))

    def _loose(self, line: str) -> list[str]:
        """Returns the fields of a line; a quote may close before its field ends.

        Returns an empty list if a quote is not closed.
        """
        lines = iter((line, ""))
        fields = next(csv.reader(lines, delimiter=self._delimiter))
        # csv.reader requests another line within one record only inside a quoted field.
        return [] if next(lines, None) is None else fields

    def _quoted(self, feed: _Feed, columns: int | None) -> list[str] | None:
        """Reads the TSV record with the quotes of CSV; returns None if its quotes are literal.

        If its first line is not a row by itself, a quoted field may continue over several lines.
        The last of them may look like a row, because it has all other fields if the quoted field is
        the first one; it then contains the closing quote. With only one column, every line would
        look like a row.
        """

        def looks_like_row(line: str) -> bool:
            return columns != 1 and line.count(self._delimiter) + 1 == columns

        def lines() -> Iterator[str]:
            is_row = any(map(looks_like_row, feed.texts))
            yield from feed.texts
            for line in feed:
                if columns is None or (looks_like_row(line) and (is_row or '"' not in line)):
                    return
                yield line

        try:
            fields = next(csv.reader(lines(), delimiter=self._delimiter, strict=True))
        except csv.Error:
            fields = []
        if fields and columns in (None, len(fields)):
            return fields
        feed.keep()
        return None

    def _records(self, feed: _Feed, columns: int) -> Iterator[tuple[int, list[str] | csv.Error]]:
        """Yields the number of each non-blank record's first line, and its fields or the error."""
        while not self._stream.is_closed:
            feed.start_record()
            line = feed.line + 1
            try:
                fields = self._fields(feed, columns)
            except StopIteration:
                return
            except csv.Error as error:
                yield line, error
            else:
                if fields:
                    yield line, fields

    def _row(self, feed: _Feed, line: int, header: list[str], record: list[str] | csv.Error) -> Row:
        """Returns the row of a record, good or bad."""
        if isinstance(record, _TooLong):
            size = feed.taken_bytes
            return long_row(self._number, line, feed.content, size, self._max_row_bytes)
        if not feed.is_utf8:
            problem = "not UTF-8"
        elif isinstance(record, csv.Error):
            problem = f"not CSV: {str(record).partition(' - ')[0]}"
        elif len(record) != len(header):
            problem = f"{counted(len(record), 'field')}, but the header names {len(header)}"
        else:
            data = dict(zip(header, record, strict=True))
            return Row(self._number, line, data, msgspec.json.encode(data))
        return Row(self._number, line, None, feed.content.strip(), problem)
