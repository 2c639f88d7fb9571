"""Shares numbers in memory between the processes of one command, under one lock.

The memory has no name: processes inherit its descriptor, and the memory is freed with the last
process that holds it. The lock is the kernel's (fcntl rather than flock, because all processes
share one open file), so it is released if its holder is killed. Since that may happen at any
moment, the numbers must always be consistent: each is written in one step, and a row of numbers has
one word per process, which only that process writes.

kind     a region                         when a process is lost
plain    any words                        stays as it is
counts   one word per process             its word becomes 0
amounts  one word for lost processes,     its word is added to the first word, then becomes 0
         then one word per process
"""

from __future__ import annotations

import fcntl
import mmap
import os
from enum import IntEnum
from hashlib import blake2b
from struct import unpack
from typing import Self

from redline.errors import ConfigError, RedlineError

MOST_PROCESSES = 64
# The size of the address range; only pages that are written take memory.
_SIZE_BYTES = 1 << 30
_WORD_BYTES = 8
_END, _PROCESSES, _FIRST = 0, 1, 8
# The head of a region: size, kind, and a digest of its name in two words.
_HEAD_WORDS = 4


class Kind(IntEnum):
    """The kinds of regions; the module's table says what happens when a process is lost."""

    PLAIN = 0
    COUNTS = 1
    AMOUNTS = 2


class SharedTable:
    """Shared memory, divided into named regions of 64-bit words.

    words: the words as integers. reals: the same words as floats. fd: the memory's descriptor. A
    `with` block holds the lock, which should take only microseconds; blocks may be nested. Not
    thread-safe.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        memory = memoryview(mmap.mmap(fd, _SIZE_BYTES))
        self.words = memory.cast("q")
        self.reals = memory.cast("d")
        self._depth = 0
        self._known: dict[tuple[int, int], int] = {}
        self._seen = _FIRST

    @classmethod
    def make(cls, processes: int) -> Self:
        """Makes a table for this many processes, 1 to 64.

        Raises ConfigError for any other number, and if the system provides no shared memory.
        """
        if not 1 <= processes <= MOST_PROCESSES:
            raise ConfigError(f"processes must be 1 to {MOST_PROCESSES}, not {processes}")
        try:
            fd = _memory()
            os.ftruncate(fd, _SIZE_BYTES)
            table = cls(fd)
        except OSError as error:
            raise ConfigError(f"cannot create shared memory: {error.strerror or error}") from error
        table.words[_PROCESSES] = processes
        table.words[_END] = _FIRST
        return table

    @property
    def processes(self) -> int:
        return self.words[_PROCESSES]

    def __enter__(self) -> Self:
        if not self._depth:
            fcntl.lockf(self.fd, fcntl.LOCK_EX)
        self._depth += 1
        return self

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if not self._depth:
            fcntl.lockf(self.fd, fcntl.LOCK_UN)

    def region(self, name: str, size: int, kind: Kind = Kind.PLAIN) -> int:
        """Returns the index of a region's first word; adds a new region, filled with zeros.

        name, size (in words) and kind must be the same in all processes. Raises RedlineError if
        the memory is full.
        """
        key: tuple[int, int] = unpack("<2q", blake2b(name.encode(), digest_size=16).digest())
        if key in self._known:
            return self._known[key]
        with self:
            self._look()
            if key not in self._known:
                self._add(key, size, kind)
        return self._known[key]

    def counts(self, name: str) -> int:
        """Returns the index of the first word of a row of counts, which is the first process's."""
        return self.region(name, self.processes, Kind.COUNTS)

    def amounts(self, name: str) -> int:
        """Returns the index of the first word of a row of amounts; process 0 has the next word."""
        return self.region(name, 1 + self.processes, Kind.AMOUNTS)

    def forget(self, process: int) -> None:
        """Removes a lost process, by its index: its counts become 0, but its amounts stay used."""
        words = self.words
        with self:
            at, end = _FIRST, words[_END]
            while at < end:
                size, kind, start = words[at], words[at + 1], at + _HEAD_WORDS
                if kind == Kind.COUNTS:
                    words[start + process] = 0
                elif kind == Kind.AMOUNTS:
                    own = start + 1 + process
                    # In this order: if this process is killed in between, the amount counts twice,
                    # which is safer than not at all.
                    words[start] += words[own]
                    words[own] = 0
                at = start + size

    def _look(self) -> None:
        """Reads the heads of regions that other processes have added."""
        words, end = self.words, self.words[_END]
        while self._seen < end:
            at = self._seen
            self._known[words[at + 2], words[at + 3]] = at + _HEAD_WORDS
            self._seen = at + _HEAD_WORDS + words[at]

    def _add(self, key: tuple[int, int], size: int, kind: Kind) -> None:
        words, at = self.words, self.words[_END]
        start = at + _HEAD_WORDS
        if (start + size) * _WORD_BYTES > _SIZE_BYTES:
            raise RedlineError("the memory that workers share is full", hint="restart the gateway")
        words[at], words[at + 1] = size, kind
        words[at + 2], words[at + 3] = key
        # This step makes the region exist.
        words[_END] = start + size
        self._look()


def _memory() -> int:
    """Returns the descriptor of a new file without a name, in memory if the system can do that."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("redline")
    # Imported here: only systems without memfd need it.
    import tempfile

    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
