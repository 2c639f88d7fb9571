"""Defines the interface of an endpoint's limiter: how calls wait for it and report to it."""

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

# uvloop's timers count whole milliseconds: a shorter one would make the loop spin.
_SHORTEST_TIMER_S = 0.001


class RateLimiter(ABC):
    """Decides when a call to one endpoint may be sent, and adjusts to the endpoint's answers.

    `Limiter` applies the limits of this process: headers and 429s change them, and a search finds
    them. `SharedLimiter` applies limits that several processes share: it ignores what headers state
    about them. Methods that only a `Limiter` supports do nothing here. Each limiter has one timer,
    which is set again whenever the time of the next grant changes.

    is_unlimited: no limit is set, and no answer can set one: answers need not be reported.
    is_shared: other processes share the limits, so their calls may park this limiter.
    counts_tokens: a token limit is set, so estimates matter.
    shook_hands: records the seconds that a connection to the endpoint took to open.
    most: returns the largest amount of a kind that one call could ever be granted; inf if nothing
    limits it. check: raises OverLimit for a cost that could never be granted. fits: returns whether
    a cost could ever be granted under the counts that headers state now.
    accepted: counts an answer other than a 429 at the given time (monotonic); if it returns False,
    `answered` must be called instead.
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
        """A call of at most this many tokens needs only a bound (`Cost.is_bound`), no estimate.

        0 if every call needs an estimate. While the limits have no ample room, `acquire_now` grants
        nothing for a bound: estimate the call then.
        """
        return 0

    @property
    def waiting(self) -> int:
        """The number of callers in the queue."""
        return self._queue.waiting

    @abstractmethod
    def room_s(self, cost: Cost, now_s: float) -> float:
        """Returns the seconds until `cost` could be granted behind the queue; books nothing.

        This is an estimate, as if each caller in the queue needed `cost` as well.
        """

    def room_for_s(self, calls: int, amounts: Mapping[Kind, float], now_s: float) -> float:
        """Returns the seconds until the last of `calls` calls could be granted; 0 if unknown.

        Of more calls than a window holds, only a full window counts, so the result is too low.
        amounts: the tokens that each call takes from the limits, by kind.
        """
        return 0.0

    @abstractmethod
    def binds(self, cost: Cost, now_s: float) -> str:
        """Returns the limit that holds back a call of `cost`, in words; "" if none does."""

    @abstractmethod
    def holding(self, now_s: float) -> list[tuple[Kind, Rate | None]]:
        """Returns the limits that hold back the head of the queue, the strictest first.

        If the queue is empty, the limits that would hold back the smallest call, if these are known
        here. A rate is None while it is being searched for.
        """

    def used(self, now_s: float) -> list[tuple[Kind, Rate, int]]:
        """Returns each limit, and the amount that counts against it now; [] if unknown here."""
        return []

    @property
    def is_lost(self) -> bool:
        """Whether shared limits have been out of reach for so long that calls are refused."""
        return False

    @property
    def parked_until_s(self) -> float:
        """The time (monotonic) before which no grants are given; -inf before the first `park`."""
        return self._parked_until_s

    @property
    def next_s(self) -> float:
        """The time (monotonic) of the park's end or of the next grant, whichever is later.

        -inf if the limiter was never parked and no caller waits.
        """
        due_s = -math.inf if self._timer is None else self._due_s
        return max(self._parked_until_s, due_s)

    def acquire_now(self, cost: Cost) -> Grant | None:
        """Returns a grant if the queue is empty and `cost` may be sent at once; otherwise None.

        cost: must have passed `check`. Shared limits never grant a call at once.
        """
        return None

    @abstractmethod
    async def acquire(self, cost: Cost | int = ..., priority: int = 0) -> Grant:
        """Waits for a grant for one request of `cost`, in turn, and returns it.

        cost: a number means tokens, input and output together. priority: lower goes first.
        Raises OverLimit if the request could never be granted: at once, or when new limits apply
        while it waits.
        """

    def park(self, until_s: float) -> bool:
        """Gives no grants before `until_s` (monotonic).

        Returns False, and changes nothing, if an earlier call set this time or a later one.
        """
        if until_s <= self._parked_until_s:
            return False
        self._parked_until_s = until_s
        return True

    def heard(self, stated: Sequence[Stated], grant: Grant) -> None:  # noqa: B027
        """Adjusts to the limits stated in the response to the grant's call."""

    @abstractmethod
    def answered(self, now_s: float, *, is_limited: bool) -> None:
        """Counts the answer to a call. is_limited: whether it was a 429."""

    @property
    def is_searched(self) -> bool:
        """Whether a request rate is being searched for, which a request limit in a header ends."""
        return False

    def search(self, rates: Sequence[Rate]) -> None:  # noqa: B027
        """Sets the request rates of a search, which apply in addition to the user's own."""

    def found_rates(self) -> list[tuple[Kind, Rate]]:
        """Returns the limits in force that the user did not set."""
        return []

    def keep_sends(self, folder: Path, name: str, old_names: Sequence[str] = ()) -> None:  # noqa: B027
        """Counts the sends that earlier processes have stored in `folder`, and stores new ones.

        name: the endpoint's name in file names. old_names: its names in older versions of redline,
        whose files are read if `name` has none (see RecentSends).
        """

    @abstractmethod
    async def aclose(self) -> None:
        """Closes files and connections. May be called again."""

    @abstractmethod
    def _rang(self) -> None:
        """Handles the timer, which has just fired."""

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
