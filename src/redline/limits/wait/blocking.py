"""Applies rate limits to threads, which block until their turn."""

from __future__ import annotations

import heapq
import itertools
import math
import threading
from collections.abc import Generator
from contextlib import contextmanager

from redline.clock import SYSTEM, Clock
from redline.limits.rule import Booking, Cost, Limits, Rates, Rules, stated_cost
from redline.limits.wait.grant import Grant

# A thread's place in the queue: its priority, its number, and the event that wakes it.
_Ticket = tuple[int, int, threading.Event]


class SyncLimiter:
    """Applies the rates of `limits` to any number of threads of one process.

    limits: a Limits, of which only the request and token limits, `headroom`, `profile` and
    `guard_s` apply, or request limits alone, such as "2/1s". Threads of equal priority wait in
    order of arrival, regardless of the size of their calls. Raises ConfigError for a text that is
    not a rate.

        with limiter(tokens=900) as grant:
            reply = call()
            grant.settle(reply.usage.total_tokens)
    """

    def __init__(self, limits: Limits | Rates, clock: Clock = SYSTEM) -> None:
        limits = limits if isinstance(limits, Limits) else Limits(requests=limits)
        self.rules = Rules(limits)
        self._clock = clock
        self._lock = threading.Lock()
        self._queue: list[_Ticket] = []
        self._busy_from_s = 0.0  # since when the queue has not been empty
        self._numbers = itertools.count()

    @contextmanager
    def __call__(
        self, tokens: int = 0, *, output_tokens: int = 0, priority: int = 0
    ) -> Generator[Grant]:
        """Returns a context manager that waits until one call may be sent, and counts it as sent.

        tokens: of the input, or of input and output together; 0 or more. output_tokens: of the
        output alone; 0 if included in `tokens`. priority: lower goes first. Entering raises
        OverLimit if the call could never be granted, and ConfigError if a token limit would count a
        negative amount, or if a number of tokens is not finite.
        """
        grant = self.acquire(stated_cost(tokens, output_tokens), priority)
        try:
            sent_s = self._clock.now_s()
            grant.sent(sent_s)
            yield grant
            # The call has been answered by now, so it must have reached the server.
            grant.replied(self._clock.now_s() - sent_s)
        finally:
            # Needed if a signal arrived before the call was sent; otherwise does nothing.
            grant.release()

    @property
    def waiting(self) -> int:
        """The number of threads in the queue."""
        return len(self._queue)

    def acquire(self, cost: Cost | int = 0, priority: int = 0) -> Grant:
        """Blocks until one request of `cost` may be sent, in turn; returns its grant.

        cost: a number means tokens, input and output together. priority: lower goes first.
        Raises OverLimit at once if the request could never be granted.
        """
        cost = cost if isinstance(cost, Cost) else Cost(cost)
        asked_s = self._clock.now_s()
        ticket = (priority, next(self._numbers), threading.Event())
        bookings: list[Booking] = []
        grant: Grant | None = None
        # A signal can arrive at any line: even then, the place in the queue and the booked amounts
        # must be released.
        try:
            with self._lock:
                self.rules.check(cost)
                if not self._queue:
                    self._busy_from_s = asked_s
                heapq.heappush(self._queue, ticket)
            bookings = self._booked(ticket, cost)
            grant = Grant(self, bookings, cost, self._clock.now_s() - asked_s)
            return grant
        finally:
            with self._lock:
                self._leave(ticket)
            if grant is None and bookings:
                self.give_back(bookings)

    def _booked(self, ticket: _Ticket, cost: Cost) -> list[Booking]:
        """Blocks until the ticket's turn; returns the bookings of `cost`."""
        turn = ticket[2]
        due_s = math.inf
        while True:
            turn.clear()
            with self._lock:
                now_s = self._clock.now_s()
                wait_s = math.inf
                if self._queue[0] is ticket:
                    wait_s = self.rules.wait_s(cost, now_s)
                    if wait_s <= 0:
                        late_s = max(0.0, now_s - due_s)
                        return self.rules.book(cost, now_s, late_s, now_s - self._busy_from_s)
                due_s = now_s + wait_s
            turn.wait(None if wait_s == math.inf else wait_s)

    def mark_sent(self, taken: list[Booking], now_s: float) -> None:
        """Records that a grant's call was written at `now_s`."""
        with self._lock:
            for booking in taken:
                booking.window.sent(booking, now_s)
            self._wake_head()

    def give_back(self, taken: list[Booking]) -> None:
        """Releases what a grant took, unless its call was sent."""
        with self._lock:
            now_s = self._clock.now_s()
            for booking in taken:
                booking.window.release(booking, now_s)
            self._wake_head()

    def settle(self, taken: list[Booking], used: Cost) -> None:
        """Records the usage of a grant's call."""
        with self._lock:
            self.rules.settle(taken, used)
            self._wake_head()

    def replied(
        self, taken: list[Booking], took_s: float, sent_s: float, used: Cost | None
    ) -> None:
        """Records that the reply of a grant's call began `took_s` seconds after the write.

        used: see `settle`; None if not known yet.
        """
        with self._lock:
            self.rules.replied(taken, took_s, sent_s, used)
            if used is not None:
                self._wake_head()

    def _leave(self, ticket: _Ticket) -> None:
        """Removes a ticket, if it is in the queue: its thread has its grant or has given up."""
        if ticket in self._queue:
            self._queue.remove(ticket)
            heapq.heapify(self._queue)
        self._wake_head()

    def _wake_head(self) -> None:
        """Wakes the first thread in the queue, which then checks again."""
        if self._queue:
            self._queue[0][2].set()
