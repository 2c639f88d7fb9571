"""Every rate limit of one endpoint behind one queue and one timer.

A grant books every window together, all or nothing, in order of arrival within a priority. The
head of the queue waits for its own needs and nobody overtakes it, so a large request is not
starved by small ones.
"""

from __future__ import annotations

import asyncio
import math

from redline.clock import SYSTEM, Clock
from redline.errors import OverBudget
from redline.limits.queue import WaitQueue
from redline.limits.rate import Rate
from redline.limits.settings import Limits
from redline.limits.window import Booking, Window

# uvloop's timers count whole milliseconds: a shorter one would spin.
_SHORTEST_TIMER_S = 0.001


class Grant:
    """Leave to send one call now. Ends in exactly one of `sent` or `release`."""

    __slots__ = ("_bookings", "_limiter", "tokens", "waited_s")

    def __init__(
        self, limiter: Limiter, bookings: tuple[Booking, ...], tokens: int, waited_s: float
    ) -> None:
        self._limiter = limiter
        self._bookings = bookings
        self.tokens = tokens
        self.waited_s = waited_s

    def sent(self, now_s: float) -> None:
        """The call was written at `now_s`: the windows count from here."""
        self._limiter._sent(self._bookings, now_s)

    def release(self) -> None:
        """The call was not written: everything is given back. Does nothing after `sent`."""
        self._limiter._release(self._bookings)

    def settle(self, tokens: int) -> None:
        """The call used `tokens`, 0 or more, in place of its estimate. Only after `sent`."""
        self._limiter._settle(self._bookings, tokens)


class Limiter:
    """The rate limits of `limits`, without its concurrency (see Slots)."""

    def __init__(self, limits: Limits, clock: Clock = SYSTEM) -> None:
        self._clock = clock
        self._requests = [_window(rate, limits) for rate in limits.request_rates()]
        self._tokens = [_window(rate, limits) for rate in limits.token_rates()]
        self._windows = self._requests + self._tokens
        self._queue: WaitQueue[int, tuple[Booking, ...]] = WaitQueue()
        self._timer: asyncio.TimerHandle | None = None
        self._due_s = math.inf  # when the timer should ring; inf without one
        self._parked_until_s = -math.inf

    @property
    def waiting(self) -> int:
        """Callers in the queue."""
        return len(self._queue)

    @property
    def counts_tokens(self) -> bool:
        """A token limit is set, so estimates matter."""
        return bool(self._tokens)

    @property
    def most_tokens(self) -> int:
        """The largest call that could ever be granted. Only where tokens are counted."""
        return min(window.rate.count for window in self._tokens)

    def check(self, tokens: int) -> None:
        """Raises OverBudget when `tokens` could never be granted."""
        for window in self._tokens:
            if tokens > window.rate.count:
                raise OverBudget(
                    f"the call needs about {tokens:,} tokens, more than the limit of "
                    f"{window.rate} allows at all",
                    hint="shorten the prompt, lower max_tokens, or raise the token limit",
                )

    def room_s(self, tokens: int, now_s: float) -> float:
        """Seconds until a call of `tokens` could be granted were nobody waiting; books nothing."""
        wait_s = max(0.0, self._parked_until_s - now_s)
        for window in self._requests:
            wait_s = max(wait_s, window.wait_s(1, now_s))
        for window in self._tokens:
            wait_s = max(wait_s, window.wait_s(tokens, now_s))
        return wait_s

    def park(self, until_s: float) -> bool:
        """No grants before `until_s` (monotonic). True if that is later than before."""
        if until_s <= self._parked_until_s:
            return False
        self._parked_until_s = until_s
        return True

    async def acquire(self, tokens: int = 0, priority: int = 0) -> Grant:
        """A grant for one request of `tokens`; waits for it in turn.

        tokens: 0 or more, input and output together. priority: lower goes first.
        Raises OverBudget at once when it could never be granted.
        """
        self.check(tokens)
        asked_s = self._clock.now_s()
        if not self._queue and self.room_s(tokens, asked_s) <= 0:
            return Grant(self, self._book(tokens, asked_s), tokens, 0.0)
        waiter = self._queue.add(tokens, priority)
        # Only a new head changes when the timer must ring.
        if self._queue.head() is waiter:
            self._pump()
        try:
            bookings = await waiter.future
        except asyncio.CancelledError:
            if waiter.future.cancelled():
                self._queue.forget()
                self._pump()
            else:
                # Granted in the same tick as the cancellation.
                self._release(waiter.future.result())
            raise
        return Grant(self, bookings, tokens, self._clock.now_s() - asked_s)

    def _book(self, tokens: int, now_s: float, late_s: float = 0.0) -> tuple[Booking, ...]:
        bookings = [window.book(1, now_s, late_s) for window in self._requests]
        bookings += [window.book(tokens, now_s, late_s) for window in self._tokens]
        return tuple(bookings)

    def _pump(self) -> None:
        """Grants from the head of the queue all that may go now, then sets the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now_s = self._clock.now_s()
        late_s = max(0.0, now_s - self._due_s)
        self._due_s = math.inf
        while (head := self._queue.head()) is not None:
            wait_s = self.room_s(head.want, now_s)
            if wait_s > 0:
                if wait_s < math.inf:
                    self._due_s = now_s + wait_s
                    loop = asyncio.get_running_loop()
                    self._timer = loop.call_later(max(wait_s, _SHORTEST_TIMER_S), self._pump)
                return
            self._queue.wake_head(self._book(head.want, now_s, late_s))

    def _sent(self, bookings: tuple[Booking, ...], now_s: float) -> None:
        for window, booking in zip(self._windows, bookings, strict=True):
            window.sent(booking, now_s)
        # A head that waited for this stamp had no timer.
        if self._queue and self._timer is None:
            self._pump()

    def _release(self, bookings: tuple[Booking, ...]) -> None:
        now_s = self._clock.now_s()
        for window, booking in zip(self._windows, bookings, strict=True):
            window.release(booking, now_s)
        if self._queue:
            self._pump()

    def _settle(self, bookings: tuple[Booking, ...], tokens: int) -> None:
        first = len(self._requests)
        for window, booking in zip(self._tokens, bookings[first:], strict=True):
            window.settle(booking, tokens)
        if self._queue and self._tokens:
            self._pump()


def _window(rate: Rate, limits: Limits) -> Window:
    return Window(rate, profile=limits.profile, guard_s=limits.guard_s)
