"""Reads rows of JSON Lines, and splits any text into lines in bounded memory."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import suppress
from io import BytesIO
from itertools import count
from operator import itemgetter
from typing import NamedTuple

import msgspec

from redline.errors import ConfigError
from redline.sources.row import BATCH_ROWS, Row, digest, long_row, not_an_object
from redline.sources.text import ByteStream, StreamRows

_POSITION = re.compile(r" \(byte (\d+)\)$")
_decode = msgspec.json.Decoder().decode
_without_newline = itemgetter(slice(None, -1))


class LongLine(NamedTuple):
    """The digest and the size of a line above the size limit, in place of the line."""

    digest: bytes
    size_bytes: int


class _PartialLine:
    """A line whose end has not been read yet. Above `max_bytes`, only its digest is kept."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._kept = bytearray()
        self._digest: hashlib.blake2b | None = None
        self.size_bytes = 0

    def add(self, piece: bytes) -> None:
        self.size_bytes += len(piece)
        if self._digest is not None:
            self._digest.update(piece)
            return
        self._kept += piece
        if self.size_bytes > self._max_bytes:
            self._digest = hashlib.blake2b(self._kept)
            self._kept = bytearray()

    def whole(self) -> bytes | LongLine:
        """Returns the complete line; call it once the last piece has been added."""
        if self._digest is None:
            return bytes(self._kept)
        return LongLine(self._digest.hexdigest().encode(), self.size_bytes)


def split_lines(stream: ByteStream, max_line_bytes: int) -> Iterator[list[bytes | LongLine]]:
    """Yields the lines that end in each chunk, without the newline; a CR before it stays.

    A line longer than `max_line_bytes` becomes a LongLine. At most one chunk and one line of that
    length are in memory.
    """
    partial = _PartialLine(max_line_bytes)
    for chunk in stream.chunks():
        # Faster than bytes.split, which checks byte by byte.
        ended = list(BytesIO(chunk))
        last = b"" if chunk.endswith(b"\n") else ended.pop()
        if ended:
            lines: list[bytes | LongLine] = list(map(_without_newline, ended))
            partial.add(ended[0][:-1])
            if max(map(len, ended)) > max_line_bytes:
                lines = [_bounded(line[:-1], max_line_bytes) for line in ended]
            lines[0] = partial.whole()
            partial = _PartialLine(max_line_bytes)
            yield lines
        partial.add(last)
    if partial.size_bytes and not stream.is_closed:
        yield [partial.whole()]


def _bounded(line: bytes, max_bytes: int) -> bytes | LongLine:
    return line if len(line) <= max_bytes else LongLine(digest(line), len(line))


class LineRows(StreamRows):
    """The rows of JSON Lines: one object per line; blank lines are skipped.

    A line that is not a JSON object is a bad row. `batches` raises ConfigError if the input
    begins like one JSON array or, in a .json file, like one object over many lines, if compressed
    data is cut short, or if there is no row.
    """

    def __init__(self, stream: ByteStream) -> None:
        super().__init__(stream)
        self._line = 0

    def open(self) -> None:
        """Opens the input and reads its beginning, so that a bad file is refused at once.

        Raises ConfigError.
        """
        self._stream.open()
        start = self._stream.first.lstrip()
        if start.startswith(b"[") and not _is_row_of_many(start):
            what, command = "one JSON array", "jq -c '.[]'"
        elif self._is_json_file() and start.partition(b"\n")[0].strip() == b"{":
            what, command = "JSON over many lines", "jq -c ."
        else:
            return
        self._stream.close()
        raise ConfigError(
            f"{self.name} is {what}, not one row per line",
            hint=self._stream.command(command, ".jsonl"),
        )

    def counts(self) -> Iterator[int]:
        """Yields numbers that add up to the input's number of rows. Call it instead of `batches`.

        Raises ConfigError if the input cannot be read.
        """
        begun = _PartialLine(self._max_row_bytes)
        try:
            for chunk in self._stream.chunks():
                first, end = chunk.find(b"\n") + 1, chunk.rfind(b"\n") + 1
                if end:
                    begun.add(chunk[: first - 1])
                    yield _is_row(begun.whole()) + self._count_whole(chunk[first:end])
                    begun = _PartialLine(self._max_row_bytes)
                begun.add(chunk[end:])
            yield int(_is_row(begun.whole()))
        finally:
            self.close()

    def _count_whole(self, lines: bytes) -> int:
        """Returns the number of rows in complete lines."""
        blank = filter(bytes.isspace, BytesIO(lines))
        skipped = sum(len(line) - 1 <= self._max_row_bytes for line in blank)
        return lines.count(b"\n") - skipped

    def _batches(self) -> Iterator[list[Row]]:
        """Yields the rows of each chunk of at most 1 MB, in lists of 1 to 256 rows."""
        self.open()
        for lines in split_lines(self._stream, self._max_row_bytes):
            for start in range(0, len(lines), BATCH_ROWS):
                batch = lines[start : start + BATCH_ROWS]
                rows = self._plain_rows_of(batch)
                if rows is None:
                    rows = self._any_rows_of(batch)
                if rows:
                    yield rows

    def _plain_rows_of(self, lines: list[bytes | LongLine]) -> list[Row] | None:
        """Returns the rows if each line is a good row; otherwise None, without side effects."""
        try:
            # A LongLine raises a TypeError, because it is not bytes.
            texts = list(map(bytes.strip, lines))  # type: ignore[arg-type]
            values = list(map(_decode, texts))
        except (TypeError, ValueError, RecursionError):
            return None
        if set(map(type, values)) != {dict}:
            return None
        numbers, places = count(self._number + 1), count(self._line + 1)
        self._number += len(lines)
        self._line += len(lines)
        return list(map(Row, numbers, places, values, texts))

    def _any_rows_of(self, lines: list[bytes | LongLine]) -> list[Row]:
        number, at = self._number, self._line
        rows: list[Row] = []
        for line in lines:
            at += 1
            if isinstance(line, LongLine):
                number += 1
                rows.append(long_row(number, at, line.digest, line.size_bytes, self._max_row_bytes))
                continue
            text = line.strip()
            if not text:
                continue
            number += 1
            try:
                data = _decode(text)
            except (ValueError, RecursionError) as error:
                rows.append(Row(number, at, None, text, _problem(text, error)))
                continue
            if type(data) is dict:
                rows.append(Row(number, at, data, text))
            else:
                rows.append(Row(number, at, None, text, not_an_object(data)))
        self._number, self._line = number, at
        return rows

    def _is_json_file(self) -> bool:
        path = self._stream.path
        return path is not None and ".json" in (suffix.lower() for suffix in path.suffixes[-2:])


def _is_row(line: bytes | LongLine) -> bool:
    """Whether the line is a row, good or bad, and not a blank line to be skipped."""
    return isinstance(line, LongLine) or line.strip() != b""


def _is_row_of_many(start: bytes) -> bool:
    """Whether the first line is complete JSON and more lines follow: a bad row, not an array."""
    line, _, rest = start.partition(b"\n")
    if not rest.strip():
        return False
    try:
        _decode(line)
    except (ValueError, RecursionError):
        return False
    return True


def _problem(text: bytes, error: Exception) -> str:
    """Returns why a line is not JSON, with the position in bytes, from 0, if it is known."""
    try:
        text.decode()
    except UnicodeDecodeError as bad:
        return f"not UTF-8 at byte {bad.start}"
    if isinstance(error, RecursionError):
        return "JSON that is nested too deeply to be read"
    if str(error) == "Input data was truncated":
        with suppress(ValueError):
            # Python accepts half of a surrogate pair; msgspec expects the other half.
            json.loads(text)
            return "not JSON: half of a UTF-16 surrogate pair"
        return f"not JSON: it ends too early at byte {len(text)}"
    reason = str(error).removeprefix("JSON is malformed: ")
    return "not JSON: " + _POSITION.sub(r" at byte \1", reason)
