"""Writes a trace file, to which each run appends."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterable
from pathlib import Path

import msgspec

from redline.errors import ConfigError
from redline.process import write_all
from redline.timeline.records import Record
from redline.timeline.trace import check_begin

_ENCODE = msgspec.json.Encoder()
_END_BYTES = 64 * 1024


class TraceFile:
    """An open trace file, locked for this process until it is closed.

    On a file system without locks, it is not locked.
    An incomplete last record, as a killed process may leave behind, is removed. Raises ConfigError
    for a file that cannot be written, is not a trace, was written by a newer version of redline, or
    is being written by another process.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._using = threading.Lock()
        where = f"--trace {path}"
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
            try:
                self._lock(where)
                check_begin(self._fd, path)
                self._cut()
            except BaseException:
                os.close(self._fd)
                raise
        except OSError as error:
            raise ConfigError(
                f"the trace cannot be written: {error.strerror}",
                where=where,
                hint="choose a file in a folder that exists and is writable",
            ) from error

    def write(self, records: Iterable[Record]) -> None:
        """Appends the records. Blocks; raises OSError."""
        lines = _ENCODE.encode_lines(records)
        with self._using:
            write_all(self._fd, [lines])

    def close(self) -> None:
        """Closes the file, so that another process may write it."""
        # A thread that is still writing must not reach a new file with the same descriptor.
        with self._using:
            fd, self._fd = self._fd, -1
        os.close(fd)

    def _lock(self, where: str) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                "another run is writing this trace", where=where, hint="choose another file"
            ) from None
        except OSError:
            # The file system does not support locks.
            return

    def _cut(self) -> None:
        """Removes everything after the last complete line."""
        end = size = os.fstat(self._fd).st_size
        while end > 0:
            begin = max(0, end - _END_BYTES)
            found = os.pread(self._fd, end - begin, begin).rfind(b"\n")
            if found >= 0:
                end = begin + found + 1
                break
            end = begin
        if end < size:
            os.ftruncate(self._fd, end)
