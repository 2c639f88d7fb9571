"""One append-only file of sealed lines: read back, repaired at its tail, appended to, synced."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from redline.errors import JournalError
from redline.run.record import Entry, read_entry

_BLOCK_BYTES = 1 << 20


class ResultsFile:
    """Lines of results or failures. Not thread-safe; one writer at a time.

    Opening reads every line once: `on_entry` hears of each with its byte offset. A torn last line,
    which a sudden death leaves behind, is cut off. A damaged line before the last raises
    JournalError, because something else has written to the file.
    """

    def __init__(self, path: Path, on_entry: Callable[[Entry, int], None]) -> None:
        self.path = path
        self.lines = 0
        self.syncs = 0
        is_new = not path.exists()
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise JournalError(
                f"cannot open {path}: {error.strerror}",
                hint="choose a place that can be written with -o",
            ) from error
        try:
            self._size = self._load(on_entry)
            os.ftruncate(self._fd, self._size)
            os.lseek(self._fd, self._size, os.SEEK_SET)
            if is_new:
                sync_folder(path.parent)
        except BaseException:
            os.close(self._fd)
            raise

    def append(self, data: bytes) -> None:
        """Writes whole lines and makes them durable. Blocks.

        Raises JournalError, with the file cut back to its last whole line, where the disk is full
        or broken.
        """
        try:
            written = 0
            while written < len(data):
                written += os.write(self._fd, data[written:] if written else data)
            os.fsync(self._fd)
        except OSError as error:
            self._cut_back()
            raise JournalError(
                f"cannot write {self.path}: {error.strerror}",
                hint="make room on that disk, then run the same command again: it continues",
            ) from error
        self._size += len(data)
        self.syncs += 1

    def close(self) -> None:
        os.close(self._fd)

    def _cut_back(self) -> None:
        try:
            os.ftruncate(self._fd, self._size)
            os.lseek(self._fd, self._size, os.SEEK_SET)
        except OSError:
            # The tail stays torn; the next run cuts it off.
            return

    def _load(self, on_entry: Callable[[Entry, int], None]) -> int:
        """The length up to the last whole line."""
        end = 0
        for offset, line in read_lines(self._fd):
            is_whole = line.endswith(b"\n")
            entry = read_entry(line[:-1]) if is_whole else None
            if entry is None:
                if offset + len(line) < os.fstat(self._fd).st_size:
                    raise JournalError(
                        f"line {self.lines + 1} of {self.path} is damaged",
                        where=f"byte {offset:,}",
                        hint="something else wrote to this file: take that line out to have its "
                        "row done again, or start over with --restart",
                    )
                return end
            on_entry(entry, offset)
            self.lines += 1
            end = offset + len(line)
        return end


def read_lines(fd: int) -> Iterator[tuple[int, bytes]]:
    """Each line with its newline and byte offset; the last may lack the newline."""
    rest = b""
    offset = 0
    at = 0
    while block := os.pread(fd, _BLOCK_BYTES, at):
        at += len(block)
        *lines, rest = (rest + block).split(b"\n")
        for line in lines:
            yield offset, line + b"\n"
            offset += len(line) + 1
    if rest:
        yield offset, rest


def sync_folder(folder: Path) -> None:
    """Makes names in `folder` durable; a file's own fsync does not cover its name."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def replace_file(path: Path, write: Callable[[int], None]) -> None:
    """Puts a new file in place of `path` at once: a reader sees the old one or the new one.

    write: gets the descriptor of a file beside it. Raises JournalError.
    """
    beside = path.with_name(path.name + ".new")
    try:
        fd = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        try:
            write(fd)
            os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(beside, path)
        sync_folder(path.parent)
    except OSError as error:
        raise JournalError(f"cannot write {path}: {error.strerror}") from error
