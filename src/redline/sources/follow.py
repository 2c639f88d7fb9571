"""Reads rows of a file that is still being written: its existing lines, then each new line.

What may happen to the file, and what then happens to its rows:

it grows                    complete lines become rows at once; a line without its newline waits
another file gets its name  the old file is read until it has been quiet for 2 s, because a writer
                            may keep writing to it for a moment; then the new file is read
several files get its name  each that keeps it for 50 ms is opened, even if nothing is being read,
                            and is read in its turn
its name is removed         the file is still read, and a new file with that name is awaited
it becomes shorter          the run ends, even if nothing is being read: what was cut off before it
                            was read is lost
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path, PurePath

from redline.errors import ConfigError
from redline.sources.blocks import Blocks, CorruptInput, opened_fd, reason
from redline.sources.jsonl import LineRows
from redline.sources.row import Row
from redline.sources.text import ByteStream

# The interval of checks: a file that has the name for a shorter time may be missed. 20 checks per
# second cost 0.1 ms of CPU time.
POLL_S = 0.05
# A writer that is notified of a new file, as by logrotate, may need this long to switch to it.
SETTLED_S = 2.0


class FollowedFile(Blocks):
    """Blocks that wait at a file's end for more; each `open` begins the next file with that name.

    Blocks consist of complete lines, unless a line is longer than a block. When another file has
    the name, they end with the rest of the last line. The constructor opens the first file, because
    the name may pass to another file before the first row is read; it raises ConfigError if the
    file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path: PurePath | None = path
        self.name = str(path)
        # Absolute, because the program may change its working folder while the file is followed.
        self._place = os.path.abspath(path)
        self._closing = threading.Event()
        self._lock = threading.RLock()
        self._fd = opened_fd(self._place, self.name)[0]
        # False until the first `open`, whose file the constructor has opened.
        self._is_begun = False
        # Later files with that name, in order; open already, so that they can be read in turn.
        self._next_fds: deque[int] = deque()
        # By descriptor: the largest size seen, and the first smaller size seen after it.
        self._most_bytes: dict[int, int] = {}
        self._cut_to: dict[int, int] = {}
        self._begin()
        threading.Thread(target=self._watch, name="redline-name", daemon=True).start()

    @property
    def is_closed(self) -> bool:
        return self._closing.is_set()

    def open(self) -> None:
        """Begins the next file with the name. Raises ConfigError if it cannot be opened."""
        with self._lock:
            if not self._is_begun:
                self._is_begun = True
                return
            self._let_go()
            if self._next_fds:
                fd = self._next_fds.popleft()
            else:
                fd = opened_fd(self._place, self.name)[0]
            if self.is_closed:
                os.close(fd)
                return
            self._fd = fd
            self._begin()

    def read(self, most_bytes: int) -> bytes:
        """Waits for lines and returns them; b"" if another file has followed, or once closed.

        Raises CorruptInput if the file was truncated or cannot be read.
        """
        while True:
            with self._lock:
                if self._fd < 0:
                    return b""
                try:
                    block = self._next(most_bytes)
                except OSError as error:
                    raise CorruptInput(
                        f"cannot continue reading {self.name}: {reason(error)}",
                        where="after 0 rows",
                    ) from error
            if block is not None:
                return block
            if self._closing.wait(POLL_S):
                return b""

    def close(self) -> None:
        """Closes all files; a waiting `read` returns at once."""
        self._closing.set()
        with self._lock:
            self._let_go()
            while self._next_fds:
                os.close(self._next_fds.popleft())

    def _begin(self) -> None:
        self._at = 0
        self._seen_bytes = 0
        self._replaced_s: float | None = None
        self._has_name = True

    def _let_go(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            # The next file may get the same descriptor.
            self._most_bytes.pop(self._fd, None)
            self._cut_to.pop(self._fd, None)
        self._fd = -1

    def _next(self, most_bytes: int) -> bytes | None:
        """Returns the bytes that can be read now; b"" at the file's end, None to wait for more."""
        self._look()
        size = os.fstat(self._fd).st_size
        if (cut_to := self._cut_to.get(self._fd)) is not None:
            raise CorruptInput(
                f"{self.name} was truncated to {cut_to:,} bytes while it was being followed",
                where="after 0 rows",
                hint="rows that had not been read are lost; the same command reads the file from "
                "its beginning. Configure log rotation to rename the file instead of truncating it",
            )
        if size != self._seen_bytes:
            self._seen_bytes = size
            self._replaced_s = None
            if block := self._lines(most_bytes):
                return block
        if not self._has_ended():
            return None
        rest = os.pread(self._fd, most_bytes, self._at)
        self._at += len(rest)
        return rest

    def _lines(self, most_bytes: int) -> bytes:
        """Returns the next complete lines, or a block of a longer line; b"" if none is complete."""
        block = os.pread(self._fd, most_bytes, self._at)
        end = block.rfind(b"\n") + 1
        if not end and len(block) == most_bytes:
            end = most_bytes
        self._at += end
        # More complete lines may follow after this block.
        self._seen_bytes = self._at if end else self._seen_bytes
        return block[:end]

    def _has_ended(self) -> bool:
        """Whether another file has the name, and this file has been quiet for SETTLED_S."""
        if self._has_name or not self._next_fds:
            self._replaced_s = None
            return False
        now_s = time.monotonic()
        if self._replaced_s is None:
            self._replaced_s = now_s
        return now_s - self._replaced_s >= SETTLED_S

    def _watch(self) -> None:
        """Checks for files that get the name or become shorter, until closed."""
        while not self._closing.wait(POLL_S):
            self._look()

    def _look(self) -> None:
        """Opens the file that now has the name, if it is a new one.

        Before that, checks whether an open file has become shorter.
        """
        with self._lock:
            if self._fd < 0 or self.is_closed:
                return
            try:
                self._look_at_sizes()
                found = os.stat(self._place)
                self._has_name = os.path.samestat(found, os.fstat(self._fd))
                last = self._next_fds[-1] if self._next_fds else self._fd
                if self._has_name or os.path.samestat(found, os.fstat(last)):
                    return
                fd, found = opened_fd(self._place, self.name)
            except (ConfigError, OSError):
                # At the moment, no file has the name, or the new file is not readable yet.
                return
            known = (self._fd, *self._next_fds)
            if any(os.path.samestat(found, os.fstat(other)) for other in known):
                os.close(fd)
            else:
                self._next_fds.append(fd)
                self._most_bytes[fd] = found.st_size

    def _look_at_sizes(self) -> None:
        """Records open files that have become shorter, as they may grow again before being read."""
        for fd in (self._fd, *self._next_fds):
            size = os.fstat(fd).st_size
            # Since the last check, the file may have grown, been read and become shorter.
            read_bytes = self._at if fd == self._fd else 0
            most_bytes = max(self._most_bytes.get(fd, 0), read_bytes)
            if size < most_bytes:
                self._cut_to.setdefault(fd, size)
            self._most_bytes[fd] = max(most_bytes, size)


class FollowedRows(LineRows):
    """The rows of JSON Lines in a file that is still being written; they end with `close`.

    `Row.line` counts from 1 in each file that has had the name; `Row.number` keeps counting.
    """

    def __init__(self, path: Path) -> None:
        self._file = FollowedFile(path)
        super().__init__(ByteStream(self._file))

    def batches(self) -> Iterator[list[Row]]:
        """Yields lists of 1 to 256 rows, each row as soon as its line is complete."""
        while not self._is_closed:
            yield from self._read()
            # Begin the next file with that name.
            self._line = 0
            self._stream = ByteStream(self._file)
