"""The interface of an endpoint's limiter: how calls wait for it and report to it."""

from __future__ import annotations

import asyncio
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from redline.clock import Clock
from redline.limits.rule import Cost, Kind, Limits, Rate, Rules
from redline.limits.server import Stated
from redline.limits.wait.grant import Grant
from redline.limits.wait.queue import WaitQueue

# uvloop's timers count whole milliseconds: a shorter one would spin.
_SHORTEST_TIMER_S = 0.001


class RateLimiter(ABC):
    """The rate limits of one endpoint: when a call may go, and what the endpoint's answers change.

    `Limiter` keeps the limits of this process: headers and 429s change them, and a search finds
    them. `SharedLimiter` keeps those of several processes: only their ledger changes them, so it
    ignores what headers state. By default, methods for what only a `Limiter` can do change nothing.
    Either has one timer, which is set again and again.

    is_unlimited: no limit is set, and no answer can set one: answers need not be reported.
    is_shared: other processes keep the same limits, so that it may be parked by their calls.
    counts_tokens: a token limit is set, so estimates matter.
    shook_hands: records the seconds that a connection to the endpoint took.
    most: the largest amount of a kind that one call could ever be granted; inf if nothing limits
    it. check: raises OverLimit for a cost that could never be granted. fits: whether the counts
    that headers state now could grant a cost.
    accepted: counts an answer other than a 429, by the time (monotonic); False if `answered` must
    be called for it instead.
    """

    is_unlimited = False
    is_shared = False
    accepted: Callable[[float], bool]
    _timer: asyncio.TimerHandle | None = None
    _due_s = math.inf  # when the timer should ring; inf without one
    _busy_from_s = 0.0  # since when the queue has not been empty

    def __init__(self, limits: Limits, clock: Clock) -> None:
        self.rules = Rules(limits)
        self.counts_tokens = self.rules.counts_tokens
        self.shook_hands = self.rules.jitter.shook_hands
        self.most = self.rules.most
        self.check = self.rules.check
        self.fits = self.rules.fits
        self._clock = clock
        self._queue: WaitQueue[Any, Any] = WaitQueue()
        self._parked_until_s = -math.inf

    @property
    def easy_tokens(self) -> int:
        """The most tokens that a call may take by a bound (`Cost.is_bound`), while limits are free.

        0 for none. If limits are not free, `acquire_now` grants no bound: estimate the call then.
        """
        return 0

    @property
    def waiting(self) -> int:
        """Callers in the queue."""
        return self._queue.waiting

    @abstractmethod
    def room_s(self, cost: Cost, now_s: float) -> float:
        """Seconds until `cost` could be granted after the callers in the queue; books nothing.

        Estimated as if each of them cost the same.
        """

    def room_for_s(self, calls: int, amounts: Mapping[Kind, float], now_s: float) -> float:
        """Seconds until the last of these calls could be granted; 0 if unknown.

        amounts: the tokens that each takes of the limits, by kind.
        """
        return 0.0

    @abstractmethod
    def binds(self, cost: Cost, now_s: float) -> str:
        """The limit that holds a call of `cost`, in words; empty if none does."""

    @abstractmethod
    def holding(self, now_s: float) -> list[tuple[Kind, Rate | None]]:
        """The limits that hold the head of the queue, the strictest first; empty if none does.

        Of an empty queue, those that would hold the smallest call, if they are known here.
        A rate is None while it is searched for, or if it is not known here.
        """

    def used(self, now_s: float) -> list[tuple[Kind, Rate, int]]:
        """Each limit, and what counts against it now, as far as this process knows."""
        return []

    @property
    def parked_until_s(self) -> float:
        """No grants are given before this time (monotonic); -inf if it was never parked."""
        return self._parked_until_s

    @property
    def next_s(self) -> float:
        """When the next grant may be given (monotonic) to a present waiter; -inf if none waits."""
        due_s = -math.inf if self._timer is None else self._due_s
        return max(self._parked_until_s, due_s)

    def acquire_now(self, cost: Cost) -> Grant | None:
        """A grant if `cost`, which must have been checked, may be sent without waiting."""
        return None

    @abstractmethod
    async def acquire(self, cost: Cost | int = ..., priority: int = 0) -> Grant:
        """A grant for one request of `cost`; waits for its turn.

        cost: a number means tokens, input and output together. priority: lower goes first.
        Raises OverLimit at once if it could never be granted.
        """

    def park(self, until_s: float) -> bool:
        """Gives no grants before `until_s` (monotonic). True if that is later than before."""
        if until_s <= self._parked_until_s:
            return False
        self._parked_until_s = until_s
        return True

    def heard(self, stated: Sequence[Stated], grant: Grant) -> None:  # noqa: B027
        """Adjusts to the limits that the answer to the grant's call states."""

    @abstractmethod
    def answered(self, now_s: float, *, is_limited: bool) -> None:
        """Counts the answer to a call. is_limited: it was a 429."""

    @property
    def is_searched(self) -> bool:
        """Whether a request rate is searched for; a header that states one ends the search."""
        return False

    def search(self, rates: Sequence[Rate]) -> None:  # noqa: B027
        """Sets request rates that hold besides the user's own, while a search continues."""

    def found_rates(self) -> list[tuple[Kind, Rate]]:
        """The limits in force that the user did not state."""
        return []

    def keep_sends(self, folder: Path, name: str, old_names: Sequence[str] = ()) -> None:  # noqa: B027
        """Counts the sends that an earlier process kept in `folder`, and keeps its own there.

        name: of the endpoint, as a part of file names. old_names: read if `name` has no files.
        """

    @abstractmethod
    async def aclose(self) -> None:
        """Closes files and connections. May be repeated."""

    @abstractmethod
    def _rang(self) -> None:
        """Called when the timer rings."""

    def _ring_at(self, due_s: float, now_s: float) -> None:
        """Sets the timer to `due_s`; inf for none."""
        if self._timer is not None:
            if due_s == self._due_s:
                return
            self._timer.cancel()
            self._timer = None
        self._due_s = due_s
        if due_s < math.inf:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(due_s - now_s, _SHORTEST_TIMER_S), self._rang)
