"""Implements the gate in front of endpoints: a call passes, waits for its turn, or is refused."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence

import msgspec

from redline.clock import SYSTEM, Clock
from redline.errors import Withdrawn
from redline.limits.shared import Demand, Flights
from redline.route import MOVED, Pool
from redline.serve.admission.admission import REVIEW_S, Admission, Line
from redline.serve.admission.fair_queue import Step, Waiter
from redline.serve.admission.settings import CLASSES, ClassSettings
from redline.serve.admission.state import ClassLoad
from redline.structs import mutable

# Estimates are capped at this; a larger one can only be a mistake.
_MOST_TOKENS = 1e9
_ALL: frozenset[str] = frozenset()


@mutable
class Place(msgspec.Struct, eq=False):
    """A started call's place among the calls in flight; `leave` or the end of `with` frees it."""

    _gate: Gate
    _line: Line
    _waiter: Waiter | None = None
    _used: float = 0.0
    _is_left: bool = False

    def settle(self, tokens: float) -> None:
        """Sets the tokens that the call has used. Has no effect after the call has ended."""
        self._used = tokens

    def leave(self) -> None:
        """Ends the call; further calls of this method do nothing."""
        if not self._is_left:
            self._is_left = True
            if self._waiter is not None:
                self._line.queue.ended(self._waiter, self._used)
            self._gate._left(self._line)

    def __enter__(self) -> Place:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()


class Gate:
    """Admits calls to a pool, by class and fairly between tenants.

    room: the pool. All calls to it pass this gate, or the gate of another process. classes: see
    ClassSettings. flights: returns, for the name of a class, its calls in flight in all processes
    with a gate to the same endpoints; None if this gate is the only one. want: called while calls
    are waiting, to request slots from the other processes. moves: how often `move` was called.
    Raises ConfigError if there is no class, or if two share a name or a priority.
    """

    def __init__(
        self,
        room: Pool,
        classes: Sequence[ClassSettings] = CLASSES,
        *,
        flights: Callable[[str], Flights] | None = None,
        want: Callable[[], None] = lambda: None,
        clock: Clock = SYSTEM,
    ) -> None:
        self._admission = Admission(room, classes, clock.now_s(), flights)
        self._want = want
        self._now_s = clock.now_s
        self._timer: asyncio.TimerHandle | None = None
        self.moves = 0
        room.held_by(self._look)

    def class_of(self, priority: int) -> str:
        """Returns the class of calls with this priority; see `Admission.class_of`."""
        return self._admission.class_of(priority)

    def try_enter(self, klass: str, avoid: frozenset[str] = _ALL) -> Place | None:
        """Starts a call, and returns its place; None if the call must wait in `enter`.

        Raises ConfigError for an unknown class.
        """
        admission = self._admission
        line = admission.line(klass)
        return Place(self, line) if admission.enter(line, self._now_s(), avoid) else None

    async def enter(
        self,
        klass: str,
        *,
        tenant: str = "",
        weight: float = 1.0,
        tokens: float = 1.0,
        deadline_s: float = math.inf,
        avoid: frozenset[str] = _ALL,
    ) -> Place:
        """Waits until the call may start, and returns its place.

        tenant: shares the class with other tenants in proportion to `weight`, above 0. tokens: an
        estimate of the call's usage. deadline_s: the latest time for its start, in monotonic
        seconds. avoid: names of endpoints that the call may not use.

        Raises QueueFull; Overloaded, at once if the call would start too late, or later when its
        time is over; Withdrawn after `move`; ConfigError for an unknown class or an invalid weight.
        """
        place = self.try_enter(klass, avoid)
        if place is not None:
            return place
        admission, now_s = self._admission, self._now_s()
        line = admission.line(klass)
        tokens = min(max(1.0, tokens), _MOST_TOKENS)
        waiter = Waiter(line.queue.flow(tenant, weight), tokens, avoid, now_s)
        until_s = min(deadline_s, now_s + line.settings.longest_wait_s)
        admission.add(line, waiter, until_s, now_s)
        self._look()
        if waiter.step is Step.WAITING:
            await self._turn(line, waiter, until_s)
        self._arrived(waiter)
        return Place(self, line, waiter, tokens)

    def move(self) -> None:
        """Ends the wait of every call: `enter` raises Withdrawn.

        Called when the endpoints with a call's model may be behind another gate.
        """
        self.moves += 1
        self._admission.move(self._now_s())
        self._look()

    def waits_for_slots(self) -> bool:
        """Whether a call is waiting because no slot is free for its class."""
        return self._admission.is_full

    def waits_for(self, endpoint: str) -> bool:
        """Whether a waiting call may use this endpoint."""
        return self._admission.is_wanted(endpoint)

    def demand(self, endpoint: str) -> Demand:
        """Returns this process's demand for slots of an endpoint that several processes share."""
        first = self._admission.first(endpoint)
        return Demand(self._admission.lowest) if first is None else Demand(*first)

    def classes(self) -> list[ClassLoad]:
        """Returns the present state of each class, the highest first.

        Calling this at intervals keeps the mean usage of the classes current even without calls.
        """
        return self._admission.classes(self._now_s())

    async def _turn(self, line: Line, waiter: Waiter, until_s: float) -> None:
        """Waits until the call may start. Raises Overloaded if it is late, Withdrawn on `move`."""
        loop, admission = asyncio.get_running_loop(), self._admission
        timer = None
        if until_s < math.inf:
            timer = loop.call_later(until_s - self._now_s(), self._late, line, waiter)
        try:
            await waiter.turn
        except BaseException:
            if waiter.step is Step.STARTED:
                # The call was cancelled just as it was allowed to start: it has used no tokens.
                self._arrived(waiter)
                line.queue.ended(waiter, 0.0)
                self._left(line)
            elif waiter.step is Step.WAITING:
                self._remove(line, waiter, Step.GONE)
            raise
        finally:
            if timer is not None:
                timer.cancel()
        if waiter.step is Step.MOVED:
            raise Withdrawn(MOVED)
        if waiter.step is Step.LATE:
            raise admission.lateness(line, waiter, self._now_s())

    def _late(self, line: Line, waiter: Waiter) -> None:
        if waiter.step is Step.WAITING:
            self._remove(line, waiter, Step.LATE)

    def _remove(self, line: Line, waiter: Waiter, step: Step) -> None:
        self._admission.remove(line, waiter, step, self._now_s())
        self._look()

    def _arrived(self, waiter: Waiter) -> None:
        """Counts a call that reaches the pool in this iteration of the event loop."""
        if self._admission.arrived(waiter) and self._admission.waiting:
            asyncio.get_running_loop().call_soon(self._look)

    def _left(self, line: Line) -> None:
        self._admission.leave(line)
        if self._admission.waiting:
            self._look()

    def _look(self) -> None:
        """Starts all calls that may start now."""
        admission = self._admission
        if admission.waiting:
            now_s = self._now_s()
            while (waiter := admission.next(now_s)) is not None:
                waiter.turns(Step.STARTED)
        if admission.waiting:
            self._want()
            if self._timer is None:
                # The number of slots may grow without a notification from the pool.
                self._timer = asyncio.get_running_loop().call_later(REVIEW_S, self._look_again)

    def _look_again(self) -> None:
        self._timer = None
        self._look()
