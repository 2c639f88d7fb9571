"""Bytes of long answers that calls hold at once; when they are many, few read on.

  an answer     counts with                   until
  being read    what of its body has come     its exchange is over
  whole         its body and its output       the caller releases it (Call.held)

  state    from         meaning
  open     192 MiB down  everything is read
  full     256 MiB up    no request is sent, and nothing is read but the answers that were the first
                         to become long: as many as 128 MiB have room for at their largest, and one
                         at least

While it is full, whole answers are first waited for if they leave no room. So all long answers
together hold at most 384 MiB, or 256 MiB and one answer of the largest size if that is more; and
what one read brings (256 KB), for each connection that begins to send when it is full.

It opens again, whatever happens. What reads on ends, or its clock runs out. A caller
that has a whole answer needs no other one to release it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection
from itertools import chain, islice
from typing import Protocol

# Shorter bodies are not counted, so that most answers pass by here without a call.
LONG_BYTES = 64 * 1024
FULL_BYTES = 256 * 1024 * 1024
_OPEN_BYTES = FULL_BYTES * 3 // 4
_FIRST_BYTES = 128 * 1024 * 1024


class Reader(Protocol):
    """What reads an answer."""

    def pause(self) -> None:
        """Reads nothing until `resume`; its clock stops. Does nothing if nothing is read."""

    def resume(self) -> None:
        """Reads on, if it was paused."""


class ReplyMemory:
    """is_full: wait for `room` before a request is sent.

    most_bytes: of one answer.
    """

    def __init__(self, most_bytes: int) -> None:
        self.is_full = False
        self.most_bytes = most_bytes
        self._readers: list[Collection[Reader]] = []
        self._at_once = max(1, _FIRST_BYTES // most_bytes)
        # What has come of each long answer; the first to become long comes first.
        self._sizes: dict[Reader, int] = {}
        self._read_bytes = 0
        self._whole_bytes = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    def follow(self, readers: Collection[Reader]) -> None:
        """These may have an answer coming at a time, the short ones as well.

        They are all of an endpoint; several endpoints may share the memory.
        """
        self._readers.append(readers)

    def forget(self, readers: Collection[Reader]) -> None:
        """These are closed."""
        self._readers = [kept for kept in self._readers if kept is not readers]

    def read(self, reader: Reader, size_bytes: int) -> None:
        """So much of a long answer has come."""
        self._read_bytes += size_bytes - self._sizes.get(reader, 0)
        self._sizes[reader] = size_bytes
        if not self.is_full:
            self._fill()
        elif reader not in self._first():
            reader.pause()

    def leave(self, reader: Reader) -> None:
        """Its exchange is over."""
        self._read_bytes -= self._sizes.pop(reader, 0)
        self._look()

    def hold(self, size_bytes: int) -> Held:
        """A whole answer counts until it is released."""
        self._whole_bytes += size_bytes
        self._fill()
        return Held(self, size_bytes)

    def drop(self, size_bytes: int) -> None:
        """A whole answer is not held any more."""
        self._whole_bytes -= size_bytes
        self._look()

    async def room(self) -> None:
        """Returns once a request may be sent."""
        while self.is_full:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            await waiter

    def _first(self) -> list[Reader]:
        """The readers that continue while it is full."""
        first = list(islice(self._sizes, self._at_once))
        others_bytes = self._read_bytes - sum([self._sizes[reader] for reader in first])
        has_room = others_bytes + self._whole_bytes <= FULL_BYTES
        return first if has_room or not self._whole_bytes else []

    def _all(self) -> set[Reader]:
        return {*chain.from_iterable(self._readers), *self._sizes}

    def _fill(self) -> None:
        """Full, if it is that by now."""
        if self.is_full or self._read_bytes + self._whole_bytes < FULL_BYTES:
            return
        self.is_full = True
        first = self._first()
        for reader in self._all().difference(first):
            reader.pause()

    def _look(self) -> None:
        """Something was released: the memory opens, or other answers are now the first."""
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
    """What a whole answer takes of an intake."""

    __slots__ = ("_intake", "_size_bytes")

    def __init__(self, intake: ReplyMemory, size_bytes: int) -> None:
        self._intake = intake
        self._size_bytes = size_bytes

    def release(self) -> None:
        """The answer is released. May be called again."""
        size_bytes, self._size_bytes = self._size_bytes, 0
        self._intake.drop(size_bytes)
