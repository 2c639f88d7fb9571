"""Bounds the memory of all long answers (above 64 KiB) at once; when it is full, few are read.

  an answer     counts with                   until
  being read    the bytes read of its body    its exchange is over
  whole         its body and its output       the caller releases it (Call.held)

  state    begins at    meaning
  open     < 192 MiB    everything is read
  full     >= 256 MiB   no request is sent, and only the answers that were the first to become long
                         are read: as many as fit in 128 MiB at the largest size, and at least one

While the memory is full and whole answers leave no room, reading waits until some of them are
released. So all long answers together hold at most 384 MiB, or 256 MiB and one answer of the
largest size if that is more. In addition, each connection on which a response begins while the
memory is full may hold one read (256 KB).

The memory always opens again: an answer that is still being read ends or times out, and a caller
that has a whole answer can release it without waiting for another answer.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection
from itertools import chain, islice
from typing import Protocol

# Shorter bodies are not counted, so that most answers need no call here.
LONG_BYTES = 64 * 1024
FULL_BYTES = 256 * 1024 * 1024
_OPEN_BYTES = FULL_BYTES * 3 // 4
_FIRST_BYTES = 128 * 1024 * 1024


class Reader(Protocol):
    """A reader of answers that can be paused."""

    def pause(self) -> None:
        """Pauses reading and the timeouts until `resume`. Does nothing if the reader is idle."""

    def resume(self) -> None:
        """Resumes reading, if it was paused."""


class ReplyMemory:
    """Bounds the memory of long answers; see the tables above.

    is_full: whether to await `room` before sending. most_bytes: the size of the largest answer.
    """

    def __init__(self, most_bytes: int) -> None:
        self.is_full = False
        self.most_bytes = most_bytes
        self._readers: list[Collection[Reader]] = []
        self._at_once = max(1, _FIRST_BYTES // most_bytes)
        # The bytes read of each long answer, in the order in which they became long.
        self._sizes: dict[Reader, int] = {}
        self._read_bytes = 0
        self._whole_bytes = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    def follow(self, readers: Collection[Reader]) -> None:
        """Adds all readers of one endpoint, including those of short answers.

        Several endpoints may share one ReplyMemory.
        """
        self._readers.append(readers)

    def forget(self, readers: Collection[Reader]) -> None:
        """Removes readers that are closed."""
        self._readers = [kept for kept in self._readers if kept is not readers]

    def read(self, reader: Reader, size_bytes: int) -> None:
        """Records the bytes read so far of a long answer; pauses the reader if it must wait."""
        self._read_bytes += size_bytes - self._sizes.get(reader, 0)
        self._sizes[reader] = size_bytes
        if not self.is_full:
            self._fill()
        elif reader not in self._first():
            reader.pause()

    def leave(self, reader: Reader) -> None:
        """Removes the answer of a reader whose exchange is over."""
        self._read_bytes -= self._sizes.pop(reader, 0)
        self._look()

    def hold(self, size_bytes: int) -> Held:
        """Counts a whole answer until the returned object is released."""
        self._whole_bytes += size_bytes
        self._fill()
        return Held(self, size_bytes)

    def drop(self, size_bytes: int) -> None:
        """Removes a whole answer that is no longer held."""
        self._whole_bytes -= size_bytes
        self._look()

    async def room(self) -> None:
        """Waits until a request may be sent."""
        while self.is_full:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            await waiter

    def _first(self) -> list[Reader]:
        """Returns the readers that continue while the memory is full."""
        first = list(islice(self._sizes, self._at_once))
        others_bytes = self._read_bytes - sum([self._sizes[reader] for reader in first])
        has_room = others_bytes + self._whole_bytes <= FULL_BYTES
        return first if has_room or not self._whole_bytes else []

    def _all(self) -> set[Reader]:
        return {*chain.from_iterable(self._readers), *self._sizes}

    def _fill(self) -> None:
        """Marks the memory full if it has become full, and pauses all but the first readers."""
        if self.is_full or self._read_bytes + self._whole_bytes < FULL_BYTES:
            return
        self.is_full = True
        first = self._first()
        for reader in self._all().difference(first):
            reader.pause()

    def _look(self) -> None:
        """Opens the memory after a release, or resumes the readers that are now the first."""
        if not self.is_full:
            return
        if self._read_bytes + self._whole_bytes >= _OPEN_BYTES:
            for reader in self._first():
                reader.resume()
            return
        self.is_full = False
        for reader in self._all():
            reader.resume()
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)


class Held:
    """A whole answer's share of the memory."""

    __slots__ = ("_intake", "_size_bytes")

    def __init__(self, intake: ReplyMemory, size_bytes: int) -> None:
        self._intake = intake
        self._size_bytes = size_bytes

    @property
    def is_wanted(self) -> bool:
        """Whether requests wait for the memory of answers to be released."""
        return self._intake.is_full

    def release(self) -> None:
        """Releases the answer; further calls do nothing."""
        size_bytes, self._size_bytes = self._size_bytes, 0
        self._intake.drop(size_bytes)
