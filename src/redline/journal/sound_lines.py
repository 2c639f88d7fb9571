"""Reads back the lines of a results file: which are sound, and to which rows they belong.

Lines are checked in two ways, with the same result. `_keys_of` checks all lines of a block at once,
in half the time, and returns None unless each line is sound and of the common form. If it returns
None, `_key_of` checks each line by itself. A line that ends with CRLF is sound too: git or an
editor may have changed its newline.
"""

from __future__ import annotations

import os
import sys
from array import array
from binascii import unhexlify
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Literal, TypeVar
from zlib import crc32

import msgspec

from redline.errors import JournalError
from redline.journal.identity import KeySet, mark_of
from redline.journal.lines import VERSION
from redline.sources import Row

T = TypeVar("T")

# Small enough for the lines of a block to stay in the processor's cache while they are checked.
_BLOCK_BYTES = 1 << 18

# The beginnings of lines: of `line_writer` and `failure_writer`, and in the batch format.
_BEGINNINGS = (b'{"v":', b'{"id":"redline_')
# In this version, both formats have the key at the same offset, so nothing need be parsed.
_KEYED = (b'{"v":%d,"hash":"' % VERSION, b'{"id":"redline_')
_KEY_FROM, _KEY_TO = len(_KEYED[0]), len(_KEYED[0]) + 16
_TAIL, _TAIL_END = b',"crc":"', b'"}\n'
_TAIL_BYTES = len(_TAIL) + 8 + len(_TAIL_END)
_MOST_KEY = 2**64 - 1
# These enclose the mark, which comes before the checksum in a named row's line.
_MARK, _MARK_END = b',"row_hash":"', b'"'
_MARK_BYTES = len(_MARK) + 8 + len(_MARK_END)
_INPUT, _NAMELESS = b',"input":{', b'"custom_id":null'


class _Told(msgspec.Struct):
    hash: str
    row: int = 0


class _Asked(msgspec.Struct):
    input: dict[str, Any]


_TOLD, _ASKED = msgspec.json.Decoder(_Told), msgspec.json.Decoder(_Asked)


class Stretch(msgspec.Struct):
    """Consecutive lines of a file: all of them sound, or a single one that is not.

    begin, end: byte offsets in the file. share: the share of the file up to `end`, above 0, at most
    1. lines: with their newlines, which the last line of the file may lack. keys: the keys of the
    lines' rows, as in `identity`; empty if the line is not sound.
    """

    begin: int
    end: int
    share: float
    lines: list[bytes]
    keys: array[int]

    def offsets(self) -> Iterator[int]:
        """Yields the offset of each line, then the end of the last one."""
        return accumulate(map(len, self.lines), initial=self.begin)

    def bounds(self) -> Iterator[tuple[int, tuple[int, int]]]:
        """Yields each line's key and its (begin, end) offsets; nothing if the line is not sound."""
        return zip(self.keys, pairwise(self.offsets()), strict=False)

    def row(self, place: int) -> int:
        """Returns the row number in the line at this index."""
        return _TOLD.decode(self.lines[place]).row

    def marks(self) -> Sequence[int]:
        """Returns for each key the mark of the row's content, as in `identity`; 0 if unknown.

        Lines of unnamed rows have no mark, and neither do lines of older versions of redline.
        """
        if not self.keys:
            return []
        ends = [line[-_TAIL_BYTES - _MARK_BYTES : -_TAIL_BYTES] for line in self.lines]
        marks = _numbers("I", _between(_MARK, ends, _MARK_END))
        return list(map(_mark_of, self.lines)) if marks is None else marks


def read_stretches(fd: int, start: int = 0) -> Iterator[Stretch]:
    """Yields all lines of a file, in order; holds about one block, or one long line, in memory.

    start: the offset of the first line to read. Raises JournalError if the file cannot be read.
    """
    size = os.fstat(fd).st_size
    for begin, end, lines in _blocks(fd, start):
        share = end / max(end, size)
        keys = _keys_of(lines)
        if keys is not None:
            yield Stretch(begin, end, share, lines, keys)
            continue
        at = begin
        for line in lines:
            key = _key_of(line)
            found = array("Q", [] if key is None else [key])
            yield Stretch(at, at + len(line), share, [line], found)
            at += len(line)


def is_torn(data: bytes) -> bool:
    """Whether a crash during the write of a line can leave this data: its beginning, or zeros."""
    begins = any(data.startswith(text) or text.startswith(data) for text in _BEGINNINGS)
    return begins or not data.strip(b"\0")


def _blocks(fd: int, start: int) -> Iterator[tuple[int, int, list[bytes]]]:
    """Yields, per block, the begin and end offsets of the lines that end in it, and the lines."""
    # The pieces of a line that continues in the next block, joined only once the line is complete.
    pieces: list[bytes] = []
    begin = at = start
    while block := _read(fd, at):
        at += len(block)
        # Five times as fast as bytes.split, which checks byte by byte.
        lines = list(BytesIO(block))
        rest = b"" if block.endswith(b"\n") else lines.pop()
        if lines:
            lines[0] = b"".join((*pieces, lines[0]))
            pieces.clear()
            yield begin, at - len(rest), lines
            begin = at - len(rest)
        if rest:
            pieces.append(rest)
    if pieces:
        yield begin, at, [b"".join(pieces)]


def _read(fd: int, at: int) -> bytes:
    try:
        return os.pread(fd, _BLOCK_BYTES, at)
    except OSError as error:
        raise JournalError(
            f"cannot read the results or the failures: {error.strerror}",
            where=f"byte {at:,}",
            hint="check the disk of both files, then run the same command again",
        ) from error


def _key_of(line: bytes) -> int | None:
    """Returns the key of the line's row; None if the line is not sound.

    A line is not sound if its checksum is wrong, its end is missing, or its key cannot be read. In
    usual lines, the key has a fixed place; any other line is parsed, and must not be nested too
    deeply.
    """
    line = _as_written(line)
    body, tail = line[:-_TAIL_BYTES], line[-_TAIL_BYTES:]
    if tail != b"%s%08x%s" % (_TAIL, crc32(body), _TAIL_END):
        return None
    try:
        if line.startswith(_KEYED) and line[_KEY_TO : _KEY_TO + 1] == b'"':
            key = int(line[_KEY_FROM:_KEY_TO], 16)
        else:
            key = int(_TOLD.decode(line).hash, 16)
    except (ValueError, RecursionError):
        return None
    return key if 0 <= key <= _MOST_KEY else None


def _as_written(line: bytes) -> bytes:
    return line[:-2] + b"\n" if line.endswith(b"\r\n") else line


def _mark_of(line: bytes) -> int:
    """Returns the mark in the line, or the mark of the `input` in the line; 0 if it has neither."""
    end = _as_written(line)[-_TAIL_BYTES - _MARK_BYTES : -_TAIL_BYTES]
    if end.startswith(_MARK) and end.endswith(_MARK_END):
        try:
            return int(end[len(_MARK) : -len(_MARK_END)], 16)
        except ValueError:
            return 0
    if _INPUT not in line or _NAMELESS in line:
        return 0
    try:
        return mark_of(Row(0, 0, _ASKED.decode(line).input, b""))
    except (msgspec.DecodeError, RecursionError):
        return 0


def _keys_of(lines: list[bytes]) -> array[int] | None:
    """Returns the lines' keys; None if any line begins differently or may not be sound."""
    beginning = lines[0][:_KEY_FROM]
    if beginning not in _KEYED:
        return None
    tails = [line[-_TAIL_BYTES:] for line in lines]
    names = _between(beginning, [line[: _KEY_TO + 1] for line in lines], b'"')
    sums = _between(_TAIL, tails, _TAIL_END)
    keys, told = _numbers("Q", names), _numbers("I", sums)
    if keys is None or told is None or sums is None or sums != sums.lower():
        return None
    # A line is sound if its CRC equals the CRC stated in it, continued over its tail. Compared this
    # way, no line is copied to remove its tail.
    is_sound = list(map(crc32, lines)) == list(map(crc32, tails, told))
    return keys if is_sound else None


def _numbers(kind: Literal["I", "Q"], digits: bytes | None) -> array[int] | None:
    """Reads hex digits as numbers of 32 (I) or 64 bits (Q); None if any is not a hex digit."""
    if digits is None:
        return None
    try:
        numbers = array(kind, unhexlify(digits))
    except ValueError:
        return None
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers


def _between(before: bytes, parts: list[bytes], after: bytes) -> bytes | None:
    """Joins what is between `before` and `after` in each part; None if a part lacks either."""
    inner = [part[len(before) : -len(after)] for part in parts]
    is_so = before + (after + before).join(inner) + after == b"".join(parts)
    return b"".join(inner) if is_so else None


def read_results(path: Path, kind: type[T], *, is_optional: bool = False) -> Iterator[T]:
    """Yields each line decoded as a `kind`; skips a torn last line, whose row is not done yet.

    is_optional: treat a file that does not exist as empty. Raises JournalError for a line that is
    damaged or nested too deeply and for a file that cannot be read, msgspec.ValidationError for a
    line that is not a `kind`.
    """
    if is_optional and not path.exists():
        return
    decode = msgspec.json.Decoder(kind).decode
    with opened_lines(path) as fd:
        for stretch in read_stretches(fd):
            if stretch.keys:
                try:
                    found = list(map(decode, stretch.lines))
                except RecursionError as error:
                    raise JournalError(
                        f"a line of {path} is nested too deeply to be read",
                        where=f"at byte {stretch.begin:,} or after it",
                        hint="remove the line: the run's command then processes its row again",
                    ) from error
                yield from found
            elif stretch.lines[0].endswith(b"\n"):
                raise JournalError(
                    f"a line of {path} is damaged",
                    where=f"byte {stretch.begin:,}",
                    hint="`redline repair` on the results file moves such lines out",
                )


def read_keys(path: Path) -> KeySet:
    """Reads the keys of the file's lines; the mark of a key is the one in its last line.

    Returns an empty set if there is no file. Raises JournalError if the file cannot be read.
    """
    keys = KeySet()
    if path.exists():
        with opened_lines(path) as fd:
            for stretch in read_stretches(fd):
                keys.add_each(stretch.keys)
                keys.mark(stretch.keys, stretch.marks())
    return keys


def has_sound_line(path: Path) -> bool:
    """Whether the file has any sound line. Raises JournalError if the file cannot be read."""
    with opened_lines(path) as fd:
        return any(stretch.keys for stretch in read_stretches(fd))


@contextmanager
def opened_lines(path: Path) -> Iterator[int]:
    """Opens the file for reading as a descriptor, inside a `with`. Raises JournalError."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise JournalError(f"cannot read {path}: {error.strerror}") from error
    try:
        yield fd
    finally:
        os.close(fd)
