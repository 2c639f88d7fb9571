"""Who waits: first by priority, then by arrival, whatever the size."""

from __future__ import annotations

import asyncio
import heapq
from typing import Generic, TypeVar

Want = TypeVar("Want")
Got = TypeVar("Got")


class Waiter(Generic[Want, Got]):
    """One caller in a queue: `want` is what it asked for, `future` brings what it got."""

    __slots__ = ("future", "number", "priority", "want")

    def __init__(self, want: Want, priority: int, number: int, future: asyncio.Future[Got]) -> None:
        self.want = want
        self.priority = priority
        self.number = number
        self.future = future

    def __lt__(self, other: Waiter[Want, Got]) -> bool:
        return (self.priority, self.number) < (other.priority, other.number)


class WaitQueue(Generic[Want, Got]):
    """A heap of waiters by (priority, arrival); the lowest priority number goes first.

    A cancelled waiter is dropped when it reaches the head, so that cancelling is O(1); when most
    of the heap is cancelled it is rebuilt, which bounds its size.
    """

    def __init__(self) -> None:
        self._heap: list[Waiter[Want, Got]] = []
        self._arrivals = 0
        self._waiting = 0

    def __len__(self) -> int:
        return self._waiting

    def add(self, want: Want, priority: int) -> Waiter[Want, Got]:
        """A new waiter, last of its priority. Must end in `wake_head` or `forget`."""
        self._arrivals += 1
        self._waiting += 1
        future: asyncio.Future[Got] = asyncio.get_running_loop().create_future()
        waiter = Waiter(want, priority, self._arrivals, future)
        heapq.heappush(self._heap, waiter)
        return waiter

    def head(self) -> Waiter[Want, Got] | None:
        """The waiter that goes next, left in place; None when nobody waits."""
        while self._heap and self._heap[0].future.done():
            heapq.heappop(self._heap)
        return self._heap[0] if self._heap else None

    def wake_head(self, got: Got) -> None:
        """Takes the head out and wakes it with what it got; call only after `head` named it."""
        self._waiting -= 1
        heapq.heappop(self._heap).future.set_result(got)

    def forget(self) -> None:
        """One waiter's future was cancelled."""
        self._waiting -= 1
        if len(self._heap) > 2 * self._waiting + 64:
            self._heap = [waiter for waiter in self._heap if not waiter.future.done()]
            heapq.heapify(self._heap)
