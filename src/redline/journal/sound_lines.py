"""Reading back the lines of a results file: which are sound, and to which rows they belong.

There are two ways to the same answer. `_keys_of` checks all lines of a block at once, in half the
time, and returns None unless each of them is sound and of the common form. If one is not, `_key_of`
checks each line by itself. A line is also sound if it ends with CRLF, to which git or an editor may
change it.
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

# What the lines of line_writer, those of failure_writer and the batch format begin with.
_BEGINNINGS = (b'{"v":', b'{"id":"redline_')
# In this version, both have the key at the same place, so that nothing after it need be parsed.
_KEYED = (b'{"v":%d,"hash":"' % VERSION, b'{"id":"redline_')
_KEY_FROM, _KEY_TO = len(_KEYED[0]), len(_KEYED[0]) + 16
_TAIL, _TAIL_END = b',"crc":"', b'"}\n'
_TAIL_BYTES = len(_TAIL) + 8 + len(_TAIL_END)
_MOST_KEY = 2**64 - 1
# Before the checksum of a named row's line.
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
    """Lines that follow one another: all of them sound, or a single one that is not.

    begin, end: byte offsets in the file. share: the share of the file up to their end, above 0 and
    at most 1. lines: with their newlines, which the file's last may lack. keys: those of the lines'
    rows, as in `identity`; none if the line is not sound.
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
        """Yields the key of each line, and where the line begins and ends; nothing if not sound."""
        return zip(self.keys, pairwise(self.offsets()), strict=False)

    def row(self, place: int) -> int:
        """Returns the row number in the line at this place."""
        return _TOLD.decode(self.lines[place]).row

    def marks(self) -> Sequence[int]:
        """Returns for each key the mark of the row's content, as in `identity`; 0 if unknown.

        Lines without one are of unnamed rows, or older than marks.
        """
        if not self.keys:
            return []
        ends = [line[-_TAIL_BYTES - _MARK_BYTES : -_TAIL_BYTES] for line in self.lines]
        marks = _numbers("I", _between(_MARK, ends, _MARK_END))
        return list(map(_mark_of, self.lines)) if marks is None else marks


def read_stretches(fd: int, start: int = 0) -> Iterator[Stretch]:
    """Yields all lines of a file, in order; holds about one block, or one line, in memory.

    start: the offset of the first line to read.
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
    """Whether a crash during the write of a line can have left this: its beginning, or zeros."""
    begins = any(data.startswith(text) or text.startswith(data) for text in _BEGINNINGS)
    return begins or not data.strip(b"\0")


def _blocks(fd: int, start: int) -> Iterator[tuple[int, int, list[bytes]]]:
    """Yields the begin, the end and the lines that end in one block."""
    # The pieces of a line that continues in the next block: joined once, however long it gets.
    pieces: list[bytes] = []
    begin = at = start
    while block := os.pread(fd, _BLOCK_BYTES, at):
        at += len(block)
        # Five times as fast as bytes.split, which checks one byte after the other.
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


def _key_of(line: bytes) -> int | None:
    """Returns the key of the line's row; None if the line is not sound.

    Its checksum is wrong, its end is missing, or it is nested too deeply to be read.
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
    """Returns the mark in the line, or that of the row that the line repeats; otherwise 0."""
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
    """Returns the lines' keys; None if a line may not be sound or begins in another way."""
    beginning = lines[0][:_KEY_FROM]
    if beginning not in _KEYED:
        return None
    tails = [line[-_TAIL_BYTES:] for line in lines]
    names = _between(beginning, [line[: _KEY_TO + 1] for line in lines], b'"')
    sums = _between(_TAIL, tails, _TAIL_END)
    keys, told = _numbers("Q", names), _numbers("I", sums)
    if keys is None or told is None or sums is None or sums != sums.lower():
        return None
    # The CRC of a whole line equals the stated CRC of its body continued over its tail: so no line
    # is copied to remove its tail.
    is_sound = list(map(crc32, lines)) == list(map(crc32, tails, told))
    return keys if is_sound else None


def _numbers(kind: Literal["I", "Q"], digits: bytes | None) -> array[int] | None:
    """Reads hex digits as numbers of 32 or 64 bits; None if they are none."""
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
    """Joins what is between `before` and `after` in the parts; None if a part lacks these."""
    inner = [part[len(before) : -len(after)] for part in parts]
    is_so = before + (after + before).join(inner) + after == b"".join(parts)
    return b"".join(inner) if is_so else None


def read_results(path: Path, kind: type[T], *, is_optional: bool = False) -> Iterator[T]:
    """Yields each line as a `kind`. A torn last line is left out: its row is not done yet.

    is_optional: a file that does not exist has no lines. Raises JournalError for a line that is
    damaged or nested too deeply and for a file that cannot be read, msgspec.ValidationError for a
    line of another kind.
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
                        hint="remove the line: the same command then processes its row again",
                    ) from error
                yield from found
            elif stretch.lines[0].endswith(b"\n"):
                raise JournalError(
                    f"a line of {path} is damaged",
                    where=f"byte {stretch.begin:,}",
                    hint=f"`redline repair {path}` moves such lines out",
                )


def read_keys(path: Path) -> KeySet:
    """Reads the keys of the file's lines, with the marks of their last lines.

    Returns an empty set if there is no file. Raises JournalError for one that cannot be read.
    """
    keys = KeySet()
    if path.exists():
        with opened_lines(path) as fd:
            for stretch in read_stretches(fd):
                keys.add_each(stretch.keys)
                keys.mark(stretch.keys, stretch.marks())
    return keys


def has_sound_line(path: Path) -> bool:
    """Whether any line of the file is redline's. Raises JournalError if it cannot be read."""
    with opened_lines(path) as fd:
        return any(stretch.keys for stretch in read_stretches(fd))


@contextmanager
def opened_lines(path: Path) -> Iterator[int]:
    """Opens the file for reading, as a descriptor, while entered. Raises JournalError."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise JournalError(f"cannot read {path}: {error.strerror}") from error
    try:
        yield fd
    finally:
        os.close(fd)
