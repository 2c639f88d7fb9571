"""A queue by priority, then by arrival, whatever the size of the request."""

from __future__ import annotations

import asyncio
from bisect import insort
from collections import deque
from collections.abc import Callable, Iterator
from itertools import count
from operator import attrgetter
from typing import Generic, TypeVar

import msgspec

# Cancelled waiters are swept out when there are this many more of them than of the others.
_MOST_FORGOTTEN = 64

Want = TypeVar("Want")
Got = TypeVar("Got")


class Waiter(msgspec.Struct, Generic[Want, Got], eq=False, gc=False):
    """A caller in a queue. want: what it asked for. future: resolves to what it gets.

    number: by arrival.

    Only the queue holds it, so that it is part of no reference cycle; since it is untracked, a
    hundred thousand waiters cost the garbage collector nothing.
    """

    want: Want
    future: asyncio.Future[Got]
    priority: int
    number: int


_number_of = attrgetter("number")


class WaitQueue(Generic[Want, Got]):
    """One line for each priority; the lowest priority number goes first.

    All steps are O(1) at the head of the queue.

    A cancelled waiter is dropped when it reaches the head; when most of the queue is cancelled it
    is swept, which bounds its size.
    """

    def __init__(self) -> None:
        self._lines: dict[int, deque[Waiter[Want, Got]]] = {}
        self._priorities: list[int] = []  # of the lines, ascending
        self.waiting = 0  # callers whose turn has not come
        self._forgotten = 0
        self._numbers = count()

    def __len__(self) -> int:
        return self.waiting

    def number(self) -> int:
        """The number of a caller that arrives now."""
        return next(self._numbers)

    def add(self, want: Want, priority: int, number: int | None = None) -> asyncio.Future[Got]:
        """Adds a waiter, last of its priority; returns the future for what it gets.

        number: of one that waits again, at its old place. To be ended by `wake_head`, `wake`,
        `refuse` or `forget`.
        """
        line = self._lines.get(priority)
        if line is None:
            line = self._lines[priority] = deque()
            insort(self._priorities, priority)
        self.waiting += 1
        future: asyncio.Future[Got] = asyncio.get_running_loop().create_future()
        waiter = Waiter(want, future, priority, self.number() if number is None else number)
        if line and waiter.number < line[-1].number:
            insort(line, waiter, key=_number_of)
        else:
            line.append(waiter)
        return future

    def is_next(self, future: asyncio.Future[Got]) -> bool:
        """Whether its waiter is the next one."""
        head = self.head()
        return head is not None and head.future is future

    def leave(self, turn: asyncio.Future[Got], give_back: Callable[[Got], None]) -> None:
        """Takes out the waiter of this future, whose task is cancelled.

        give_back: takes back what it got in the same turn of the loop as the cancellation.
        """
        if turn.cancelled():
            self.forget()
        elif turn.exception() is None:
            give_back(turn.result())

    def line(self) -> Iterator[Waiter[Want, Got]]:
        """The waiters in order; valid until one comes or goes."""
        self.head()
        lines = (self._lines[priority] for priority in self._priorities)
        return (waiter for line in lines for waiter in line if not waiter.future.done())

    def head(self) -> Waiter[Want, Got] | None:
        """The next waiter, left in place; None if the queue is empty."""
        while self._priorities:
            line = self._lines[self._priorities[0]]
            while line:
                if not line[0].future.done():
                    return line[0]
                line.popleft()
                self._forgotten -= 1
            del self._lines[self._priorities.pop(0)]
        return None

    def wake_head(self, got: Got) -> None:
        """Removes the head and wakes it with what it got; call only after `head` returned it."""
        self.waiting -= 1
        self._lines[self._priorities[0]].popleft().future.set_result(got)

    def wake(self, waiter: Waiter[Want, Got], got: Got) -> None:
        """Removes a waiter, near the head at best, and wakes it with what it got."""
        self.waiting -= 1
        line = self._lines[waiter.priority]
        line.remove(waiter)
        if not line:
            # An empty line may not become the first for as long as others wait before it.
            del self._lines[waiter.priority]
            self._priorities.remove(waiter.priority)
        waiter.future.set_result(got)

    def refuse(self, waiter: Waiter[Want, Got], error: Exception) -> None:
        """Ends the wait of a waiter with `error`."""
        waiter.future.set_exception(error)
        self.forget()

    def forget(self) -> None:
        """Counts a waiter whose future was cancelled or refused."""
        self.waiting -= 1
        self._forgotten += 1
        if self._forgotten > self.waiting + _MOST_FORGOTTEN:
            for line in self._lines.values():
                kept = [waiter for waiter in line if not waiter.future.done()]
                line.clear()
                line.extend(kept)
            self._forgotten = 0
