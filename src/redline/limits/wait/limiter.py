"""Applies all rate limits of one endpoint, with one queue and one timer.

A grant books all windows together or none. Calls of one priority are granted in order of arrival:
while the first waits for all that it needs, no later one overtakes it, so that small requests do
not starve a large one.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from redline.clock import SYSTEM, Clock
from redline.errors import OverLimit
from redline.limits.rule import (
    AUTO,
    Booking,
    Cost,
    Kind,
    Limits,
    Rate,
    Rates,
    RecentSends,
    stated_cost,
)
from redline.limits.server import Feedback, Stated
from redline.limits.wait.grant import FreeGrant, Grant
from redline.limits.wait.queue import WaitQueue, sole_loop
from redline.limits.wait.rate_limiter import RateLimiter

_NOTHING = Cost()


class Limiter(RateLimiter):
    """Applies the rates of `limits`, but not its concurrency (see Slots) or `share`.

    By itself, it searches for no limit. limits: a Limits, or request limits alone, such as "2/1s".
    clock: the system's by default; in a loop with virtual time, its VirtualClock. For one event
    loop; for threads, use SyncLimiter. Raises ConfigError for a text that is not a rate.

        async with limiter(tokens=900) as grant:
            reply = await call()
            grant.settle(reply.usage.total_tokens)
    """

    _queue: WaitQueue[Cost, list[Booking]]

    def __init__(self, limits: Limits | Rates, clock: Clock = SYSTEM) -> None:
        limits = limits if isinstance(limits, Limits) else Limits(requests=limits)
        super().__init__(limits, clock)
        self.is_unlimited = limits.rate != AUTO and not self.rules.lines
        self._feedback = Feedback(self.rules)
        self.accepted = self._feedback.accepted
        self._recent: RecentSends | None = None
        # The grant that all callers share while there are no limits; None otherwise.
        self._free: Grant | None = None
        # Whether the head of the queue waits until a call that has its grant is written.
        self.is_stalled = False
        # The event loop of the last context that was entered.
        self.loop: asyncio.AbstractEventLoop | None = None

    def __call__(self, tokens: int = 0, *, output_tokens: int = 0, priority: int = 0) -> _Entry:
        """Returns a context manager that waits until one call may be sent, and counts it as sent.

        tokens: of the input, or of input and output together; 0 or more. output_tokens: of the
        output alone; 0 if included in `tokens`. priority: lower goes first. Entering raises
        OverLimit if the call could never be granted, and ConfigError if a token limit would count a
        negative amount. Tokens that are not a finite number raise ConfigError at once.
        """
        return _Entry(self, self._clock, stated_cost(tokens, output_tokens), priority)

    @property
    def easy_tokens(self) -> int:
        """A call of at most this many tokens needs only a bound (`Cost.is_bound`), no estimate."""
        return self.rules.easy_tokens

    @property
    def guard_s(self) -> float:
        """The seconds that are added to each window at present."""
        return self.rules.guard_s

    def room_s(self, cost: Cost, now_s: float) -> float:
        """Returns the seconds until `cost` could be granted behind the queue; books nothing.

        This is an estimate, as if each caller in the queue needed `cost` as well.
        """
        wait_s = self.rules.wait_s(cost, now_s)
        if wait_s == math.inf:
            # The windows are full of booked calls, which will be written at once and count from
            # then on.
            wait_s = self.rules.spacing_s(cost)
        wait_s = max(wait_s, self._parked_until_s - now_s)
        if self._queue.waiting:
            wait_s += self._queue.waiting * self.rules.spacing_s(cost)
        return wait_s

    def room_for_s(self, calls: int, amounts: Mapping[Kind, float], now_s: float) -> float:
        """Returns the seconds until the last of `calls` calls could be granted.

        Of more calls than a window holds, only a full window counts, so the result is too low.
        amounts: the tokens that each call takes from the limits, by kind.
        """
        return self.rules.room_for_s(calls, amounts, now_s)

    def binds(self, cost: Cost, now_s: float) -> str:
        """Returns the limit that holds back a call of `cost`, in words; "" if none does."""
        lines = self.rules.holding(cost, now_s)
        return f"{lines[0].stated} {lines[0].kind.replace('_', ' ')}" if lines else ""

    def holding(self, now_s: float) -> list[tuple[Kind, Rate | None]]:
        """Returns the limits that hold back the head of the queue, the strictest first.

        If the queue is empty, the limits that would hold back the smallest call. A rate is None
        while it is being searched for.
        """
        head = self._queue.head()
        want = _NOTHING if head is None else head.want
        searched = self.rules.searched
        return [
            (line.kind, None if line in searched else line.stated)
            for line in self.rules.holding(want, now_s)
        ]

    def used(self, now_s: float) -> list[tuple[Kind, Rate, int]]:
        """Returns each limit, and the amount that counts against it now."""
        return [(line.kind, line.stated, line.window.used(now_s)) for line in self.rules.lines]

    def park(self, until_s: float) -> bool:
        """Gives no grants before `until_s` (monotonic).

        Returns False if an earlier call set this time or a later one.
        """
        self._free = None
        return super().park(until_s)

    def acquire_now(self, cost: Cost) -> Grant | None:
        """Returns a grant if the queue is empty and `cost` may be sent at once; otherwise None.

        cost: must have passed `check`.
        """
        if self._free is not None:
            return self._free
        if self._queue.waiting:
            return None
        now_s = self._clock.now_s()
        if now_s < self._parked_until_s:
            return None
        taken = self.rules.take_now(cost, now_s)
        if taken:
            return Grant(self, taken, cost, 0.0)
        if taken is not None:
            # There are no limits to take from.
            self._free = FreeGrant(self, taken, _NOTHING, 0.0)
        return self._free

    async def acquire(self, cost: Cost | int = _NOTHING, priority: int = 0) -> Grant:
        """Waits for a grant for one request of `cost`, in turn, and returns it.

        cost: a number means tokens, input and output together. priority: lower goes first.
        Raises OverLimit if the request could never be granted: at once, or when new limits apply
        while it waits.
        """
        cost = cost if isinstance(cost, Cost) else Cost(cost)
        if cost is not _NOTHING:
            self.rules.check(cost)
        if (grant := self.acquire_now(cost)) is not None:
            return grant
        queue = self._queue
        asked_s = self._clock.now_s()
        if not queue.waiting:
            self._busy_from_s = asked_s
        turn = queue.add(cost, priority)
        # Only a new head changes the time of the timer.
        if queue.is_next(turn):
            self.pump()
        try:
            bookings = await turn
        except asyncio.CancelledError:
            queue.leave(turn, self.give_back)
            self.pump()
            raise
        return Grant(self, bookings, cost, self._clock.now_s() - asked_s)

    def set_rates(self, kind: Kind, rates: Sequence[Rate]) -> None:
        """Replaces the limits of one kind; waiting callers keep their order."""
        self.rules.set_rates(kind, rates, self._clock.now_s())
        self.refresh()

    def heard(self, stated: Sequence[Stated], grant: Grant) -> None:
        """Adjusts to the limits stated in the response to the grant's call.

        If one of them is a request limit, it ends the search for a request rate.
        """
        rules, now_s = self.rules, self._clock.now_s()
        ends_search = rules.is_searched and any(
            one.kind == "requests" and one.limit is not None for one in stated
        )
        searched = rules.searched if ends_search else []
        is_changed = self._feedback.heard(stated, grant.taken, now_s)
        if ends_search:
            # The new limit counts what was sent under the searched one.
            rules.end_search()
            rules.drop(searched)
        if is_changed or ends_search:
            self.refresh()

    def answered(self, now_s: float, *, is_limited: bool) -> None:
        """Counts the answer to a call. is_limited: whether it was a 429."""
        if self._feedback.answered(now_s, is_limited=is_limited):
            self.refresh()

    @property
    def is_searched(self) -> bool:
        """Whether a request rate is being searched for, which a request limit in a header ends."""
        return self.rules.is_searched

    def search(self, rates: Sequence[Rate]) -> None:
        """Sets the request rates of a search, which apply in addition to the user's own."""
        self.set_rates("requests", [*self._user_rates(), *rates])

    def found_rates(self) -> list[tuple[Kind, Rate]]:
        """Returns the limits in force that the user did not set."""
        return [(line.kind, line.stated) for line in self.rules.lines if line.user is None]

    def keep_sends(self, folder: Path, name: str, old_names: Sequence[str] = ()) -> None:
        """Counts the sends that earlier processes have stored in `folder`, and stores new ones.

        name: the endpoint's name in file names. old_names: its names in older versions of redline,
        whose files are read if `name` has none (see RecentSends).
        """
        self._recent = RecentSends(folder, name, self._clock, old_names)
        self.rules.keep_in(self._recent)

    async def aclose(self) -> None:
        """Closes the files of the sends. May be called again."""
        if self._recent is not None:
            self._recent.close()

    def _user_rates(self) -> list[Rate]:
        lines = self.rules.lines
        return [line.user for line in lines if line.kind == "requests" and line.user is not None]

    def refresh(self) -> None:
        """Checks again which waiting callers get a grant, after a change of the rules.

        Callers whose calls can never be granted under the new rules get OverLimit.
        """
        self.counts_tokens = self.rules.counts_tokens
        if self.rules.lines:
            self.is_unlimited, self._free = False, None
        for waiter in [*self._queue.line()]:
            try:
                self.rules.check(waiter.want)
            except OverLimit as error:
                self._queue.refuse(waiter, error)
        if self._queue:
            self.pump()

    def mark_sent(self, taken: list[Booking], now_s: float) -> None:
        """Records that a grant's call was written at `now_s`, so nothing can be released."""
        for booking in taken:
            booking.window.sent(booking, now_s)
        if self.is_stalled:
            self.pump()

    def give_back(self, taken: list[Booking]) -> None:
        """Releases what a grant took, unless its call was sent."""
        now_s = self._clock.now_s()
        for booking in taken:
            booking.window.release(booking, now_s)
        if self._queue:
            self.pump()

    def settle(self, taken: list[Booking], used: Cost) -> None:
        """Records the usage of a grant's call."""
        self.rules.settle(taken, used)
        if self._queue.waiting and self.counts_tokens:
            self.pump()

    def replied(
        self, taken: list[Booking], took_s: float, sent_s: float, used: Cost | None
    ) -> None:
        """Records that the reply of a grant's call began `took_s` seconds after the write.

        used: see `settle`; None if not known yet.
        """
        self.rules.replied(taken, took_s, sent_s, used)
        if used is not None and self._queue.waiting and self.counts_tokens:
            self.pump()

    def pump(self) -> None:
        """Grants all calls at the head of the queue that may be sent now, then sets the timer."""
        now_s, queue, rules = self._clock.now_s(), self._queue, self.rules
        late_s = max(0.0, now_s - self._due_s)
        parked_s = self._parked_until_s - now_s
        due_s = math.inf
        while (head := queue.head()) is not None:
            wait_s = rules.wait_s(head.want, now_s)
            if wait_s > 0 or parked_s > 0:
                due_s = now_s + max(wait_s, parked_s)
                break
            queue.wake_head(rules.book(head.want, now_s, late_s, now_s - self._busy_from_s))
        self.is_stalled = head is not None and due_s == math.inf
        self._ring_at(due_s, now_s)

    def _rang(self) -> None:
        self._timer = None
        self.rules.jitter.rang(max(0.0, self._clock.now_s() - self._due_s))
        self.pump()


class _Entry(msgspec.Struct, eq=False):
    """The context of one call, made by calling a limiter."""

    limiter: Limiter
    clock: Clock
    cost: Cost
    priority: int
    grant: Grant | None = None

    async def __aenter__(self) -> Grant:
        self.limiter.loop = sole_loop(self.limiter.loop, "Limiter")
        self.grant = grant = await self.limiter.acquire(self.cost, self.priority)
        grant.sent(self.clock.now_s())
        return grant

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        # The call has been answered by now, so it must have reached the server.
        grant = self.grant
        if grant is not None and grant.sent_s is not None and error is None:
            grant.replied(self.clock.now_s() - grant.sent_s)
