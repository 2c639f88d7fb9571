"""Rows of a file that is still written to: what is there, and then each line as it comes.

What may befall the file, and what becomes of its rows:

  it grows                    whole lines are rows at once; one without its newline is not yet
  another file has its name   the old one is read until it has been quiet for 2 s, then the new one
                              from its beginning: a writer may go on in the old one for a moment
  its name is gone            it is read on, and a new file of that name is waited for
  it becomes shorter          the run ends: what was cut off before it was read is lost
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path, PurePath

from redline.run.lines import LineRows
from redline.run.source_blocks import CorruptInput, opened_fd, reason
from redline.run.source_bytes import ByteStream
from redline.run.source_row import Row

POLL_S = 0.25
# A writer that is told of a new file, as by logrotate, may need so long to begin with it.
SETTLED_S = 2.0


class FollowedFile:
    """Blocks that wait at the end of a file for more; each `open` begins the file of that name.

    They are whole lines, but for one that is longer than a block. They end when another file has
    the name, and then with what is left of a last line.
    """

    def __init__(self, path: Path) -> None:
        self.path: PurePath | None = path
        self.name = str(path)
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._fd = -1
        self._begin()

    @property
    def is_closed(self) -> bool:
        return self._closing.is_set()

    def open(self) -> None:
        """Raises ConfigError where the file cannot be opened."""
        fd, _ = opened_fd(self.path)
        with self._lock:
            self._let_go()
            if self.is_closed:
                os.close(fd)
                return
            self._fd = fd
            self._begin()

    def read(self, most_bytes: int) -> bytes:
        """The next lines, waited for; none where the file has ended, or once it is closed.

        Raises CorruptInput where the file was cut, or cannot be read.
        """
        while True:
            with self._lock:
                if self._fd < 0:
                    return b""
                try:
                    block = self._next(most_bytes)
                except OSError as error:
                    raise CorruptInput(
                        f"cannot read on in {self.name}: {reason(error)}", where="after 0 rows"
                    ) from error
            if block is not None:
                return block
            if self._closing.wait(POLL_S):
                return b""

    def read_fraction(self) -> float | None:
        """None: nobody knows how much will be written."""
        return None

    def check(self) -> None:
        """Nothing: `read` looks at each step."""

    def close(self) -> None:
        """Ends a `read` that waits, at once."""
        self._closing.set()
        with self._lock:
            self._let_go()

    def _begin(self) -> None:
        self._at = 0
        self._seen_bytes = 0
        self._replaced_s: float | None = None

    def _let_go(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1

    def _next(self, most_bytes: int) -> bytes | None:
        """What can be read now: none at the file's end, None where more is to be waited for."""
        size = os.fstat(self._fd).st_size
        if size < self._at:
            raise CorruptInput(
                f"{self.name} was cut to {size:,} bytes while it was followed",
                where="after 0 rows",
                hint="rows that had not been read are lost; the same command reads it from its "
                "beginning. Where it is a log that is rotated, have it renamed and not truncated",
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
        """The next whole lines, or a block of one that is longer; nothing where it has no end."""
        block = os.pread(self._fd, most_bytes, self._at)
        end = block.rfind(b"\n") + 1
        if not end and len(block) == most_bytes:
            end = most_bytes
        self._at += end
        # There may be more of them behind this block.
        self._seen_bytes = self._at if end else self._seen_bytes
        return block[:end]

    def _has_ended(self) -> bool:
        """Another file has its name, and nothing was written to this one for a while."""
        assert self.path is not None
        try:
            is_replaced = not os.path.samestat(os.stat(self.path), os.fstat(self._fd))
        except FileNotFoundError:
            is_replaced = False
        if not is_replaced:
            self._replaced_s = None
            return False
        if self._replaced_s is None:
            self._replaced_s = time.monotonic()
        return time.monotonic() - self._replaced_s >= SETTLED_S


class FollowedRows(LineRows):
    """The rows of JSON Lines in a file that is still written to; they end when it is closed.

    `line` counts from 1 in each file that has had the name, `number` goes on.
    """

    def __init__(self, path: Path, max_row_bytes: int) -> None:
        self._file = FollowedFile(path)
        super().__init__(ByteStream(self._file), max_row_bytes)

    def batches(self) -> Iterator[list[Row]]:
        """Lists of 1 to 256 rows, each as soon as its line is whole."""
        while not self._file.is_closed:
            yield from self._read()
            # The next file of that name.
            self._line = 0
            self._stream = ByteStream(self._file)

    def close(self) -> None:
        """Closes the file; `batches` ends at once."""
        self._file.close()
        self._stream.close()
