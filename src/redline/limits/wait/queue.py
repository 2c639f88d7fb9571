"""Queues callers by priority, then by arrival, regardless of the size of their requests."""

from __future__ import annotations

import asyncio
from bisect import insort
from collections import deque
from collections.abc import Callable, Iterator
from itertools import count
from operator import attrgetter
from typing import Generic, TypeVar

import msgspec

from redline.errors import ConfigError

# Cancelled waiters are swept out when they outnumber the others by more than this.
_MOST_FORGOTTEN = 64

Want = TypeVar("Want")
Got = TypeVar("Got")


class Waiter(msgspec.Struct, Generic[Want, Got], eq=False, gc=False):
    """A caller in a queue. want: what the caller needs. future: resolves to what the caller gets.

    number: increases in order of arrival.

    Only the queue refers to a waiter, which therefore is in no reference cycle. The garbage
    collector does not track it, so a hundred thousand waiters cost the collector nothing.
    """

    want: Want
    future: asyncio.Future[Got]
    priority: int
    number: int


_number_of = attrgetter("number")


class WaitQueue(Generic[Want, Got]):
    """Keeps one line for each priority; the lowest priority number goes first.

    All operations at the head of the queue are O(1).

    A cancelled waiter is dropped when it reaches the head. When most waiters are cancelled, all
    cancelled ones are dropped, which bounds the queue.
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
        """Returns the number of a caller that arrives now."""
        return next(self._numbers)

    def add(self, want: Want, priority: int, number: int | None = None) -> asyncio.Future[Got]:
        """Adds a waiter as the last of its priority; returns the future for what it gets.

        number: the number of a caller that waits again, at its old place; None for a new caller.
        End the wait with `wake_head`, `wake`, `refuse` or `forget`.
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
        """Returns whether the waiter with this future is at the head of the queue."""
        head = self.head()
        return head is not None and head.future is future

    def leave(self, turn: asyncio.Future[Got], give_back: Callable[[Got], None]) -> None:
        """Removes the waiter of this future, whose task is cancelled.

        give_back: called with what the waiter got, if it got that in the same iteration of the
        event loop as the cancellation.
        """
        if turn.cancelled():
            self.forget()
        elif turn.exception() is None:
            give_back(turn.result())

    def line(self) -> Iterator[Waiter[Want, Got]]:
        """Yields the waiters in order; no waiter may be added or removed meanwhile."""
        self.head()
        lines = (self._lines[priority] for priority in self._priorities)
        return (waiter for line in lines for waiter in line if not waiter.future.done())

    def head(self) -> Waiter[Want, Got] | None:
        """Returns the first waiter without removing it; None if the queue is empty."""
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
        """Removes the first waiter and wakes it with `got`. Call only after `head` returned it."""
        self.waiting -= 1
        self._lines[self._priorities[0]].popleft().future.set_result(got)

    def wake(self, waiter: Waiter[Want, Got], got: Got) -> None:
        """Removes a waiter and wakes it with `got`; fast if the waiter is near the head."""
        self.waiting -= 1
        line = self._lines[waiter.priority]
        line.remove(waiter)
        if not line:
            # `head` deletes an empty line only when it is the first, which may take long.
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


def sole_loop(known: asyncio.AbstractEventLoop | None, user: str) -> asyncio.AbstractEventLoop:
    """Returns the running event loop, for an object that only one loop may use at a time.

    known: the loop that used it last. user: the object's class, for the message. Raises ConfigError
    if another loop, of another thread, is still running: it would never notice that this loop ended
    one of its waits.
    """
    loop = asyncio.get_running_loop()
    if known is not None and known is not loop and known.is_running():
        raise ConfigError(
            f"this {user} is used in two event loops at once",
            hint="use it in one event loop, to which other threads pass their calls with "
            "asyncio.run_coroutine_threadsafe; for limits alone, threads can share a SyncLimiter",
        )
    return loop
