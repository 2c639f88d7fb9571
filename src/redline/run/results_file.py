"""One append-only file of sealed lines: read back, repaired at its tail, written to, synced."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from redline.errors import JournalError
from redline.run.record import Entry, is_torn, read_entry

_BLOCK_BYTES = 1 << 20
_HINT = "make room on that disk, then run the same command again: it continues"


class ResultsFile:
    """Lines of results or failures. One writer at a time; only `sync` may run beside it.

    Opening reads every line once: `on_entry` hears of each with its byte offset. A torn last line,
    which a sudden death leaves behind, is cut off. Any other damaged line raises JournalError,
    because something else has written to the file.
    """

    def __init__(self, path: Path, on_entry: Callable[[Entry, int], None]) -> None:
        self.path = path
        self.lines = 0
        self._pending: list[bytes] = []
        self._is_synced = True
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
            if not self._size:
                # A process that made the file may have died before it made its name durable.
                sync_folder(path.parent)
        except BaseException:
            os.close(self._fd)
            raise

    def add(self, line: bytes) -> None:
        """Takes one whole line, which `flush` writes."""
        self._pending.append(line)

    def flush(self) -> None:
        """Appends the lines taken. They survive the process's death, not yet the machine's.

        Raises JournalError, with the file cut back to its last whole line, where the disk is full
        or broken.
        """
        if not self._pending:
            return
        lines = self._pending[0] if len(self._pending) == 1 else b"".join(self._pending)
        self._pending.clear()
        written = 0
        try:
            while written < len(lines):
                written += os.write(self._fd, lines[written:] if written else lines)
        except OSError as error:
            self._size += lines.rfind(b"\n", 0, written) + 1
            self._cut_back()
            raise self._failed(error) from error
        finally:
            self._is_synced = False
        self._size += len(lines)

    def sync(self) -> None:
        """Makes all lines written so far durable. Blocks; may run beside `write`, in a thread."""
        if self._is_synced:
            return
        # Before the call: a line written meanwhile may or may not be covered by it.
        self._is_synced = True
        try:
            os.fsync(self._fd)
        except OSError as error:
            raise self._failed(error) from error

    def close(self) -> None:
        os.close(self._fd)

    def _failed(self, error: OSError) -> JournalError:
        return JournalError(f"cannot write {self.path}: {error.strerror}", hint=_HINT)

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
                is_last = offset + len(line) == os.fstat(self._fd).st_size
                if not is_last or not is_torn(line):
                    raise JournalError(
                        f"line {self.lines + 1} of {self.path} is damaged",
                        where=f"byte {offset:,}",
                        hint="something else wrote to this file: `redline repair` on the results "
                        "file takes such lines out, then the same command does their rows again; "
                        "or start over with --restart",
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
    beside = _beside(path)
    with telling(path):
        try:
            fd = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
            try:
                write(fd)
                os.fsync(fd)
            finally:
                os.close(fd)
            os.replace(beside, path)
        except OSError:
            # On a full disk, the unfinished file is what takes the room.
            beside.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


def drop_unfinished(path: Path) -> None:
    """Removes what a death in `replace_file` left beside `path`. Raises JournalError."""
    with telling(path):
        _beside(path).unlink(missing_ok=True)


@contextmanager
def telling(path: Path) -> Iterator[None]:
    """Turns an OSError of the block into the JournalError that `path` cannot be written."""
    try:
        yield
    except OSError as error:
        raise JournalError(f"cannot write {path}: {error.strerror}", hint=_HINT) from error


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.unfinished")
