"""Admission decided: plain functions of the time, which never wait.

A call of a class may start when

  no call of its class or a higher one waits, or it is the next of those that do;
  the endpoints have room for it;
  the classes below each higher class are within what that class leaves them.

The last is trunk reservation. Of the slots that a class and those above it do not use, on average
over the last while, it keeps a share free of all lower classes. So a burst finds free slots, and a
batch still gets nearly all that the others leave, however much that is. The average matters: if
lower classes could fill each gap between two bursts, their long calls would be in the way of the
second one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Protocol

from redline.errors import ConfigError, nearest
from redline.limits.shared import Flights
from redline.serve.admission.drain import Drain
from redline.serve.admission.errors import Overloaded, QueueFull
from redline.serve.admission.fair_queue import FairQueue, Fits, Flow, Step, Waiter
from redline.serve.admission.settings import ClassSettings, in_order
from redline.serve.admission.state import AdmissionState, ClassLoad
from redline.waist import Load, Request

# What a class uses is averaged over about this many seconds: the time of many calls.
MEAN_S = 30.0
# Nothing is kept free for a class that has had no call for that long: many gateways have one class.
UNUSED_S = 600.0
# Seconds for which slots are taken to be as they were.
REVIEW_S = 0.25
# Used until a queue has drained long enough to measure its rate.
_USUAL_WAIT_S = 1.0


class Room(Protocol):
    """What calls are admitted to: `route.Pool`, whose methods these are."""

    def has_room(self, now_s: float, coming: int = 0, avoid: frozenset[str] = ...) -> bool: ...

    def slots(self, now_s: float) -> int: ...

    def load(self, now_s: float, request: Request | None = None) -> Load: ...

    def held_by(self, on_room: Callable[[], None]) -> None: ...


class Line:
    """The calls of one class: those that wait, those in flight, and counts since the start.

    flights: those in flight in all processes that share the endpoints; None if this one has them to
    itself. usual: how many of them on average, over about MEAN_S. is_used: the class has had a call
    of late.
    """

    def __init__(self, settings: ClassSettings, now_s: float, flights: Flights | None) -> None:
        self.settings = settings
        self.queue = FairQueue()
        self.drain = Drain()
        self.flights = flights
        self.in_flight = 0
        self.admitted = 0
        self.refused = Counter[str]()
        self.gave_up = 0
        self.usual = 0.0
        self.is_used = False
        self._used_s = -math.inf
        self._known = 0
        self._at_s = now_s
        self._seen_s = 0.0

    def review(self, now_s: float) -> None:
        """Brings its mean up to date."""
        self._seen_s += (past_s := now_s - self._at_s)
        self._at_s = now_s
        share = max(past_s / self._seen_s, -math.expm1(-past_s / MEAN_S)) if past_s > 0 else 0.0
        in_flight = self.in_flight_in_all
        self.usual += (in_flight - self.usual) * share
        if self.admitted != self._known or in_flight:
            self._known, self._used_s = self.admitted, now_s
        self.is_used = now_s - self._used_s < UNUSED_S

    @property
    def in_flight_in_all(self) -> int:
        """Those in flight in all processes."""
        return self.in_flight if self.flights is None else self.flights.count

    def begin(self) -> None:
        """A call starts."""
        self.in_flight += 1
        self.admitted += 1
        if self.flights is not None:
            self.flights.add(1)

    def end(self) -> None:
        """A call is over."""
        self.in_flight -= 1
        if self.flights is not None:
            self.flights.add(-1)

    def add(self, waiter: Waiter, now_s: float) -> None:
        """A call waits."""
        if not self.queue.waiting:
            self.drain.begins(now_s)
        self.queue.add(waiter)

    def take(self, fits: Fits, now_s: float) -> Waiter | None:
        """The call that waits and starts now; None if none fits."""
        waiter = self.queue.take(fits)
        if waiter is not None:
            self.begin()
            self.drain.started(now_s, waiter.tokens)
            if not self.queue.waiting:
                self.drain.ends(now_s)
        return waiter

    def remove(self, waiter: Waiter, step: Step, now_s: float) -> None:
        """A call waits no more, and does not start."""
        self.queue.remove(waiter)
        if not self.queue.waiting:
            self.drain.ends(now_s)
        waiter.turns(step)

    def refuse(self, reason: str) -> None:
        """Counts a call that is refused."""
        self.refused[reason] += 1

    def give_up(self) -> None:
        """Counts a call that was cancelled while it waited."""
        self.gave_up += 1

    def state(self, now_s: float) -> ClassLoad:
        flows = [*self.queue.flows()]
        oldest_s = min((head.since_s for flow in flows for head in flow.heads()), default=now_s)
        return ClassLoad(
            name=self.settings.name,
            priority=self.settings.priority,
            waiting=self.queue.waiting,
            in_flight=self.in_flight,
            admitted=self.admitted,
            refused=dict(self.refused),
            gave_up=self.gave_up,
            oldest_wait_s=now_s - oldest_s,
            drain_per_s=self.drain.calls_per_s(now_s),
            tenants={flow.tenant: flow.waiting for flow in flows},
        )


class Admission:
    """Decides which call may start, wait or be refused.

    waiting, in_flight: calls of all classes. coming: may start, and have not yet gone on.

    most: calls in flight at once, beside what the endpoints allow; None for no such bound.
    flights: those of a class, by its name, in all processes that share the endpoints; None if this
    one has them to itself.
    """

    def __init__(
        self,
        room: Room,
        classes: Sequence[ClassSettings],
        most: int | None,
        now_s: float,
        flights: Callable[[str], Flights] | None,
    ) -> None:
        if most is not None and most < 1:
            raise ConfigError(f"at least 1 call must be admitted at once, not {most}")
        self._room = room
        self._most = math.inf if most is None else most
        self._lines = [
            Line(one, now_s, None if flights is None else flights(one.name))
            for one in in_order(classes)
        ]
        self._is_shared = flights is not None
        self._by_name = {line.settings.name: line for line in self._lines}
        self._slots = math.inf
        self._parked_until_s = -math.inf
        self._review_s = -math.inf
        self.waiting = 0
        self.in_flight = 0
        self.coming = 0
        self.is_held_by_coming = False

    def line(self, klass: str) -> Line:
        """The class of this name. Raises ConfigError if there is none."""
        try:
            return self._by_name[klass]
        except KeyError:
            hint = nearest(klass, self._by_name)
            raise ConfigError(f"there is no class {klass}", hint=hint) from None

    @property
    def lowest(self) -> int:
        """The priority of the lowest class."""
        return self._lines[-1].settings.priority

    @property
    def is_full(self) -> bool:
        """As many calls are in flight as may be, and others wait."""
        return self.waiting > 0 and self._in_flight_in_all() >= self._slots

    def first(self, endpoint: str) -> tuple[int, float] | None:
        """The priority of the highest class of which a call waits that may use this endpoint, and
        the weights of its tenants with such calls; None if there is none.
        """
        for line in self._lines:
            if weights := line.queue.weights_for(endpoint):
                return line.settings.priority, weights
        return None

    def class_of(self, priority: int) -> str:
        """The name of the highest class that goes no sooner than this, or of the lowest."""
        for line in self._lines:
            if line.settings.priority >= priority:
                break
        return line.settings.name

    def enter(self, line: Line, now_s: float, avoid: frozenset[str]) -> bool:
        """Starts a call that comes now, if it may start."""
        if self.waiting:
            for one in self._lines:
                if one.queue.waiting:
                    return False
                if one is line:
                    break
        if now_s >= self._review_s:
            self._review(now_s)
        if not (self._is_free(line) and self._room.has_room(now_s, self.coming, avoid)):
            return False
        self.in_flight += 1
        line.begin()
        return True

    def add(self, line: Line, waiter: Waiter, until_s: float, now_s: float) -> None:
        """The call waits. until_s: when it has to start. Raises QueueFull and Overloaded."""
        self._check_queue(line, waiter, now_s)
        wait_s = self.wait_s(line, waiter.flow, waiter.tokens, now_s)
        most_s = max(0.0, until_s - now_s)
        if not most_s or (wait_s or 0.0) > most_s:
            line.refuse("wait")
            raise Overloaded(
                f"the call would wait for {wait_s or 0.0:.1f} s, and may for {most_s:.1f} s",
                retry_after_s=self._again_s(line, wait_s and wait_s - most_s, now_s),
            )
        line.add(waiter, now_s)
        self.waiting += 1

    def next(self, now_s: float) -> Waiter | None:
        """The call that starts now, of those that wait; None if none may."""
        if now_s >= self._review_s:
            self._review(now_s)
        known: dict[frozenset[str], bool] = {}

        def fits(avoid: frozenset[str]) -> bool:
            has_room = known.get(avoid)
            if has_room is None:
                has_room = known[avoid] = self._room.has_room(now_s, self.coming, avoid)
                self.is_held_by_coming |= not has_room and self.coming > 0
            return has_room

        for line in self._lines:
            if not line.queue.waiting:
                continue
            if not self._is_free(line):
                # More slots stay free of lower classes.
                return None
            waiter = line.take(fits, now_s)
            if waiter is not None:
                self.waiting -= 1
                self.in_flight += 1
                self.coming += 1
                return waiter
        return None

    def arrived(self) -> bool:
        """A call that may start has gone on; whether others were held back by that alone."""
        self.coming -= 1
        was_held, self.is_held_by_coming = self.is_held_by_coming, False
        return was_held

    def leave(self, line: Line) -> None:
        """A call that had started is over."""
        self.in_flight -= 1
        line.end()

    def give_up(self, line: Line, waiter: Waiter, now_s: float) -> None:
        """A call that waited has been cancelled."""
        line.give_up()
        line.remove(waiter, Step.GONE, now_s)
        self.waiting -= 1

    def late(self, line: Line, waiter: Waiter, now_s: float) -> None:
        """A call has waited for as long as it may; its task asks `lateness` what to raise."""
        line.refuse("late")
        line.remove(waiter, Step.LATE, now_s)
        self.waiting -= 1

    def lateness(self, line: Line, waiter: Waiter, now_s: float) -> Overloaded:
        """What a late call is refused with."""
        wait_s = self.wait_s(line, waiter.flow, waiter.tokens, now_s)
        return Overloaded(
            f"the call has waited for {now_s - waiter.since_s:.1f} s, the longest that is allowed",
            retry_after_s=self._again_s(line, wait_s, now_s),
        )

    def wait_s(self, line: Line, flow: Flow, tokens: float, now_s: float) -> float | None:
        """Seconds until a call of this tenant starts, if it came now; None if that is unknown."""
        rate = line.drain.tokens_per_s(now_s)
        parked_s = self._parked_until_s - now_s
        if rate is None:
            return parked_s if parked_s > 0 else None
        return max(parked_s, line.queue.ahead(flow, tokens) / rate)

    def state(self, now_s: float) -> AdmissionState:
        if now_s >= self._review_s:
            self._review(now_s)
        return AdmissionState(
            slots=0 if self._slots == math.inf else int(self._slots),
            in_flight=self.in_flight,
            classes=tuple(line.state(now_s) for line in self._lines),
        )

    def _is_free(self, line: Line) -> bool:
        """A slot is free, and lower classes are not at what the classes above leave to them."""
        slots = self._slots
        if slots == math.inf:
            return True
        below, left = self._in_flight_in_all() if self._is_shared else self.in_flight, slots
        if below >= slots:
            return False
        for one in self._lines:
            if one is line:
                break
            below -= one.in_flight_in_all
            left -= one.usual
            if not one.is_used:
                continue
            guard = int(one.settings.reserved * left)
            if guard and below >= left - guard:
                return False
        return True

    def _in_flight_in_all(self) -> int:
        """Calls of all classes in all processes."""
        if not self._is_shared:
            return self.in_flight
        return sum([line.in_flight_in_all for line in self._lines])

    def _check_queue(self, line: Line, waiter: Waiter, now_s: float) -> None:
        """Raises QueueFull if as many calls wait as may."""
        settings, flow = line.settings, waiter.flow
        is_tenants = flow.waiting >= settings.of_a_tenant
        if not is_tenants and line.queue.waiting < settings.most_waiting:
            return
        line.refuse("tenant" if is_tenants else "class")
        whose = f"tenant {flow.tenant}" if is_tenants else f"class {settings.name}"
        waiting = flow.waiting if is_tenants else line.queue.waiting
        wait_s = self.wait_s(line, flow, waiter.tokens, now_s)
        raise QueueFull(
            f"{waiting} calls of {whose} are waiting, the most allowed",
            hint="send fewer calls at once",
            retry_after_s=self._again_s(line, wait_s, now_s),
        )

    def _review(self, now_s: float) -> None:
        """Brings up to date what changes rarely."""
        for line in self._lines:
            line.review(now_s)
        self._review_s = now_s + REVIEW_S
        self._slots = min(self._room.slots(now_s) or math.inf, self._most)
        self._parked_until_s = self._room.load(now_s).parked_until_s

    def _again_s(self, line: Line, wait_s: float | None, now_s: float) -> float:
        """When to ask again: not before one more call could have started."""
        if wait_s is None:
            return _USUAL_WAIT_S
        rate = line.drain.calls_per_s(now_s)
        return max(wait_s, 1 / rate if rate else 0.0)
