"""Several endpoints as one backend: calls are bound late, and any endpoint may be lost.

A call that no endpoint can take now waits in the pool, by priority and arrival, and not in front of
one endpoint. An endpoint takes a call only when it has a slot free and few calls that wait for its
limits. Calls that it has not written when it is parked, degraded or taken out come back to their
place in the queue, at no cost to their rows.

  what an endpoint answers with          the call                          the endpoint
  an answer, or an error of the row      has its outcome                   -
  a failure (see health), or a 429       is tried again by Retry, at once  see health; it is parked
                                         if another endpoint is open
  no connection                          goes back to the queue            degraded
  Refused, Unpaid                        goes back to the queue            gone
  OverLimit                              goes to one with larger limits    -
  NoEndpoint                             goes back to the queue            degraded

If there is no other endpoint, the call has its outcome. If at least half of the endpoints are
degraded, the cause is not theirs alone: breakers stand aside, and all get calls.
"""

from __future__ import annotations

import asyncio
import copy
import math
import random
from collections.abc import Callable, Iterator, Sequence

import msgspec

from redline.calls.http import is_unreachable
from redline.clock import SYSTEM, Clock
from redline.errors import (
    BadReply,
    CallError,
    ConfigError,
    Disconnected,
    NoEndpoint,
    OverLimit,
    RateLimited,
    Refused,
    ServerFailed,
    TimedOut,
    Unpaid,
    Withdrawn,
)
from redline.events import SILENCE, EndpointOut, Listener
from redline.route.balance import Asked, Figures, Strategy
from redline.route.health import Breaker, usual_share
from redline.route.queue import CallQueue, Ticket
from redline.route.traffic import Traffic
from redline.waist import Call, Health, Load, Member, Outcome, Request, Sink, failed

_ASKED = Asked()


class Seat(msgspec.Struct, frozen=True, kw_only=True):
    """What is stated of one endpoint of a pool.

    make: makes its backend, given what it is to call when it could take a call again.
    weight: its capacity in proportion to the others', above 0. price: see Figures.
    """

    name: str
    make: Callable[[Callable[[], None]], Member]
    weight: float = 1.0
    price: float = 0.0

    def __post_init__(self) -> None:
        if not self.name:
            raise ConfigError("an endpoint of a pool needs a name")
        if not 0 < self.weight < math.inf:
            raise ConfigError(
                f"the weight of endpoint {self.name} must be above 0, not {self.weight:g}",
                hint="leave the endpoint out of the pool to send nothing to it",
            )


class PoolMember:
    """One endpoint of a pool.

    coming: calls that are about to reach its backend. error: what took it out for good.
    """

    def __init__(
        self,
        seat: Seat,
        on_room: Callable[[PoolMember], None],
        usual: Callable[[Breaker], float],
    ) -> None:
        self.name = seat.name
        self.breaker = Breaker(usual)
        self.figures = Figures(name=seat.name, weight=seat.weight, price=seat.price)
        self.coming = 0
        self.is_leaving = False
        self.error: CallError | NoEndpoint | None = None
        self._is_empty = asyncio.Event()
        self.backend = seat.make(lambda: on_room(self))

    @property
    def is_out(self) -> bool:
        """It gets no call any more."""
        return self.is_leaving or self.error is not None

    def health(self, now_s: float) -> Health:
        """Its state, by what is known of it here and by its backend."""
        if self.error is not None:
            return Health.GONE
        if self.is_leaving:
            return Health.DRAINING
        state = self.backend.load(now_s).state
        return self.breaker.state if state is Health.READY else state

    def is_open(self, now_s: float, is_broken: bool = False) -> bool:
        """It can take a call now. is_broken: even if its breaker is open."""
        if self.is_leaving or self.error is not None:
            return False
        breaker = self.breaker
        if breaker.state is not Health.READY and not is_broken and not breaker.allows(now_s):
            return False
        return self.backend.has_room(now_s, self.coming)

    def release(self) -> None:
        """A call that it had is over."""
        self.figures.in_flight -= 1
        if self.is_leaving and not self.figures.in_flight:
            self._is_empty.set()

    def lose(self, error: CallError | NoEndpoint) -> None:
        """It gets no call any more, because of this error."""
        self.error = error
        self.backend.withdraw()

    async def leave(self) -> None:
        """It gets no call any more. Returns when those that it had are over."""
        self.is_leaving = True
        self.backend.withdraw()
        if self.figures.in_flight:
            await self._is_empty.wait()


class Pool:
    """A backend that sends each call to one of its endpoints.

    strategy: chooses among those that could take a call. listener: is told of endpoints that are
    out. seed: of what is drawn at random. may_be_empty: endpoints are added and removed, and while
    there is none, calls wait for one. traffic: what has passed through it.
    Raises ConfigError for two endpoints of one name, or, unless it may be empty, none at all.
    """

    def __init__(
        self,
        seats: Sequence[Seat],
        strategy: Strategy,
        *,
        clock: Clock = SYSTEM,
        listener: Listener = SILENCE,
        seed: int | None = None,
        may_be_empty: bool = False,
    ) -> None:
        if not seats and not may_be_empty:
            raise ConfigError("a pool needs an endpoint")
        self._strategy = strategy
        self._clock = clock
        self._listener = listener
        self._draw = random.Random(seed).random
        self._members: list[PoolMember] = []
        self._queue = CallQueue()
        self.traffic = Traffic()
        self._given: dict[Ticket, PoolMember] = {}  # whose turn it is
        self._timer: asyncio.TimerHandle | None = None
        self._all_degraded = False
        for seat in seats:
            self.add(seat)

    @property
    def members(self) -> Sequence[PoolMember]:
        """Its endpoints, those that are lost or leaving included."""
        return self._members

    def add(self, seat: Seat) -> None:
        """Another endpoint takes calls from now on. Raises ConfigError if its name is taken."""
        if any(member.name == seat.name for member in self._members):
            raise ConfigError(
                f"two endpoints of a pool are named {seat.name}", hint="give each its own name"
            )
        member = PoolMember(seat, self._fill, self._usual_share)
        self._members.append(member)
        self._weigh()
        self._fill(member)

    @property
    def queued(self) -> int:
        """Calls that wait for an endpoint."""
        return len(self._queue)

    def waits_s(self) -> Iterator[float]:
        """How long each of the calls that wait for an endpoint has waited."""
        return self._queue.waits_s(self._clock.now_s())

    async def remove(self, name: str) -> None:
        """Takes an endpoint out, and returns when the calls that it had are over.

        Calls that it has not written go to other endpoints. Raises KeyError for an unknown name.
        """
        member = next((one for one in self._members if one.name == name), None)
        if member is None:
            raise KeyError(name)
        try:
            await member.leave()
        finally:
            # A cancelled removal ends the calls that are left.
            if member in self._members:
                self._members.remove(member)
                await member.backend.aclose()
        self._weigh()

    def load(self, now_s: float, request: Request | None = None) -> Load:
        loads = [one.backend.load(now_s, request) for one in self._members if not one.is_out]
        if not loads:
            return Load(
                state=Health.GONE,
                waiting=len(self._queue),
                room_s=math.inf,
                binds="no endpoint is left",
            )
        open_s = [one.room_s for one in loads]
        nearest = loads[open_s.index(min(open_s))]
        slots = [one.slots for one in loads]
        is_waited = len(self._queue) > 0
        return Load(
            state=_best(member.health(now_s) for member in self._members),
            in_flight=sum(member.figures.in_flight for member in self._members),
            waiting=len(self._queue) + sum(one.waiting for one in loads),
            slots=sum(slots) if all(slots) else 0,
            ahead_free=sum(one.ahead_free for one in loads),
            room_s=max(nearest.room_s, math.ulp(0.0)) if is_waited else nearest.room_s,
            parked_until_s=min(one.parked_until_s for one in loads),
            tokens_out=sum(one.tokens_out for one in loads),
            binds=nearest.binds,
        )

    async def send(self, request: Request, call: Call, sink: Sink | None = None) -> Outcome:
        ticket: Ticket | None = None
        traffic = self.traffic
        while True:
            member = self._chosen(call)
            if member is None or self._queue:
                if ticket is None:
                    ticket = self._queue.ticket(call, self._clock.now_s())
                try:
                    member = await self._turn(ticket, member)
                except (TimedOut, NoEndpoint, Refused, Unpaid) as error:
                    return failed(error)
            else:
                member.figures.in_flight += 1
            breaker, outcome = member.breaker, None
            epoch = 0 if breaker.state is Health.READY else breaker.began()
            try:
                outcome = await member.backend.send(request, call, sink)
            finally:
                member.release()
                if outcome is None:
                    traffic.ended += 1
                    breaker.cancelled(epoch)
                    self._fill(member)
            is_over = True
            if outcome.status != "succeeded":
                is_over = self._failed(member, outcome, request, call, epoch)
            else:
                member.figures.answered(outcome.latency_s, self._clock.now_s())
                traffic.answered += 1
                traffic.served_s += outcome.latency_s
                if breaker.succeeded(epoch):
                    self._weigh()
            if self._queue:
                self._fill(member)
            if is_over:
                traffic.ended += 1
                return outcome

    async def aclose(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for member in self._members:
            await member.backend.aclose()

    def _chosen(self, call: Call) -> PoolMember | None:
        """The endpoint that takes the call now; None if none can."""
        now_s, members, strategy = self._clock.now_s(), self._members, self._strategy
        is_broken, avoid = self._all_degraded, call.avoid
        most = strategy.looks_at or len(members)
        # From a random one on: of those that are equally good, not always the same.
        first = int(self._draw() * len(members))
        found = list[PoolMember]()
        for one in members[first:] + members[:first]:
            if one.is_open(now_s, is_broken) and one.name not in avoid:
                found.append(one)
                if len(found) == most:
                    break
        if len(found) < 2:
            return found[0] if found else None
        return found[strategy.choose([one.figures for one in found], _ASKED, now_s)]

    async def _turn(self, ticket: Ticket, free: PoolMember | None) -> PoolMember:
        """The endpoint that takes the call when it is its turn.

        free: one that could take it now, if it were not for those before it. Raises TimedOut at
        the call's deadline, and what took the last endpoint out.
        """
        call, queue = ticket.call, self._queue
        self._check_left()
        turn = queue.add(ticket)
        if call.avoid:
            self._weigh()
        if free is not None:
            # Those before it may all avoid this one.
            self._fill(free)
        self._set_timer()
        try:
            await call.in_time(turn, self._clock)
        except BaseException:
            queue.take(ticket)
            self.traffic.ended += 1
            given = self._given.pop(ticket, None)
            if given is not None:
                # It was its turn in the same moment.
                given.coming -= 1
                given.release()
                self._fill(given)
            raise
        member = self._given.pop(ticket)
        member.coming -= 1
        self.traffic.waited(self._clock.now_s() - ticket.since_s)
        return member

    def _fill(self, member: PoolMember) -> None:
        """Gives the endpoint the calls that it can take, in their order."""
        queue = self._queue
        while queue and member.is_open(self._clock.now_s(), self._all_degraded):
            ticket = queue.first_for(member.name)
            if ticket is None or ticket.turn is None:
                return
            queue.take(ticket)
            if ticket.turn.done():
                # It was cancelled in this turn of the loop.
                continue
            member.coming += 1
            member.figures.in_flight += 1
            self._given[ticket] = member
            ticket.turn.set_result(None)

    def _failed(
        self, member: PoolMember, outcome: Outcome, request: Request, call: Call, epoch: int
    ) -> bool:
        """Notes a failure; whether the outcome is the call's."""
        error, breaker, now_s = outcome.error, member.breaker, self._clock.now_s()
        assert error is not None
        if isinstance(error, Withdrawn):
            breaker.cancelled(epoch)
            return False
        if isinstance(error, OverLimit):
            breaker.cancelled(epoch)
            return not self._fits_elsewhere(request, call, now_s)
        if isinstance(error, Refused | Unpaid):
            breaker.cancelled(epoch)
            self._lose(member, error)
            return self._is_alone(member)
        is_down = isinstance(error, NoEndpoint) or is_unreachable(error)
        if is_down or _is_failure(error):
            member.figures.failed()
            if breaker.failed(epoch, now_s, is_down=is_down):
                self._weigh()
                member.backend.withdraw()
        elif isinstance(error, RateLimited):
            breaker.cancelled(epoch)
        elif breaker.succeeded(epoch):
            self._weigh()
        if isinstance(error, NoEndpoint):
            if self._is_elsewhere(member, now_s, but={Health.GONE}):
                return False
            if (of := len(self._members)) > 1:
                error.what = f"no endpoint of {of} is left, {member.name} as the last: {error.what}"
            self._refuse_all(error)
            return True
        if is_down:
            return not self._is_elsewhere(member, now_s, but={Health.GONE, Health.DEGRADED})
        if member.backend.load(now_s).parked_until_s > now_s:
            member.backend.withdraw()
        self._avoid(member, call, now_s)
        return True

    def _fits_elsewhere(self, request: Request, call: Call, now_s: float) -> bool:
        """An endpoint that works has limits that could grant the call; it avoids the others."""
        unfit, is_found = set[str](), False
        for one in self._members:
            fits = one.backend.load(now_s, request).room_s < math.inf
            is_found |= fits and not one.is_out and one.breaker.state is not Health.DEGRADED
            if not fits:
                unfit.add(one.name)
        if is_found:
            call.avoid = frozenset(unfit)
        return is_found

    def _avoid(self, member: PoolMember, call: Call, now_s: float) -> None:
        """The call avoids the endpoint from now on, if it can be tried elsewhere at once."""
        avoided = call.avoid | {member.name}
        for other in self._members:
            if other.name not in avoided and other.is_open(now_s, self._all_degraded):
                call.avoid = avoided
                return
        call.avoid = frozenset()

    def _usual_share(self, breaker: Breaker) -> float:
        """The share of calls that fail at the endpoints of the other breakers."""
        return usual_share(
            one.breaker for one in self._members if one.breaker is not breaker and not one.is_out
        )

    def _is_alone(self, member: PoolMember) -> bool:
        return all(one is member or one.is_out for one in self._members)

    def _is_elsewhere(self, member: PoolMember, now_s: float, but: set[Health]) -> bool:
        """Another endpoint is not out, and not in one of these states by its own account."""
        return any(
            one is not member and not one.is_out and one.backend.load(now_s).state not in but
            for one in self._members
        )

    def _lose(self, member: PoolMember, error: CallError) -> None:
        """An endpoint is out for good; if it was the last, so is every call that waits."""
        is_news = member.error is None
        member.lose(error)
        self._weigh()
        if is_news:
            left = sum(not one.is_out for one in self._members)
            now_s, of = self._clock.now_s(), len(self._members)
            self._listener.on_event(EndpointOut(now_s, member.name, error.what, left, of))
        if all(one.is_out for one in self._members):
            self._refuse_all(error)

    def _refuse_all(self, error: CallError | NoEndpoint) -> None:
        """No call that waits can be sent."""
        for ticket in self._queue.take_all():
            if ticket.turn is not None and not ticket.turn.done():
                ticket.turn.set_exception(copy.copy(error))

    def _check_left(self) -> None:
        """Raises what took the last endpoint out, if none is left."""
        errors = [one.error for one in self._members if one.error is not None]
        if errors and all(one.is_out for one in self._members):
            raise copy.copy(errors[-1])

    def _weigh(self) -> None:
        """An endpoint has come, gone or changed its state.

        If every endpoint is degraded, breakers stand aside. No call waits for endpoints all of
        which it avoids.
        """
        left = [one for one in self._members if not one.is_out]
        working = {one.name for one in left if one.breaker.state is not Health.DEGRADED}
        self._all_degraded = not working
        for call in self._queue.calls():
            if call.avoid and call.avoid >= working:
                call.avoid = frozenset()
        for member in self._members:
            self._fill(member)

    def _set_timer(self) -> None:
        """Looks again when the pause of a degraded endpoint is over, if calls wait."""
        now_s = self._clock.now_s()
        if self._timer is not None or not self._queue:
            return
        again_s = [
            one.breaker.again_s
            for one in self._members
            if not one.is_out and one.breaker.again_s > now_s
        ]
        if again_s:
            wait_s = min(again_s) - now_s
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._look_again)

    def _look_again(self) -> None:
        self._timer = None
        for member in self._members:
            self._fill(member)
        self._set_timer()


def _is_failure(error: CallError | NoEndpoint) -> bool:
    """The endpoint does not work as it should, whatever it was asked."""
    if isinstance(error, ServerFailed):
        return error.status is None or error.status >= 500
    if isinstance(error, TimedOut):
        return error.phase in ("connect", "first_byte", "attempt")
    return isinstance(error, Disconnected | BadReply)


def _best(states: Iterator[Health]) -> Health:
    """The state of a pool: the best of its endpoints'."""
    order = list(Health)
    ranked = [Health.READY, Health.WARMING, Health.STARTING, Health.DEGRADED, Health.DRAINING]
    found = set(states)
    return next((state for state in ranked if state in found), order[-1])
