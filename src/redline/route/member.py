"""One endpoint of a pool: what is stated of it, and what is known of it."""

from __future__ import annotations

import asyncio
import math
from bisect import bisect_left
from collections.abc import Callable

import msgspec

from redline.clock import Clock
from redline.errors import CallError, ConfigError, NoEndpoint
from redline.route.balance import Figures
from redline.route.health import Breaker
from redline.route.watch import Watch, Watchable
from redline.waist import Health, Load, Member


class Seat(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one endpoint of a pool.

    make: makes its backend, given what it is to call when it could take a call again.
    weight: its capacity in proportion to the others', above 0. price: see Figures. pages: of its
    server, to be asked how it is; None if it is not asked.
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
                f"the weight of endpoint {self.name} must be above 0, not {self.weight:g}",
                hint="leave the endpoint out of the pool to send nothing to it",
            )


class PoolMember(Figures):
    """One endpoint of a pool: its figures, and everything else that the pool knows about it.

    coming: calls that are about to reach its backend. error: what took it out for good.
    """

    def __init__(
        self,
        seat: Seat,
        on_room: Callable[[PoolMember], None],
        usual: Callable[[Breaker], float],
    ) -> None:
        super().__init__(name=seat.name, weight=seat.weight, price=seat.price)
        self.pages = seat.pages
        is_probed = seat.pages is not None and seat.pages.has_health
        self.breaker = Breaker(usual, is_probed=is_probed)
        self.coming = 0
        self.is_leaving = False
        self.error: CallError | NoEndpoint | None = None
        self._is_empty = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._watch: Watch | None = None
        self.backend = seat.make(lambda: on_room(self))

    @property
    def figures(self) -> Figures:
        """What a strategy knows of it."""
        return self

    @property
    def is_out(self) -> bool:
        """Whether it gets no call any more."""
        return self.is_leaving or self.error is not None

    def health(self, now_s: float, load: Load | None = None) -> Health:
        """The endpoint's state, by its record here and by its backend. load: the backend's."""
        if self.error is not None:
            return Health.GONE
        if self.is_leaving:
            return Health.DRAINING
        state = (load or self.backend.load(now_s)).state
        return self.breaker.state if state is Health.READY else state

    def is_open(self, now_s: float, is_broken: bool = False, beside: int = 0) -> bool:
        """Whether it can take a call now, besides those already coming, unless it is out.

        is_broken: even if its breaker is open.
        """
        breaker, coming = self.breaker, self.coming + beside
        if breaker.state is not Health.READY and not (is_broken or breaker.allows(now_s, coming)):
            return False
        return self.backend.has_room(now_s, coming)

    def room(self, now_s: float, most: int, is_broken: bool = False) -> int:
        """Calls that it could take now, counted up to `most`. is_broken: see `is_open`."""
        free = self.steady - self.in_flight
        if free >= most:
            return most
        if most == 1:
            return int(self.is_open(now_s, is_broken))

        def is_full(calls: int) -> bool:
            return not self.is_open(now_s, is_broken, beside=calls)

        return bisect_left(range(most), True, key=is_full)

    def trust(self, now_s: float) -> None:
        """Has its backend say once for many calls whether it takes them, if nothing is wrong.

        Not before its first answer, which tells its latency at once; later ones do at a review.
        """
        is_known = self.answers > 0 and self.breaker.is_settled
        if is_known and not self.steady and not self.is_out:
            self.steady = self.backend.load(now_s).steady

    def distrust(self) -> None:
        """Makes each call ask the backend whether it could take the call."""
        self.steady = 0

    def comes(self) -> None:
        """A call is about to reach its backend."""
        self.coming += 1
        self.began()

    def came(self) -> None:
        """That call is there, or has been cancelled on its way."""
        self.coming -= 1

    def is_parked(self, now_s: float) -> bool:
        """Whether it takes no call for a time that is known."""
        return self.backend.load(now_s).parked_until_s > now_s

    def closed_until_s(self, now_s: float) -> float:
        """Until when it takes no call whatever happens; not later than now if that is unknown."""
        again_s = self.breaker.again_s if self.breaker.state is Health.DEGRADED else -math.inf
        return max(again_s, self.backend.load(now_s).parked_until_s)

    def look_again(self, wait_s: float, look: Callable[[PoolMember], None]) -> None:
        """Has `look` called after this time, at the latest."""
        self.forget_timer()
        self._timer = asyncio.get_running_loop().call_later(wait_s, look, self)

    def forget_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def check_empty(self) -> None:
        """Wakes the waiter for the end of its calls if they are over."""
        if not self.in_flight:
            self._is_empty.set()

    def watch(self, on_health: Callable[[bool], None], clock: Clock) -> None:
        """Begins to ask its server how it is."""
        if self.pages is not None:
            self._watch = Watch(self.pages, self, on_health, clock)
            self._watch.start()

    async def aclose(self) -> None:
        """Ends its backend, and asks its server nothing any more."""
        self.forget_timer()
        if self._watch is not None:
            await self._watch.aclose()
        await self.backend.aclose()

    def lose(self, error: CallError | NoEndpoint) -> None:
        """It gets no call any more, because of this error."""
        self.error = error
        self.backend.withdraw()

    async def leave(self) -> None:
        """It gets no call any more. Returns when those that it had are over."""
        self.is_leaving = True
        self.backend.withdraw()
        if self.in_flight:
            await self._is_empty.wait()
