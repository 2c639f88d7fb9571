"""Finds the current lines of an output: at most one for each row, in the results or the failures.

A row has several lines if it was repeated, changed or retried, or if a run that ended early left a
line in both files. The current line is chosen according to the journal's rules:

  two results of equal content      the first; `redline repair` moves the second out
  two results of different content  the later one: the row was changed and sent again
  two failures                      the later one
  a result and a failure            the result: the row was retried

A run may be writing to both files. The failures are opened before the results, so a row that moves
from the failures to the results is not missed. Lines appended after the index is made are not read.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import NamedTuple

from redline.errors import JournalError
from redline.journal import KeySet, Output, Stretch, is_other, read_stretches

_LINE_BYTES = 1 << 16


class Place(NamedTuple):
    """A current line. number: counted from 0 in its file. begin: the offset of its first byte."""

    number: int
    key: int
    begin: int
    line: bytes


@dataclass(eq=False)
class FileIndex:
    """Indexes the lines of one file, and decides which of them are current.

    fd: the file, open as long as the index is used; None if there is no file. takes_later: decides
    from the content marks of two lines of a row, the earlier first, whether the later one is
    current. above: the file whose lines take precedence if a row has lines in both files.

    keys: the keys of all rows in the file; a key's mark is 1 + the number of the line that
    is current, or would be without the file above. current, repeated, outdated, damaged: the number
    of such lines. repeated: an earlier line of the row takes precedence. outdated: the row has a
    later line, or a line in the file above. damaged: the checksum is wrong. contested: the number
    of outdated lines that differ in content from the row's line in the file above. is_torn: the
    last line is incomplete, because it is still being written or a crash cut it off.

    The constructor reads the whole file. Memory: 30 to 60 bytes per line.
    """

    _fd: int | None
    _takes_later: Callable[[int, int], bool]
    _above: FileIndex | None = None

    def __post_init__(self) -> None:
        self.keys = KeySet()
        # By line number: a mark of the line's content, and whether the line is current.
        self._marks = array("I")
        self._is_current = bytearray()
        self.current = self.repeated = self.outdated = self.damaged = self.contested = 0
        self.is_torn = False
        for stretch in self._stretches():
            self._add(stretch)
        self.current = self._is_current.count(1)

    @property
    def lines(self) -> int:
        """The total number of lines, current or not."""
        return len(self._is_current)

    def mark_of(self, key: int) -> int:
        """Returns the mark of the row's content, by its current line; 0 if that is unknown."""
        number = self.keys.mark_of(key)
        return self._marks[number - 1] if number else 0

    def places(self) -> Iterator[Place]:
        """Yields the current lines, in the order of the file."""
        number = 0
        for stretch in self._stretches():
            last = number + len(stretch.lines)
            numbers, begins = range(number, last), stretch.offsets()
            # A damaged line has no key, so `zip` leaves it out.
            found = zip(numbers, stretch.keys, begins, stretch.lines, strict=False)
            # Lines appended after the index was made have no flag, so they are left out.
            yield from map(Place._make, compress(found, self._is_current[number:last]))
            number = last
            if number >= self.lines:
                return

    def _stretches(self) -> Iterable[Stretch]:
        return () if self._fd is None else read_stretches(self._fd)

    def line_at(self, begin: int) -> bytes:
        """Returns the line that begins at this byte."""
        assert self._fd is not None
        pieces: list[bytes] = []
        while piece := os.pread(self._fd, _LINE_BYTES, begin):
            head, newline, _ = piece.partition(b"\n")
            pieces.append(head + newline)
            if newline:
                break
            begin += len(piece)
        return b"".join(pieces)

    def _add(self, stretch: Stretch) -> None:
        first, count = self.lines, len(stretch.lines)
        if not stretch.keys:
            is_last = not stretch.lines[0].endswith(b"\n")
            self.is_torn |= is_last
            self.damaged += not is_last
            self._is_current.append(0)
            self._marks.append(0)
            return
        self._is_current += b"\1" * count
        self._marks.extend(stretch.marks())
        keys, numbers = stretch.keys, range(first + 1, first + count + 1)
        start = 0
        while (place := self.keys.add_all(keys, start)) < count:
            self.keys.mark(keys[start:place], numbers[start:place])
            self._add_again(keys[place], numbers[place])
            start = place + 1
        self.keys.mark(keys[start:], numbers[start:])
        if self._above is not None:
            self._drop(keys, first, self._above)

    def _add_again(self, key: int, number: int) -> None:
        """Adds another line of a row that already has one in this file."""
        earlier = self.keys.mark_of(key)
        if self._takes_later(self._marks[earlier - 1], self._marks[number - 1]):
            # If the row is in the file above, the earlier line is already counted.
            self.outdated += self._is_current[earlier - 1]
            self._is_current[earlier - 1] = 0
            self.keys.mark((key,), (number,))
        else:
            self._is_current[number - 1] = 0
            self.repeated += 1

    def _drop(self, keys: Sequence[int], first: int, above: FileIndex) -> None:
        """Marks lines as not current if their rows have a line in the file above."""
        for number, is_over in enumerate(map(above.keys.__contains__, keys), first):
            if is_over and self._is_current[number]:
                self._is_current[number] = 0
                self.outdated += 1
                mark = above.mark_of(keys[number - first])
                self.contested += is_other(mark, self._marks[number])


class CurrentLines:
    """Indexes both files of an output. results, failures: the index of each file."""

    def __init__(self, results: int | None, failures: int | None) -> None:
        self.results = FileIndex(results, is_other)
        self.failures = FileIndex(failures, lambda *_: True, self.results)

    @property
    def succeeded(self) -> int:
        return self.results.current

    @property
    def failed(self) -> int:
        return self.failures.current

    @property
    def rows(self) -> int:
        """The number of rows with an outcome."""
        return self.succeeded + self.failed

    @property
    def damaged(self) -> int:
        return self.results.damaged + self.failures.damaged

    @property
    def is_torn(self) -> bool:
        """Whether the last line of either file is incomplete."""
        return self.results.is_torn or self.failures.is_torn

    def __contains__(self, key: int) -> bool:
        return key in self.results.keys or key in self.failures.keys

    def mark_of(self, key: int) -> int:
        """Returns the mark of the row's content, by its current line; 0 if that is unknown."""
        index = self.results if key in self.results.keys else self.failures
        return index.mark_of(key)


@contextmanager
def current_lines(output: Output) -> Iterator[CurrentLines]:
    """Yields an output's current lines, readable until the `with` block ends. Blocks; never writes.

    A missing file counts as empty. Raises JournalError if a file cannot be read.
    """
    opened: list[int] = []
    try:
        # The failures first: see the module's docstring.
        failures = _opened(output.failed_path, opened)
        results = _opened(output.path, opened)
        yield CurrentLines(results, failures)
    finally:
        for fd in opened:
            os.close(fd)


def _opened(path: Path, opened: list[int]) -> int | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise JournalError(f"cannot read {path}: {error.strerror}") from error
    opened.append(fd)
    return fd
