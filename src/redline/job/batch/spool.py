"""Rows that are with the Batch API, on disk: one file for each part, in the output's state folder.

A line is one row: its identity, the number of batches it was in, its worst-case cost, and its
request as the provider gets it. So the results can be read without the input, and memory holds the
keys of only one part at a time, about 100 bytes a row.
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

# Small, because a hundred files may be written at a time.
_BUFFER_BYTES = 128 * 1024
_LINES_AT_ONCE = 256
# A line begins with its key and its mark, so that these can be read without parsing the rest.
_KEY_FROM = len(b'{"key":"')
_KEY_TO = _KEY_FROM + 16
_MARKED = b'","mark":"'
_MARK_FROM = _KEY_TO + len(_MARKED)


class Kept(msgspec.Struct, kw_only=True):
    """One row. key: in hex; also its custom_id at the provider. attempts: batches it was in.

    mark: of its content, in hex, see `identity`; lines of older versions have none. worst:
    picodollars and tokens that are reserved for the row. request: its line in the uploaded file.
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
        """Returns the row with the request for it. Raises TypeError or ValueError if not JSON."""
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
        """The row, as its source gave it."""
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
    """The file of a new part. Raises JournalError if it cannot be written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows = 0
        self.upload_bytes = 0
        self.worst = NOTHING
        with telling(path):
            path.parent.mkdir(exist_ok=True)
            self._file = path.open("wb", buffering=_BUFFER_BYTES)

    def add(self, kept: Kept) -> None:
        """Adds a row. Writes of the buffer go to the system's cache, not to the disk."""
        with telling(self.path):
            self._file.write(_ENCODE(kept) + b"\n")
        self.rows += 1
        self.upload_bytes += len(kept.request) + 1
        self.worst = self.worst.plus(kept.worst)

    def finish(self) -> None:
        """Makes the contents of the file durable, not its name. Blocks."""
        with telling(self.path):
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()

    def drop(self) -> None:
        """Removes the file: its rows are to be read again."""
        # Closing writes the rest of the buffer, which fails on a full disk.
        with suppress(OSError):
            self._file.close()
        self.path.unlink(missing_ok=True)


class PartReader:
    """The rows of a part by their keys. Opening reads the file once, and blocks."""

    def __init__(self, path: Path) -> None:
        with telling(path):
            self._file: BinaryIO = path.open("rb")
        self._offsets: dict[int, int] = {}
        at = 0
        for line in self._file:
            self._offsets[int(line[_KEY_FROM:_KEY_TO], 16)] = at
            at += len(line)
        self._keys = array("Q", self._offsets)  # of its lines

    def __len__(self) -> int:
        return len(self._offsets)

    def pop(self, name: str) -> int | None:
        """Takes the row of this name and returns its offset.

        None if there is none, or it was taken before.
        """
        try:
            return self._offsets.pop(int(name, 16), None)
        except ValueError:
            return None

    def pop_line(self, number: int) -> int | None:
        """Takes the row in this line of the uploaded file, counted from 1; see `pop`."""
        if not 0 < number <= len(self._keys):
            return None
        return self._offsets.pop(self._keys[number - 1], None)

    def rest(self) -> array[int]:
        """Takes all rows that were not taken; returns their offsets."""
        offsets = array("Q", self._offsets.values())
        self._offsets.clear()
        return offsets

    def read(self, offset: int) -> Kept:
        """Returns the row at this offset; reads one line, mostly from the system's cache."""
        self._file.seek(offset)
        return _KEPT.decode(self._file.readline())

    def close(self) -> None:
        self._file.close()


def marked_keys_of(path: Path) -> Iterator[tuple[int, int]]:
    """Yields the keys of a part's rows with their marks, 0 if those are unknown. Blocks."""
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
    """Yields the lines of a file of results that are not blank, up to 256 at a time. Blocks."""
    with path.open("rb") as file:
        bare = filter(None, (line.strip().removeprefix(BOM) for line in file))
        while lines := list(islice(bare, _LINES_AT_ONCE)):
            yield lines


def count_lines(paths: Iterable[Path]) -> int:
    """Returns the number of lines of these files that are not blank. Blocks."""
    return sum(len(lines) for path in paths for lines in chunks_of(path))


def is_torn(path: Path) -> bool:
    """Whether the last line of a file of results is incomplete. Blocks."""
    last = b"{}"
    for lines in chunks_of(path):
        last = lines[-1]
    return not last.endswith(b"}")


def drop(paths: Iterable[Path]) -> None:
    """Removes those of these files that exist. Blocks."""
    for path in paths:
        path.unlink(missing_ok=True)
