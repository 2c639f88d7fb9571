"""Bounds the calls in flight with slots, which are taken in order of priority and arrival."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from redline.limits.wait.queue import WaitQueue


class Slots:
    """Hands out `count` slots; a released slot goes to the first waiter in the queue."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.in_use = 0
        self._queue: WaitQueue[None, None] = WaitQueue()

    @property
    def is_free(self) -> bool:
        """Whether a caller would get a slot without waiting."""
        # `waiting` alone is not enough: a cancelled waiter counts until its task runs, and a caller
        # that queued behind it would wait for a release that has already happened.
        queue = self._queue
        return self.in_use < self.count and (not queue.waiting or queue.head() is None)

    @property
    def steady(self) -> int:
        """While fewer slots than this are in use, a slot is certainly free."""
        return self.count

    @property
    def waiting(self) -> int:
        """The number of callers in the queue."""
        return self._queue.waiting

    def has_room(self, coming: int = 0) -> bool:
        """Returns whether a slot is free after `coming` others are taken, ignoring the queue."""
        return self.in_use + coming < self.count

    def want(self) -> None:
        """Records, for processes that share the slots, that calls outside this queue need one."""

    def tell(self, on_room: Callable[[], None]) -> None:
        """Registers `on_room`, which is called when slots become free without `release`."""

    def close(self) -> None:
        """Stops the timer that looks for free slots, if there is one. May be called again."""

    def take_free(self) -> bool:
        """Takes a slot if one is free and the queue is empty; returns whether it did."""
        # The check of `is_free`, inlined for speed: each attempt checks twice.
        if self.in_use < self.count and (not self._queue.waiting or self._queue.head() is None):
            self.in_use += 1
            return True
        return False

    async def acquire(self, priority: int = 0) -> None:
        """Waits for a slot and takes it. The caller must `release` it."""
        if self.take_free():
            return
        turn = self._queue.add(None, priority)
        try:
            await turn
        except asyncio.CancelledError:
            self._queue.leave(turn, lambda _: self.release())
            raise

    def release(self) -> None:
        """Hands the released slot to the first waiter, or frees it."""
        queue = self._queue
        if not queue.waiting or self.in_use > self.count or queue.head() is None:
            self.in_use -= 1
        else:
            queue.wake_head(None)

    def resize(self, count: int) -> None:
        """Sets the number of slots, at least 1; surplus calls in flight run to their end."""
        self.count = count
        while self.in_use < count and self._queue.head() is not None:
            self.in_use += 1
            self._queue.wake_head(None)
