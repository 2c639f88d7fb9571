"""Combines endpoints into one backend: a call gets an endpoint only when one can take it.

A call that no endpoint can take now waits in the pool, not at an endpoint, in order of priority and
arrival. An endpoint takes a call only when it has a free slot and its limits will allow the call
soon. When an endpoint is parked, degraded or taken out, the calls that are not written to it yet
return to their places in the queue, which uses up no retry.

  result of an attempt               the call                            the endpoint
  an answer, or an error of the row  ends with it                        stays
  a failure (see health)             is left to Retry or Failover; goes  may be degraded
                                     on at once if another has room; see
                                     also _relent
  a 429                              likewise                            is parked, or keeps to the
                                                                         calls it has; see member
  no connection, or NoEndpoint       returns to the queue                is degraded
  Refused or Unpaid                  returns to the queue                is gone
  OverLimit                          goes to one with larger limits      stays
  Rejected for its model or key      goes to one that has not rejected   stays; pauses, if it has
                                     the call, even if it is paused      answered no call yet

If there is no other endpoint, the call ends with the error. If all endpoints are degraded, their
breakers are ignored: an endpoint whose pause is over gets the next call, and the strategy assigns
all others.
"""

from __future__ import annotations

import asyncio
import copy
import math
import random
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import TypeAlias, TypeGuard

from redline.apis import lacks_model
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
    Rejected,
    Retryable,
    ServerFailed,
    TimedOut,
    Unpaid,
    Withdrawn,
)
from redline.events import SILENCE, EndpointDegraded, EndpointOut, EndpointRecovered, Listener
from redline.process import counted
from redline.route.balance import (
    REVIEW_S,
    Asked,
    LongestPrefix,
    PowerOfTwo,
    Strategy,
    draws,
    review,
    soonest,
)
from redline.route.call_facts import CallFacts
from redline.route.health import BAD_PAGES, LAST_SHARE, USUAL_SHARE, Breaker, usual_share
from redline.route.member import PoolMember, Seat
from redline.route.queue import LOOKED_AT, CallQueue, Ticket
from redline.route.traffic import Traffic, wait_class
from redline.waist import Call, Health, Load, Outcome, Request, Sink, failed

_ASKED = Asked()
MOVED = "the endpoints have changed"
# A call that its caller cancels counts as a failure after this multiple of the mean latency.
_LONG_WAIT = 3.0
# A failed call waits this long for another endpoint. Then an endpoint that failed it may take it
# again, if that endpoint has answered other calls meanwhile. From its second failure on, 429s not
# counted, the call waits 5 s; from its third on, 50 s.
_PATIENCE_S = 0.5
# The statuses with which an endpoint rejects a request because of its contents.
_OF_THE_ROW = (400, 413, 422)
Unfit: TypeAlias = OverLimit | Rejected
_READY = Health.READY
# The states of an endpoint, best first.
_STATES = (_READY, Health.WARMING, Health.STARTING, Health.DEGRADED, Health.DRAINING, Health.GONE)


class Pool:
    """A backend that sends each call to one of its endpoints.

    strategy: chooses among the endpoints that could take a call. most: the most calls at all
    endpoints together; None for the sum of what each allows. listener: notified when an endpoint is
    degraded, recovers or is lost. seed: seeds the random draws. may_be_empty: whether calls wait
    for an endpoint to be added while there is none. moves: how often `move` was called.
    Raises ConfigError for two endpoints with the same name and, unless `may_be_empty`, for none.
    """

    def __init__(
        self,
        seats: Sequence[Seat],
        strategy: Strategy,
        *,
        most: int | None = None,
        clock: Clock = SYSTEM,
        listener: Listener = SILENCE,
        seed: int | None = None,
        may_be_empty: bool = False,
    ) -> None:
        if not seats and not may_be_empty:
            raise ConfigError("a pool needs an endpoint")
        self._strategy = strategy
        self._ordering = strategy if isinstance(strategy, LongestPrefix) else None
        self._facts = CallFacts(strategy.needs) if strategy.needs else None
        self._asks_room = "room" in strategy.needs
        self._goes_by_soonest = isinstance(strategy, PowerOfTwo)
        self._most = math.inf if most is None else most
        self._taken = 0  # calls at all endpoints together, up to `most`
        self._clock, self._now_s = clock, clock.now_s
        self._listener = listener
        self._random = random.Random(seed).random
        self._members: list[PoolMember] = []
        # The endpoints whose pages are not read yet: before the first call, no event loop runs.
        self._unwatched: list[PoolMember] = []
        # The endpoints that can probably take a call; the chosen one is asked again.
        self._open: dict[str, PoolMember] = {}
        # Endless draws of these endpoints; None once the endpoints or their states have changed.
        self._draws: Iterator[Sequence[PoolMember]] | None = None
        # The same draws while calls may take the fast path; None while calls wait.
        self._usual: Iterator[Sequence[PoolMember]] | None = None
        self._review_s = -math.inf
        self._reviewer: asyncio.TimerHandle | None = None
        self._queue = CallQueue()
        self._on_room: Callable[[], None] | None = None
        self._is_awaited = False  # whether the holder waits to be notified of room
        self._traffic = Traffic()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.moves = 0
        for seat in seats:
            self.add(seat)

    @property
    def members(self) -> Sequence[PoolMember]:
        """The endpoints of the pool, including lost and leaving ones."""
        return self._members

    def add(self, seat: Seat) -> None:
        """Adds an endpoint. Raises ConfigError if its name is taken."""
        for number, member in enumerate(self._members, 1):
            if member.name == seat.name:
                raise ConfigError(
                    f"two endpoints of a pool are named {seat.name}",
                    where=f"its endpoints {number} and {len(self._members) + 1}",
                    hint="give each its own name",
                )
        member = PoolMember(seat, self._look, self._usual_share)
        self._members.append(member)
        self._unwatched.append(member)
        self._review_at_once()
        self._weigh()

    @property
    def traffic(self) -> Traffic:
        """Counters of the pool's traffic."""
        for member in self._members:
            self._take_up(member)
        return self._traffic

    @property
    def queued(self) -> int:
        """The number of calls that wait for an endpoint."""
        return len(self._queue.tickets)

    @property
    def most(self) -> int | None:
        """The most calls at all endpoints together; None for the sum of what each allows.

        Once it is lowered, no call begins until fewer than the new number are in flight.
        """
        return None if self._most == math.inf else int(self._most)

    @most.setter
    def most(self, most: int | None) -> None:
        self._most = math.inf if most is None else most
        self._dispatch()

    @property
    def is_full(self) -> bool:
        """Whether `most` calls are in flight at all endpoints together."""
        return self._taken >= self._most

    def held_by(self, on_room: Callable[[], None]) -> None:
        """Sets the callback for when there may be room again after `has_room` returned False.

        on_room: called when a call has ended, or an endpoint is no longer parked, has recovered or
        was added. It may also be called without need, and must not block.
        """
        self._on_room = on_room

    def has_room(self, now_s: float, coming: int = 0, avoid: Collection[str] = frozenset()) -> bool:
        """Returns whether a call that avoids these endpoints would not wait.

        coming: other calls that will come before it. Also True if every endpoint that it may use is
        lost: the call then fails at once. After False, the callback of `held_by` is called when
        there may be room.
        """
        loop = self._loop
        if loop is None or not loop.is_running():
            self._enter_loop()
        if self._unwatched:
            self._watch()
        left, members = coming, self._open
        if self._most - self._taken > coming and len(self._queue.tickets) < LOOKED_AT:
            for name, member in [*members.items()]:
                if name in avoid:
                    continue
                left -= member.room(now_s, left + 1)
                if left < 0:
                    return True
                if not member.is_open(now_s):
                    self._close(member, now_s)
        # From now on the end of each call must be observed, which the fast path does not do.
        self._is_awaited, self._usual = True, None
        return self._lost(avoid) is not None

    def slots(self, now_s: float) -> int:
        """Returns how many calls the endpoints can have in flight at present; 0 if unknown.

        Of an endpoint that takes no calls, only the calls that it still has count.
        """
        total = 0.0
        for one in self._members:
            load = one.backend.load(now_s)
            is_working = one.breaker.is_ignored or one.breaker.is_working
            if one.is_out or not is_working or load.parked_until_s > now_s:
                total += one.in_flight
            else:
                total += load.slots or math.inf
        return self._bounded(total)

    def _bounded(self, slots: float) -> int:
        """Returns the smaller of `slots` and the pool's maximum; 0 if both are infinite."""
        most = min(slots, self._most)
        return 0 if most == math.inf else int(most)

    def waits_s(self) -> Iterator[float]:
        """Yields how long each waiting call has waited for an endpoint, in seconds."""
        now_s = self._now_s()
        return (now_s - ticket.since_s for ticket in self._queue.tickets)

    def move(self) -> None:
        """Ends waiting calls with Withdrawn, and later each call in flight that would wait again.

        For use when the pool's endpoints change. A call that its endpoint answers is not affected.
        """
        self.moves += 1
        for ticket in self._queue.take_all():
            _fail(ticket, Withdrawn(MOVED))

    async def remove(self, name: str) -> None:
        """Takes an endpoint out, and returns when its remaining calls have ended.

        Calls that it has not written go to other endpoints. Raises KeyError for an unknown name.
        """
        member = next((one for one in self._members if one.name == name), None)
        if member is None:
            raise KeyError(name)
        self._drop(member)
        self._take_up(member)
        try:
            await member.leave()
        finally:
            # Cancelling the removal ends the remaining calls.
            if member in self._members:
                self._members.remove(member)
                await member.aclose()
        self._weigh()

    def load(self, now_s: float, request: Request | None = None) -> Load:
        load_of = {one: one.backend.load(now_s, request) for one in self._members if not one.is_out}
        loads = [*load_of.values()]
        if not loads:
            return Load(
                state=Health.GONE,
                waiting=self.queued,
                queued=self.queued,
                room_s=math.inf,
                binds="no endpoint is left",
            )
        nearest = min(loads, key=lambda one: one.room_s)
        # An endpoint that has long been out of reach is gone: its wait would never end.
        reachable = [one for one in loads if one.state is not Health.GONE] or loads
        slots = [one.slots for one in loads]
        states = (one.health(now_s, load_of.get(one)) for one in self._members)
        least_s = math.ulp(0.0) if self.queued or self.is_full else 0.0
        binds = f"{counted(int(self._most), 'call')} in flight" if self.is_full else nearest.binds
        return Load(
            state=min(states, key=_STATES.index),
            in_flight=sum(one.in_flight for one in self._members),
            waiting=self.queued + sum(one.waiting for one in loads),
            queued=self.queued + sum(one.queued for one in loads),
            slots=self._bounded(sum(slots) if all(slots) else math.inf),
            ahead_free=sum(one.ahead_free for one in loads),
            room_s=max(nearest.room_s, least_s),
            parked_until_s=min(one.parked_until_s for one in reachable),
            next_s=min(one.next_s for one in reachable),
            tokens_out=sum(one.tokens_out for one in loads),
            binds=binds,
        )

    def may_answer(self, now_s: float) -> bool:
        """Returns whether an endpoint works, or a call may now find out if one works again."""
        for one in self._members:
            if one.is_out:
                continue
            load = one.backend.load(now_s)
            if one.health(now_s, load) in (_READY, Health.WARMING):
                return True
            is_open = load.room_s < math.inf and load.parked_until_s <= now_s
            if is_open and one.breaker.is_due(now_s):
                return True
        return False

    async def send(self, request: Request, call: Call, sink: Sink | None = None) -> Outcome:
        # `is_running` takes a fraction of the time of `get_running_loop`.
        loop = self._loop
        if loop is None or not loop.is_running():
            self._enter_loop()
        usual, taken, moves = self._usual, self._taken, self.moves
        if usual is None or call.avoid or taken >= self._most:
            return await self._send(request, call, sink, moves)
        # The fast path of nearly all calls: an endpoint that certainly has room is not asked, and
        # of its answer, only the arrival and the latency are recorded.
        member = soonest(next(usual))
        in_flight = member.in_flight
        if in_flight >= member.steady:
            return await self._send(request, call, sink, moves, member)
        self._taken = taken + 1
        member.in_flight = in_flight + 1
        member.expected_s += member.call_s
        epoch = member.breaker.epoch
        try:
            outcome = await member.backend.send(request, call, sink)
        except BaseException:
            self._cancelled(member, call, epoch)
            raise
        if outcome.error is None and usual is self._usual:
            self._taken -= 1
            member.in_flight -= 1
            member.expected_s -= member.call_s
            member.fresh_s.append(outcome.latency_s)
        elif not self._is_over(member, outcome, request, call, epoch):
            outcome = await self._send(request, call, sink, moves)
        return outcome

    async def ask(self, member: PoolMember, request: Request, call: Call) -> Outcome:
        """Returns the outcome of a call that only `member` can answer, such as GET /v1/models.

        The call does not wait behind calls of the pool, and does not count as one of them.
        """
        outcome = await member.backend.send(request, call)
        if isinstance(outcome.error, NoEndpoint | Retryable):
            # The call may have parked the endpoint; calls of the pool must not wait there.
            self._distrust(member)
            self._pass_by(member, self._now_s())
        return outcome

    async def aclose(self) -> None:
        if self._reviewer is not None:
            self._reviewer.cancel()
            self._reviewer = None
        self.move()
        for member in self._members:
            await member.aclose()

    async def _send(
        self,
        request: Request,
        call: Call,
        sink: Sink | None,
        moves: int,
        member: PoolMember | None = None,
    ) -> Outcome:
        """Sends a call to one endpoint after another until it has an outcome; returns the outcome.

        moves: `self.moves` when the call arrived. member: the first endpoint, if already chosen.
        """
        ticket: Ticket | None = None
        facts = self._facts
        asked = _ASKED if facts is None else facts.of(request)
        if self._unwatched:
            self._watch()
        if call.is_last and self._working(self._now_s()) - call.avoid:
            # A call with no retry left tries no broken endpoint.
            broken = [one.name for one in self._members if one.breaker.state is Health.DEGRADED]
            call.avoid = call.avoid.union(broken)
            member = None
        while True:
            if moves != self.moves:
                return failed(Withdrawn(MOVED))
            if self._queue.tickets or self.is_full:
                member = None
            elif member is None or member.breaker.is_ignored or not member.is_open(self._now_s()):
                member = self._chosen(call, asked)
            if member is not None:
                self._taken += 1
                member.began()
            else:
                if ticket is None:
                    ticket = Ticket(call, self._now_s(), asked)
                try:
                    member = await self._turn(ticket)
                except (TimedOut, NoEndpoint, Refused, Unpaid, Withdrawn) as error:
                    return failed(error)
            breaker = member.breaker
            epoch = breaker.epoch
            if breaker.state is not _READY:
                epoch = breaker.began(self._now_s())
            try:
                if facts is None:
                    outcome = await member.backend.send(request, call, sink)
                else:
                    outcome = await facts.send(member.backend, member, asked, request, call, sink)
            except BaseException:
                self._cancelled(member, call, epoch)
                raise
            if ticket is not None:
                outcome.was_queued(ticket.since_s)
            if self._is_over(member, outcome, request, call, epoch):
                return outcome
            member = None

    def _cancelled(self, member: PoolMember, call: Call, epoch: int) -> None:
        """Counts a call that ended without an outcome."""
        now_s = self._now_s()
        self._take_up(member)
        if call.silent_s is not None and self._has_let_wait(member, call, call.silent_s, now_s):
            self._distrust(member)
            waited_s = now_s - call.silent_s
            what = f"no first byte within {waited_s:.3g} s, after which the caller gave up"
            self._count_failure(member, epoch, now_s, what)
        else:
            member.breaker.cancelled(epoch)
        self._unanswered(member)
        self._traffic.unanswered += 1

    def _is_over(
        self, member: PoolMember, outcome: Outcome, request: Request, call: Call, epoch: int
    ) -> bool:
        """Records the result of an attempt; returns whether it is the outcome of the call."""
        breaker = member.breaker
        self._take_up(member)
        if outcome.status != "succeeded":
            is_over = self._failed(member, outcome, request, call, epoch)
            self._unanswered(member)
            self._traffic.unanswered += is_over
            return is_over
        self._taken -= 1
        if epoch == breaker.epoch:
            member.answered(outcome.latency_s, self._now_s())
        else:
            # The call began before the endpoint was degraded, and its result is ignored.
            member.ended()
        member.count(1)
        self._traffic.answered += 1
        self._traffic.served_s += outcome.latency_s
        if member.answers == 1:
            self._review_at_once()
        if breaker.succeeded(epoch):
            self._improved(member)
        if member.name not in self._open:
            self._look(member)
        elif self._queue.tickets or self._is_awaited:
            self._dispatch()
        return True

    def _take_up(self, member: PoolMember) -> None:
        """Counts the answers that the fast path has left in `member.fresh_s`."""
        if fresh_s := member.fresh_s:
            member.breaker.answered(len(fresh_s))
            member.count(len(fresh_s))
            self._traffic.answered += len(fresh_s)
            self._traffic.served_s += sum(fresh_s)
            member.take_up(self._now_s())

    def _chosen(self, call: Call, asked: Asked) -> PoolMember | None:
        """Returns the endpoint that takes the call now; None if none can."""
        now_s, members = self._now_s(), self._open
        if now_s >= self._review_s:
            self._review(now_s)
        if not self._strategy.looks_at:
            # The strategy considers all endpoints, so all are asked first.
            for one in list(members.values()):
                if not one.is_open(now_s):
                    self._close(one, now_s)
                elif self._asks_room:
                    one.room_s = one.backend.load(now_s, asked.request).room_s
        while members:
            among: Sequence[PoolMember]
            if call.avoid:
                among = [one for name, one in members.items() if name not in call.avoid]
                if not among:
                    return None
            else:
                among = self._drawn()
            if among[0].breaker.is_ignored:
                # Otherwise, a strategy that prefers a broken endpoint would never try the others.
                due = [each for each in among if each.breaker.again_s <= now_s and not each.coming]
                among = due or among
            member = members[self._strategy.choose(among, asked, now_s).name]
            if member.is_open(now_s):
                return member
            self._close(member, now_s)
        return None

    def _drawn(self) -> Sequence[PoolMember]:
        """Returns as many open endpoints, in random order, as the strategy considers."""
        if self._draws is None:
            self._draws = draws([*self._open.values()], self._strategy.looks_at, self._random)
        is_observed = self._is_awaited or self._queue.tickets
        if self._goes_by_soonest and self._usual is None and not is_observed:
            self._usual = self._draws
        return next(self._draws)

    def _review(self, now_s: float) -> None:
        """Updates the endpoints' figures, every REVIEW_S seconds while calls arrive."""
        members = self._members
        for one in members:
            self._take_up(one)
        review(members, now_s)
        for one in members:
            one.trust(now_s)
        self._review_s = now_s + REVIEW_S
        if self._reviewer is not None:
            self._reviewer.cancel()
        loop = asyncio.get_running_loop()
        self._reviewer = loop.call_later(REVIEW_S, self._review_at_once)

    def _review_at_once(self) -> None:
        """Ensures that the next call begins with a review."""
        self._review_s, self._usual = -math.inf, None

    async def _turn(self, ticket: Ticket) -> PoolMember:
        """Waits for the call's turn; returns the endpoint that takes the call.

        Raises TimedOut at the call's deadline, Withdrawn after `move`, or the error that took the
        last endpoint out.
        """
        call, queue = ticket.call, self._queue
        if (error := self._lost(call.barred)) is not None:
            raise copy.copy(error)
        self._usual = None
        turn = queue.add(ticket)
        if call.avoid:
            self._weigh()
            asyncio.get_running_loop().call_later(_patience_s(call), self._dispatch)
        self._dispatch()
        try:
            member = await call.in_time(turn, self._clock)
        except BaseException:
            queue.take(ticket)
            self._traffic.unanswered += 1
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                # The call's turn came at the same moment.
                turn.result().coming -= 1
                self._unanswered(turn.result())
            raise
        member.coming -= 1
        if member.name not in self._open and not 0 < member.steady <= member.in_flight:
            # Checked once the call has reached the backend: if it is sent at once, it does not take
            # a place in the backend's queue.
            asyncio.get_running_loop().call_soon(self._look, member)
        self._traffic.waits[wait_class(self._now_s() - ticket.since_s)] += 1
        return member

    def _dispatch(self) -> None:
        """Assigns waiting calls to endpoints that can take them, then notifies the holder."""
        self._give_turns()
        if self._is_awaited and self._open and not self.is_full:
            self._tell_holder()

    def _tell_holder(self) -> None:
        self._is_awaited = False
        if self._on_room is not None:
            self._on_room()

    def _give_turns(self) -> None:
        """Assigns waiting calls, in order, to endpoints that can take them."""
        queue = self._queue
        while queue.tickets and self._open and not self.is_full:
            tickets = queue.first() if self._ordering is None else self._ordered(self._ordering)
            for ticket in tickets:
                if ticket.call.avoid:
                    self._relent(ticket)
                member = self._chosen(ticket.call, ticket.asked)
                if member is not None:
                    break
                if not self._open:
                    return
            else:
                return
            queue.take(ticket)
            if ticket.turn is None or ticket.turn.done():
                # The call was cancelled in this iteration of the event loop.
                continue
            self._taken += 1
            member.comes()
            ticket.turn.set_result(member)

    def _ordered(self, ordering: LongestPrefix) -> list[Ticket]:
        """Returns the first tickets, headed by the one that best suits the endpoints with room."""
        now_s = self._now_s()
        names = {one.name for one in self._open.values() if one.is_open(now_s)}
        tickets = self._queue.first_alike()
        best = ordering.next_for(names, [ticket.asked for ticket in tickets])
        if not best or tickets[best].call.avoid >= names:
            return [*self._queue.first()]
        for ticket in tickets[:best]:
            ticket.passed += 1
        return [tickets[best], *tickets[:best], *tickets[best + 1 :]]

    def _unanswered(self, member: PoolMember) -> None:
        """Counts the end of a call that the endpoint did not answer."""
        self._taken -= 1
        member.ended()
        self._look(member)

    def _look(self, member: PoolMember) -> None:
        """Checks whether the endpoint can take another call."""
        if member.is_out:
            if not member.in_flight:
                member.is_empty.set()
        elif member.name not in self._open:
            member.forget_timer()
            self._open[member.name] = member
            self._draws = self._usual = None
        self._dispatch()

    def _drop(self, member: PoolMember) -> None:
        """Gives the endpoint no calls until it is checked again."""
        if self._open.pop(member.name, None) is not None:
            self._draws = self._usual = None

    def _close(self, member: PoolMember, now_s: float) -> None:
        """Gives the endpoint no calls until it may have room again.

        It may have room when one of its calls ends, when its backend reports room, and at the time
        `closed_until_s`.
        """
        self._drop(member)
        if 0 < member.steady <= member.in_flight:
            # The endpoint is full: the end of a call will reopen it.
            return
        until_s = member.closed_until_s(now_s)
        if now_s < until_s < math.inf:
            member.look_again(until_s - now_s, self._look)

    def _failed(
        self, member: PoolMember, outcome: Outcome, request: Request, call: Call, epoch: int
    ) -> bool:
        """Records a failure; returns whether it is the outcome of the call."""
        error, breaker, now_s = outcome.error, member.breaker, self._now_s()
        assert error is not None
        is_down = isinstance(error, NoEndpoint) or is_unreachable(error)
        is_failure = is_down or _is_failure(error) or self._is_overdue(member, outcome)
        says_nothing = not is_failure and _says_nothing(error, outcome)
        if says_nothing:
            breaker.cancelled(epoch)
        if isinstance(error, Withdrawn):
            return False
        if _is_unfit(error):
            if isinstance(error, Rejected) and not member.succeeded:
                # An endpoint that rejects every call at once would attract all calls.
                self._refused(member, now_s)
            return not self._fits_elsewhere(member, error, request, call, now_s)
        if isinstance(error, Refused | Unpaid):
            # A proxy may have refused it before it was written.
            call.refused += bool(outcome.tried) and outcome.tried[-1].was_sent
            self._lose(member, error)
            return not self._is_elsewhere(member, call.barred, now_s)
        if isinstance(error, NoEndpoint | Retryable):
            self._distrust(member)
        if isinstance(error, RateLimited) and not error.retry_after_s:
            self._refused(member, now_s)
        if is_failure:
            self._count_failure(member, epoch, now_s, error.what, is_down=is_down)
        elif not says_nothing and breaker.succeeded(epoch):
            self._improved(member)
        if isinstance(error, NoEndpoint):
            if self._is_elsewhere(member, call.barred, now_s, but={Health.GONE}):
                return False
            if (of := len(self._members)) > 1:
                error.what = (
                    f"none of {of} endpoints is left; the last was {member.name}: {error.what}"
                )
            self._refuse_waiting(member, error, now_s, but={Health.GONE})
            return True
        if is_down:
            return not self._is_elsewhere(
                member, call.barred, now_s, but={Health.GONE, Health.DEGRADED}
            )
        self._pass_by(member, now_s)
        call.faults += not isinstance(error, RateLimited)
        # If another endpoint works, the call is retried as soon as that one has room.
        avoided = call.avoid | {member.name}
        call.avoid = avoided if self._working(now_s) - avoided else call.barred
        if member.is_parked(now_s):
            # The call need not wait as long if another endpoint may take it sooner.
            never = call.unfit | call.barred
            may = [one for one in self._members if not (one.is_out or one.name in never)]
            opens_s = min((one.closed_until_s(now_s) for one in may), default=now_s)
            call.again_s = max(now_s, opens_s)
        return True

    def _count_failure(
        self, member: PoolMember, epoch: int, now_s: float, what: str, *, is_down: bool = False
    ) -> None:
        """Counts a failure of the endpoint, and degrades it if it has failed too often."""
        member.failed()
        member.fails(what)
        if member.breaker.failed(epoch, now_s, is_down=is_down):
            if not is_down:
                self._listener.on_event(EndpointDegraded(now_s, member.name, what))
            self._degraded(member)

    def _refused(self, member: PoolMember, now_s: float) -> None:
        """Counts a refusal without a time to wait, if another endpoint can take the calls instead.

        An endpoint that refuses at once has the fewest calls in flight, and would attract them.
        """
        if self._working(now_s) - {member.name}:
            member.refused(now_s)

    def _is_overdue(self, member: PoolMember, outcome: Outcome) -> bool:
        """Returns whether a call ended at its deadline although its endpoint had enough time.

        Enough is the time that an answer takes on average. For a degraded endpoint, which must
        answer to be used again, any time is enough.
        """
        if not _is_late(outcome.error) or not outcome.tried:
            return False
        last = outcome.tried[-1]
        if last.sent_s is None or last.first_byte_s is not None:
            return False
        if member.breaker.state is Health.DEGRADED:
            return True
        return last.complete_s - last.sent_s >= self._usual_s(member)

    def _has_let_wait(self, member: PoolMember, call: Call, sent_s: float, now_s: float) -> bool:
        """Returns whether the endpoint is to blame for a cancelled call that got no byte.

        sent_s: when the call was written. The caller may be impatient, so the wait must be several
        times as long as an answer takes on average, and the endpoint must have answered no other
        call meanwhile; neither is required if the endpoint is degraded. A call that an aborted run
        cancels does not count: the run has set the deadline to -inf.
        """
        if call.deadline_s == -math.inf:
            return False
        if member.breaker.state is Health.DEGRADED:
            return True
        is_long = now_s - sent_s >= _LONG_WAIT * self._usual_s(member)
        return is_long and member.answered_s <= sent_s

    def _usual_s(self, member: PoolMember) -> float:
        """Returns how many seconds an answer takes on average; infinite if unknown.

        This is the endpoint's own mean, or that of all endpoints if it has no recent answers.
        """
        among = [member] if member.latency_s else self._members
        known = [one.latency_s for one in among if one.latency_s]
        return sum(known) / len(known) if known else math.inf

    def _pass_by(self, member: PoolMember, now_s: float) -> None:
        """Sends calls that wait at the endpoint to others, if it is parked."""
        if member.is_parked(now_s):
            member.backend.withdraw()
            self._reconsider()

    def _improved(self, member: PoolMember) -> None:
        """Gives calls to an endpoint that works again; reports the recovery once it is ready."""
        if member.breaker.state is Health.READY:
            self._listener.on_event(EndpointRecovered(self._now_s(), member.name))
        self._weigh()

    def _fits_elsewhere(
        self, member: PoolMember, error: Unfit, request: Request, call: Call, now_s: float
    ) -> bool:
        """Returns whether another endpoint might take a call that `member` rejected with `error`.

        Such an endpoint has not rejected the call, and has limits that are large enough for it. If
        there is one, the call avoids all unsuitable endpoints from now on, and waits for a suitable
        one even if none works at the moment. If no suitable endpoint has answered any call yet,
        the pauses of the suitable endpoints end.
        """
        unfit, left = set[str](), list[PoolMember]()
        if error.status is not None:
            # The provider itself rejected the call, whatever this pool knows about its limits.
            unfit = {*call.unfit, member.name}
            call.refused += 1
        for one in self._members:
            if one.name in call.barred:
                continue
            load = one.backend.load(now_s, request)
            if one.name in unfit or load.room_s == math.inf:
                unfit.add(one.name)
            elif not one.is_out and load.state is not Health.GONE:
                left.append(one)
        if left:
            call.unfit = frozenset(unfit)
            call.avoid = call.unfit | call.barred
        if not any(one.succeeded for one in left):
            # Pauses keep away calls that other endpoints may answer; this call has no others.
            for one in left:
                one.resume()
                self._look(one)
        return bool(left)

    def _still_avoids(self, call: Call) -> frozenset[str]:
        """Returns what a call that avoids all working endpoints should still avoid.

        These are the endpoints that it must never use, and those that are unfit for it, unless
        every other endpoint is gone.
        """
        now_s, avoided = self._now_s(), call.unfit | call.barred
        for one in self._members:
            if one.name not in avoided and one.health(now_s) is not Health.GONE:
                return avoided
        return call.barred

    def _working(self, now_s: float) -> set[str]:
        """Returns the names of the endpoints that work and are not parked."""
        return {
            one.name
            for one in self._members
            if one.breaker.is_working and not (one.is_out or one.is_parked(now_s))
        }

    def _usual_share(self, breaker: Breaker) -> float:
        """Returns the share of calls that fail at the other endpoints; see `usual_share`."""
        others = [one for one in self._members if one.breaker is not breaker and not one.is_out]
        now_s = self._now_s()
        is_any = any(one.breaker.is_working and not one.is_parked(now_s) for one in others)
        return usual_share([one.breaker for one in others], USUAL_SHARE if is_any else LAST_SHARE)

    def _is_elsewhere(
        self,
        member: PoolMember,
        barred: frozenset[str],
        now_s: float,
        but: Collection[Health] = (),
    ) -> bool:
        """Returns whether another endpoint may get calls.

        Such an endpoint is neither barred nor out, and in none of the states `but`.
        """
        return any(
            one is not member
            and one.name not in barred
            and not one.is_out
            and one.backend.load(now_s).state not in but
            for one in self._members
        )

    def _lose(self, member: PoolMember, error: CallError) -> None:
        """Takes an endpoint out for good; fails the waiting calls for which it was the last one."""
        if member.error is not None:
            return
        self._drop(member)
        member.lose(error)
        self._weigh()
        left = sum(not one.is_out for one in self._members)
        now_s, of = self._now_s(), len(self._members)
        self._listener.on_event(EndpointOut(now_s, member.name, error.what, left, of))
        self._refuse_waiting(member, error, now_s)
        self._tell_holder()

    def _refuse_waiting(
        self,
        member: PoolMember,
        error: CallError | NoEndpoint,
        now_s: float,
        but: Collection[Health] = (),
    ) -> None:
        """Fails the waiting calls for which no other endpoint is left; see `_is_elsewhere`."""
        is_over = {
            barred: not self._is_elsewhere(member, barred, now_s, but)
            for barred in {ticket.call.barred for ticket in self._queue.tickets}
        }
        for ticket in self._queue.take_all(lambda call: is_over[call.barred]):
            _fail(ticket, copy.copy(error))

    def _lost(self, barred: Collection[str]) -> CallError | NoEndpoint | None:
        """Returns the error that took out the last unbarred endpoint; None if one is left."""
        error: CallError | NoEndpoint | None = None
        for one in self._members:
            if one.name not in barred:
                if not one.is_out:
                    return None
                error = one.error or error
        return error

    def _enter_loop(self) -> None:
        """Moves timers and page readers to the running event loop.

        Timers of an ended loop never fire, and each `asyncio.run` has a loop of its own.
        """
        self._loop, self._reviewer = asyncio.get_running_loop(), None
        self._is_awaited = False
        self._review_at_once()
        self._unwatched = [*self._members]
        for member in self._members:
            member.forget_timer()
            self._look(member)

    def _watch(self) -> None:
        """Starts reading the servers' pages."""
        members, self._unwatched = self._unwatched, []
        for member in members:
            if member in self._members:
                member.watch(partial(self._probed, member), self._clock)

    def _probed(self, member: PoolMember, is_well: bool) -> None:
        """Handles a result of a health page: degrades the endpoint, or gives it calls again."""
        if member.breaker.probed(self._now_s(), is_well=is_well):
            if member.breaker.state is Health.DEGRADED and not is_well:
                what = f"its health page has failed {BAD_PAGES} times in a row"
                self._listener.on_event(EndpointDegraded(self._now_s(), member.name, what))
                member.fails(what)
                self._degraded(member)
            else:
                self._weigh()

    def _distrust(self, member: PoolMember) -> None:
        """Takes the endpoint off the fast path.

        From now on its backend is asked before each call, and the end of each call is observed.
        """
        member.distrust()
        self._draws = self._usual = None

    def _degraded(self, member: PoolMember) -> None:
        """Gives the endpoint no calls for a while. Calls that it has not written go to others."""
        self._distrust(member)
        self._take_up(member)
        # Its speed counts as unknown when it returns; with its last latency, it would get no call.
        member.forget()
        self._review_at_once()
        self._weigh()
        member.backend.withdraw()

    def _weigh(self) -> None:
        """Decides anew which endpoints get calls, after one was added, left or changed its state.

        If every endpoint is degraded, breakers are ignored.
        """
        left = [one for one in self._members if not one.is_out]
        is_any_working = any(one.breaker.is_working for one in left)
        for member in left:
            member.breaker.ignore(not is_any_working)
        self._reconsider()
        for member in left:
            self._look(member)

    def _reconsider(self) -> None:
        """Lets waiting calls that avoid every working endpoint use the working endpoints again.

        A call still avoids the endpoints that are unfit for it.
        """
        avoiding = [ticket.call for ticket in self._queue.tickets if ticket.call.avoid]
        if not avoiding:
            return
        working = self._working(self._now_s())
        for call in avoiding:
            if call.avoid >= working:
                call.avoid = self._still_avoids(call) if call.unfit else call.barred

    def _relent(self, ticket: Ticket) -> None:
        """Lets a call that has waited in vain for another endpoint use those that failed it.

        Only those that have answered other calls meanwhile: at an endpoint that fails all calls, it
        would use up its retries.
        """
        call, since_s = ticket.call, ticket.since_s
        if self._now_s() - since_s >= _patience_s(call):
            well = {one.name for one in self._members if one.answered_s > since_s}
            call.avoid -= well - call.unfit - call.barred


def _patience_s(call: Call) -> float:
    """Returns how long a failed call waits for an endpoint other than those that failed it."""
    return _PATIENCE_S * 10.0 ** min(2, max(0, call.faults - 1))


def _fail(ticket: Ticket, error: CallError | NoEndpoint) -> None:
    """Ends a call's wait with this error, unless its turn has come or the call was cancelled."""
    if ticket.turn is not None and not ticket.turn.done():
        ticket.turn.set_exception(error)


def _says_nothing(error: CallError | NoEndpoint, outcome: Outcome) -> bool:
    """Returns whether an error that is not the endpoint's failure proves nothing about it.

    Otherwise the error proves that the endpoint works. Many errors that prove nothing occur before
    the request is sent; others are deadlines, which may be too short.
    """
    if isinstance(error, Withdrawn | Refused | Unpaid | RateLimited) or _is_unfit(error):
        return True
    is_unsent = bool(outcome.tried) and not outcome.tried[-1].was_sent
    return is_unsent or _is_late(error)


def _is_unfit(error: CallError | NoEndpoint) -> TypeGuard[Unfit]:
    """Returns whether another endpoint might serve the request that failed with this error.

    Such a request is too large for the endpoint's limits, or is rejected for a reason other than
    its contents, such as its model (404, from some providers 400), the rights of the key (403) or a
    redirect (302).
    """
    if not isinstance(error, Rejected):
        return isinstance(error, OverLimit)
    status = error.status
    if status is None or status < 300:
        return False
    return status not in _OF_THE_ROW or lacks_model(error)


def _is_late(error: CallError | NoEndpoint | None) -> bool:
    """Returns whether a call ended because of its own deadline."""
    return isinstance(error, TimedOut) and error.phase == "row"


def _is_failure(error: CallError | NoEndpoint) -> bool:
    """Returns whether the error shows a malfunction of the endpoint, whatever the request was."""
    if isinstance(error, ServerFailed):
        return error.status is None or error.status >= 500
    if isinstance(error, TimedOut):
        return error.phase in ("connect", "first_byte", "attempt")
    return isinstance(error, Disconnected | BadReply)
