"""Keeps the rows of batches on disk: one file per part, in the output's state folder.

Each line has one row: its identity and data, the number of batches it was in, its worst-case cost,
and its request as the provider gets it. So the results can be read without the input, and reading
them takes memory for the keys of only one part at a time, about 100 bytes per row.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from redline.apis import BOM, RequestLine
from redline.calls import Request
from redline.calls.cost import NOTHING, Amount
from redline.job.work import Picked
from redline.journal import mark_of
from redline.process import telling
from redline.sources import Row, custom_id

# Small, because a hundred files may be open for writing at a time.
_BUFFER_BYTES = 128 * 1024
_LINES_AT_ONCE = 256
# A line begins with the row's key and mark, so that these can be read without parsing the rest.
_KEY_FROM = len(b'{"key":"')
_KEY_TO = _KEY_FROM + 16
_MARKED = b'","mark":"'
_MARK_FROM = _KEY_TO + len(_MARKED)


class Kept(msgspec.Struct, kw_only=True):
    """One row in the file of a part. key: in hex; it is the row's custom_id at the provider.

    mark: of the row's content, in hex, see `identity`; empty in lines of older versions. row, line:
    the row's number and its line in the input. attempts: the number of batches that the row was in.
    worst: the amount reserved for the row. data: the row's columns, as JSON. request: the row's
    line in the uploaded file.
    """

    key: str
    mark: str = ""
    row: int
    line: int
    attempts: int = 0
    worst: Amount = NOTHING
    data: msgspec.Raw
    request: msgspec.Raw

    @classmethod
    def of(cls, picked: Picked, request: Request, worst: Amount = NOTHING) -> Kept:
        """Returns the row with its request.

        Raises TypeError, ValueError or RecursionError if they cannot be encoded as JSON.
        """
        key = f"{picked.key:016x}"
        asked = RequestLine(key, "POST", request.url, msgspec.Raw(_ENCODE(request.body)))
        return cls(
            key=key,
            mark=f"{picked.mark:08x}",
            row=picked.row.number,
            line=picked.row.line,
            worst=worst,
            data=msgspec.Raw(_ENCODE(picked.row.data)),
            request=msgspec.Raw(_ENCODE(asked)),
        )

    @property
    def picked(self) -> Picked:
        """The row as it was read from the input, but with empty `content`."""
        data: dict[str, Any] = msgspec.json.decode(self.data)
        row = Row(self.row, self.line, data, b"")
        mark = int(self.mark, 16) if self.mark else mark_of(row)
        return Picked(row, int(self.key, 16), False, mark, custom_id(row))

    def asked(self, output_path: tuple[str | int, ...] = ()) -> Request:
        """Returns the request that was sent to the provider."""
        line: dict[str, Any] = msgspec.json.decode(self.request)
        return Request(url=line["url"], body=line["body"], output_path=output_path)


_ENCODE = msgspec.json.Encoder().encode
_KEPT = msgspec.json.Decoder(Kept)


class PartWriter:
    """Writes the file of a new part; the caller ends with `finish` or `drop`.

    The constructor, `add` and `finish` raise JournalError if the file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows = self.inputs = 0
        self.upload_bytes = 0
        self.worst = NOTHING
        with telling(path):
            path.parent.mkdir(exist_ok=True)
            self._file = path.open("wb", buffering=_BUFFER_BYTES)

    def add(self, kept: Kept, inputs: int = 1) -> None:
        """Adds a row with this many inputs; only `finish` waits until the file is on disk."""
        with telling(self.path):
            self._file.write(_ENCODE(kept) + b"\n")
        self.rows += 1
        self.inputs += inputs
        self.upload_bytes += len(kept.request) + 1
        self.worst = self.worst.plus(kept.worst)

    def finish(self) -> None:
        """Closes the file and makes its contents durable, but not its name. Blocks."""
        with telling(self.path):
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()

    def drop(self) -> None:
        """Removes the file, whose rows are then read from the input again."""
        # Closing writes the rest of the buffer, which fails on a full disk.
        with suppress(OSError):
            self._file.close()
        self.path.unlink(missing_ok=True)


class PartReader:
    """Finds the rows of a part by key or line. The caller closes it.

    The constructor reads the whole file, and blocks. Raises JournalError if it cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        with telling(path):
            self._file: BinaryIO = path.open("rb")
        self._offsets: dict[int, int] = {}
        at = 0
        for line in self._file:
            self._offsets[int(line[_KEY_FROM:_KEY_TO], 16)] = at
            at += len(line)
        self._keys = array("Q", self._offsets)  # of the lines, in order

    def __len__(self) -> int:
        return len(self._offsets)

    def pop(self, name: str) -> int | None:
        """Takes the row with this custom_id; returns its byte offset in the file.

        Returns None if there is no such row, or if it was taken before.
        """
        try:
            return self._offsets.pop(int(name, 16), None)
        except ValueError:
            return None

    def pop_line(self, number: int) -> int | None:
        """Takes the row on this line of the uploaded file, counted from 1; otherwise like `pop`."""
        if not 0 < number <= len(self._keys):
            return None
        return self._offsets.pop(self._keys[number - 1], None)

    def rest(self) -> array[int]:
        """Takes all remaining rows; returns their offsets."""
        offsets = array("Q", self._offsets.values())
        self._offsets.clear()
        return offsets

    def read(self, offset: int) -> Kept:
        """Returns the row at this offset; reads one line, usually from the system's cache."""
        self._file.seek(offset)
        return _KEPT.decode(self._file.readline())

    def close(self) -> None:
        self._file.close()


def marked_keys_of(path: Path) -> Iterator[tuple[int, int]]:
    """Yields the key and the mark of each row of a part; an unknown mark is 0. Blocks."""
    with path.open("rb") as file:
        for line in file:
            has_mark = line[_KEY_TO:_MARK_FROM] == _MARKED
            mark = int(line[_MARK_FROM : _MARK_FROM + 8], 16) if has_mark else 0
            yield int(line[_KEY_FROM:_KEY_TO], 16), mark


def rows_at(path: Path, offsets: Iterable[int]) -> list[Kept]:
    """Returns the rows of a part at these offsets. Blocks."""
    found = []
    with path.open("rb") as file:
        for offset in offsets:
            file.seek(offset)
            found.append(_KEPT.decode(file.readline()))
    return found


def upload_of(path: Path) -> bytes:
    """Returns the contents of the file that is uploaded to the provider for a part. Blocks."""
    with path.open("rb") as file:
        return b"".join(bytes(_KEPT.decode(line).request) + b"\n" for line in file)


def chunks_of(path: Path) -> Iterator[list[bytes]]:
    """Yields lists of up to 256 lines of a results file, without blank lines and BOMs. Blocks."""
    with path.open("rb") as file:
        bare = filter(None, (line.strip().removeprefix(BOM) for line in file))
        while lines := list(islice(bare, _LINES_AT_ONCE)):
            yield lines


def count_lines(paths: Iterable[Path]) -> int:
    """Returns the number of non-blank lines in these files. Blocks."""
    return sum(len(lines) for path in paths for lines in chunks_of(path))


def is_torn(path: Path) -> bool:
    """Whether the last line of a results file is incomplete. Blocks."""
    last = b"{}"
    for lines in chunks_of(path):
        last = lines[-1]
    return not last.endswith(b"}")


def drop(paths: Iterable[Path]) -> None:
    """Removes these files; missing ones are ignored. Blocks."""
    for path in paths:
        path.unlink(missing_ok=True)
