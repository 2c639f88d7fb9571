"""Reads the raw bytes of an input: defines the interface, and implements it for files and stdin."""

from __future__ import annotations

import os
import select
import shlex
import stat
import sys
import threading
from operator import attrgetter
from pathlib import Path, PurePath
from zlib import crc32

from redline.errors import ConfigError

_POLL_MS = 200
_BLOCK_BYTES = 1024 * 1024


class CorruptInput(ConfigError):
    """Raised if the input breaks off, is damaged, or was changed while it was read.

    Errors of `batches` say in `where` how many rows came before.
    """


class Blocks:
    """The raw bytes of an input, in order.

    name: for messages to the user. path: the input's path; None if it has none.
    """

    name: str
    path: PurePath | None

    def open(self) -> None:
        """Opens the input. Raises ConfigError if that fails."""
        raise NotImplementedError

    def read(self, most_bytes: int) -> bytes:
        """Returns the next 1 to `most_bytes` bytes; b"" at the end, or once closed. Blocks.

        Raises CorruptInput if the input breaks off.
        """
        raise NotImplementedError

    def read_fraction(self) -> float | None:
        """Returns the share of the bytes read so far, 0 to 1; None if the size is unknown."""
        return None

    def check(self) -> None:
        """Raises CorruptInput if a local file no longer contains what was read from it. Blocks."""

    def close(self) -> None:
        """Closes the input, in any thread; a waiting `read` then returns soon."""
        raise NotImplementedError


class FileBlocks(Blocks):
    """The bytes of the file at `path`, or of stdin if `path` is None.

    begins_at: the byte offset at which to begin if stdin is a file; stdin's own file position then
    stays unchanged. None to read from that position.
    """

    def __init__(self, path: Path | None, *, begins_at: int | None = None) -> None:
        self.path: PurePath | None = path
        self.name = "stdin" if path is None else str(path)
        # Absolute, because the program may change its working folder while the file is read.
        self._place = None if path is None else os.path.abspath(path)
        self._fd = -1
        self._is_closed = False
        self._begins_at = begins_at
        self._size_bytes: int | None = None
        self._read_bytes = 0
        # For a regular file: where reading began, the file's metadata at that time, and a checksum
        # of what was read.
        self._start = 0
        self._seen: os.stat_result | None = None
        self._crc = 0
        self._lock = threading.Lock()
        self._poll: select.poll | None = None

    def open(self) -> None:
        """Opens the file or stdin. Raises ConfigError if that fails."""
        fd, info = opened_fd(self._place, self.name)
        with self._lock:
            if self._is_closed and self.path is not None:
                os.close(fd)
                return
            self._fd = fd
        if stat.S_ISREG(info.st_mode):
            self._size_bytes = info.st_size
            self._start = os.lseek(fd, 0, os.SEEK_CUR)
            self._seen = info
        else:
            self._poll = select.poll()
            self._poll.register(fd, select.POLLIN)

    def read(self, most_bytes: int) -> bytes:
        """Returns the next bytes as soon as there are any; b"" at the end, or once closed.

        Raises CorruptInput if the file cannot be read, if it was truncated or replaced since it was
        opened, or, at its end, if the bytes already read have changed.
        """
        # A read of an idle pipe cannot be cancelled by another thread; a wait in steps can.
        while self._poll is not None and not self._is_closed and not self._poll.poll(_POLL_MS):
            pass
        with self._lock:
            if self._is_closed:
                return b""
            try:
                if self._begins_at is None:
                    block = os.read(self._fd, most_bytes)
                else:
                    at = self._begins_at + self._read_bytes
                    block = os.pread(self._fd, most_bytes, at)
            except OSError as error:
                raise CorruptInput(
                    f"cannot continue reading {self.name}: {reason(error)}", where="after 0 rows"
                ) from error
            if self._seen is not None:
                self._check_size(self._seen)
                if not block:
                    self._check_content(self._seen)
        self._read_bytes += len(block)
        self._crc = crc32(block, self._crc)
        return block

    def check(self) -> None:
        """Raises CorruptInput if a file no longer contains what was read, except after `close`."""
        with self._lock:
            if self._seen is not None and not self._is_closed:
                self._check_size(self._seen)
                self._check_content(self._seen)

    def _check_size(self, seen: os.stat_result) -> None:
        """Raises CorruptInput if the file was truncated or replaced.

        A removed file is no error: its content is still there, and is read to its end.
        """
        if os.fstat(self._fd).st_size < seen.st_size:
            raise self._changed("was truncated")
        try:
            named = os.stat(self._place) if self._place is not None else seen
        except OSError:
            return
        if not os.path.samestat(named, seen):
            raise self._changed("was replaced by another file")

    def _check_content(self, seen: os.stat_result) -> None:
        """Raises CorruptInput if the bytes already read have changed; rows may be appended.

        Reads these bytes again only if the file's size or times have changed; the times may change
        without the content.
        """
        info = os.fstat(self._fd)
        state = attrgetter("st_size", "st_mtime_ns", "st_ctime_ns")
        if state(info) == state(seen):
            return
        crc, at, end = 0, self._start, self._start + self._read_bytes
        while at < end and (block := os.pread(self._fd, min(_BLOCK_BYTES, end - at), at)):
            crc, at = crc32(block, crc), at + len(block)
        if at < end or crc != self._crc:
            raise self._changed("was overwritten")
        self._seen = info

    def _changed(self, how: str) -> CorruptInput:
        return CorruptInput(
            f"{self.name} {how} while its rows were being processed",
            hint="the results are for the rows as they were read; with -o, the same command then "
            "processes the rows that are new or changed",
        )

    def read_fraction(self) -> float | None:
        """Returns the bytes read divided by the file's size, 0 to 1; None for a pipe."""
        return share_of(self._read_bytes, self._size_bytes)

    def close(self) -> None:
        """Closes the file, but not stdin. A `read` that waits for a pipe returns within 0.2 s."""
        self._is_closed = True
        with self._lock:
            if self._fd >= 0 and self.path is not None:
                os.close(self._fd)
            self._fd = -1


def share_of(done: int, total: int | None) -> float | None:
    """Returns the share of the total that is done, 0 to 1; None if the total is unknown."""
    if total is None:
        return None
    return min(1.0, done / total) if total else 1.0


def opened_fd(path: str | None, name: str) -> tuple[int, os.stat_result]:
    """Opens the file at `path`, or stdin if it is None; returns the descriptor and the metadata.

    name: for messages. Raises ConfigError if the file cannot be opened.
    """
    if path is None and sys.stdin is None:
        raise ConfigError("cannot read stdin: it is closed", hint="pass a file instead")
    try:
        if path is None:
            fd = sys.stdin.fileno()
        else:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        return fd, os.fstat(fd)
    except PermissionError as error:
        raise ConfigError(
            f"no permission to read {name}", hint=f"chmod u+r {shlex.quote(name)}"
        ) from error
    except (OSError, ValueError, AttributeError) as error:
        raise ConfigError(f"cannot read {name}: {reason(error)}") from error


def reason(error: Exception) -> str:
    """Returns the system's text for the error, without the error number and the path."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
