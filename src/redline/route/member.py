"""Represents one endpoint of a pool: its settings, and what the pool knows about it."""

from __future__ import annotations

import asyncio
import math
from bisect import bisect_left
from collections.abc import Callable

import msgspec

from redline.clock import Clock
from redline.errors import CallError, ConfigError, NoEndpoint
from redline.route.balance import Figures
from redline.route.health import LONGEST_PAUSE_S, Breaker
from redline.route.watch import Watch, Watchable
from redline.waist import Health, Load, Member

# The first pause of an endpoint that refuses calls. A refusal is over sooner than an outage: if one
# of eight busy servers, with one slot each, refuses every second call at random, calls take 5 %
# longer than without a pause; with a first pause of 1 s, they take 13 % longer.
REFUSED_PAUSE_S = 0.1


class Seat(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one endpoint of a pool.

    make: makes the endpoint's backend, which calls the argument of `make` when it could take a call
    again. weight: its capacity relative to the others, above 0. price: see Figures. pages: its
    server's metrics and health pages; None if they are not read. Raises ConfigError for an empty
    name, or a weight that is not above 0 and finite.
    """

    name: str
    make: Callable[[Callable[[], None]], Member]
    weight: float = 1.0
    price: float = 0.0
    pages: Watchable | None = None

    def __post_init__(self) -> None:
        if not self.name:
            raise ConfigError("an endpoint of a pool needs a name")
        if not 0 < self.weight < math.inf:
            raise ConfigError(
                f"the weight of endpoint {self.name} must be above 0 and finite, "
                f"not {self.weight:g}",
                hint="leave the endpoint out of the pool to send nothing to it",
            )


class PoolMember(Figures):
    """One endpoint of a pool: its figures, and everything else that the pool knows about it.

    error: the error that took the endpoint out for good; None otherwise. failure: how the endpoint
    last failed; empty if it never did. is_empty: set when the endpoint is out and has no calls
    left. succeeded: the number of calls that it has answered, without those in `fresh_s`; reading
    `Pool.traffic` adds these.
    """

    def __init__(
        self,
        seat: Seat,
        on_room: Callable[[PoolMember], None],
        usual: Callable[[Breaker], float],
    ) -> None:
        super().__init__(name=seat.name, weight=seat.weight, price=seat.price)
        self.pages = seat.pages
        self.breaker = Breaker(usual, is_probed=seat.pages is not None and seat.pages.has_health)
        self.is_leaving = False
        self.succeeded = 0
        self.error: CallError | NoEndpoint | None = None
        self.failure = ""
        self.is_empty = asyncio.Event()
        # The state after a refusal, see `refused`; otherwise the pause is 0.
        self._pause_s = 0.0
        self._again_s = -math.inf
        self._most = 0
        self._timer: asyncio.TimerHandle | None = None
        self._watch: Watch | None = None
        self.backend = seat.make(lambda: on_room(self))

    @property
    def is_out(self) -> bool:
        """Whether the endpoint gets no more calls."""
        return self.is_leaving or self.error is not None

    def health(self, now_s: float, load: Load | None = None) -> Health:
        """Returns the endpoint's state. load: that of its backend; None to query the backend."""
        if self.error is not None:
            return Health.GONE
        if self.is_leaving:
            return Health.DRAINING
        state = (load or self.backend.load(now_s)).state
        return self.breaker.state if state is Health.READY else state

    def is_open(self, now_s: float, beside: int = 0) -> bool:
        """Returns whether the endpoint can take a call now, besides the calls coming to it.

        beside: further calls that will come. Does not check whether the endpoint is out.
        """
        breaker, coming = self.breaker, self.coming + beside
        if breaker.state is not Health.READY and not breaker.allows(now_s, coming):
            return False
        if self._pause_s:
            in_flight = self.in_flight + beside
            if in_flight >= self._most and (in_flight or now_s < self._again_s):
                return False
        return self.backend.has_room(now_s, coming)

    def room(self, now_s: float, most: int) -> int:
        """Returns the number of calls that the endpoint could take now, up to `most`."""
        free = self.steady - self.in_flight
        if free >= most:
            return most
        if most == 1:
            return int(self.is_open(now_s))
        return bisect_left(range(most), True, key=lambda calls: not self.is_open(now_s, calls))

    def trust(self, now_s: float) -> None:
        """Sets `steady` from the backend's load; the backend is then not asked before each call.

        Does nothing before the first answer, whose latency must count at once, not at a review; nor
        if the endpoint is out or there is evidence against it.
        """
        is_known = self.answers > 0 and self.breaker.is_settled and not self._pause_s
        if is_known and not self.steady and not self.is_out:
            self.steady = self.backend.load(now_s).steady

    def distrust(self) -> None:
        """Resets `steady`, so that the backend is asked before each call."""
        self.steady = 0

    def comes(self) -> None:
        """Counts a call that is about to reach its backend."""
        self.coming += 1
        self.began()

    def refused(self, now_s: float) -> None:
        """Counts a call that the endpoint refused with a 429 that states no time to wait.

        Also counts a call that was rejected for its model or key, if none has been answered yet.
        Until the endpoint answers a call that was sent later, it gets no more calls at once than it
        has now; if it has none, it gets one at the end of a pause. Pauses double, as after a
        failure.
        """
        self._most = self.in_flight - 1
        if now_s >= self._again_s:
            self._pause_s = min(LONGEST_PAUSE_S, 2 * self._pause_s) or REFUSED_PAUSE_S
            self._again_s = now_s + self._pause_s

    def answered(self, latency_s: float, now_s: float) -> None:
        super().answered(latency_s, now_s)
        if self._pause_s and now_s - latency_s >= self._again_s - self._pause_s:
            self.resume()

    def resume(self) -> None:
        """Ends the pause after a refusal."""
        self._pause_s, self._again_s = 0.0, -math.inf

    def fails(self, what: str) -> None:
        """Records in `failure` how the endpoint has failed now."""
        self.failure = what

    def count(self, answers: int) -> None:
        """Adds this number of answers to `succeeded`."""
        self.succeeded += answers

    def is_parked(self, now_s: float) -> bool:
        """Returns whether the endpoint takes no calls until a known time."""
        return max(self._again_s, self.backend.load(now_s).parked_until_s) > now_s

    def closed_until_s(self, now_s: float) -> float:
        """Returns the time before which the endpoint takes no call; now or earlier if unknown."""
        load, breaker = self.backend.load(now_s), self.breaker
        closed_until_s = max(load.parked_until_s, load.opens_s, self._again_s)
        if breaker.is_ignored or breaker.state is not Health.DEGRADED:
            return closed_until_s
        return max(breaker.again_s, closed_until_s)

    def look_again(self, wait_s: float, look: Callable[[PoolMember], None]) -> None:
        """Calls `look` in `wait_s` seconds, unless the timer is first cancelled or replaced."""
        self.forget_timer()
        self._timer = asyncio.get_running_loop().call_later(wait_s, look, self)

    def forget_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def watch(self, on_health: Callable[[bool], None], clock: Clock) -> None:
        """Starts reading its server's pages."""
        if self.pages is not None:
            self._watch = Watch(self.pages, self, on_health, clock)

    async def aclose(self) -> None:
        """Closes its backend, and stops reading its server's pages."""
        self.forget_timer()
        if self._watch is not None:
            await self._watch.aclose()
        await self.backend.aclose()

    def lose(self, error: CallError | NoEndpoint) -> None:
        """Takes the endpoint out for good, because of this error."""
        self.error = error
        self.backend.withdraw()

    async def leave(self) -> None:
        """Takes the endpoint out; returns when its remaining calls have ended."""
        self.is_leaving = True
        self.backend.withdraw()
        if self.in_flight:
            await self.is_empty.wait()
