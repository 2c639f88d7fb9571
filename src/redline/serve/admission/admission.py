"""Decides admission in plain functions, which get the current time and never wait.

A call of a class may start when all three hold:

no call of its own or a higher class that could start is waiting ahead of it;
the endpoints have room for it;
for each higher class, the classes below it have not used up the slots that it leaves to them.

The third condition is trunk reservation. A class reserves a share of the slots that it and the
higher classes leave unused on average over about MEAN_S seconds; no lower class may use that share.
Therefore a burst finds free slots, and batches still get most of the unused slots, however many
there are. The rule uses the average, because otherwise long calls of lower classes would fill each
gap between two bursts and delay the second burst.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence

from redline.errors import ConfigError, nearest
from redline.limits.shared import Flights
from redline.process import counted
from redline.route import Pool
from redline.serve.admission.drain import Drain
from redline.serve.admission.errors import Overloaded, QueueFull
from redline.serve.admission.fair_queue import FairQueue, Fits, Step, Waiter
from redline.serve.admission.settings import ClassSettings, in_order
from redline.serve.admission.state import ClassLoad

# The usage of a class is averaged over about this many seconds: the time of many calls.
MEAN_S = 30.0
# A class that has had no call for this long reserves no slots: many gateways use only one class.
UNUSED_S = 600.0
# A share is rounded up to whole slots from this fraction of a slot on. Of 5 slots, 15 % is 0.75:
# one is kept free, and lower classes get the 80 % that they are promised. Of 4 slots, 15 % is 0.6:
# none is kept free. With every fraction rounded up, lower classes got 76 % beside a load of 85 %.
_ROUNDED_UP = 0.65
# Seconds between two updates of the means and of the number of slots.
REVIEW_S = 0.25
# The Retry-After, in seconds, until enough calls have left a queue to measure its rate.
_USUAL_WAIT_S = 1.0
# A class remembers the drain rates of at most this many sets of endpoints without waiting calls.
_MOST_IDLE = 64


class Line:
    """The calls of one class: those waiting, those in flight, and counts since the start.

    flights: the calls in flight in all processes that share the endpoints; None if only this
    process uses them. usual: the mean number of calls in flight, over about MEAN_S. is_used: the
    class has had a call recently.
    """

    def __init__(self, settings: ClassSettings, now_s: float, flights: Flights | None) -> None:
        self.settings = settings
        self.queue = FairQueue()
        self._drains: dict[frozenset[str], Drain] = {}
        self.flights = flights
        self.in_flight = 0
        self.admitted = 0
        self.refused = Counter[str]()
        self.usual = 0.0
        self.is_used = False
        self._used_s = -math.inf
        self._known = 0
        self._at_s = now_s
        self._seen_s = 0.0

    def review(self, now_s: float) -> None:
        """Updates the mean number of calls in flight, and the clocks of the drains."""
        for drain in self._drains.values():
            drain.tick(now_s)
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
        """The number of calls of this class in flight, in all processes."""
        return self.in_flight if self.flights is None else self.flights.count

    def drain(self, avoid: frozenset[str]) -> Drain:
        """Returns the drain of waiting calls that may use all endpoints but those in `avoid`."""
        found = self._drains.get(avoid)
        if found is None:
            if len(self._drains) >= _MOST_IDLE:
                waiting = self.queue.avoided
                self._drains = {one: it for one, it in self._drains.items() if one in waiting}
            found = self._drains[avoid] = Drain()
        return found

    def add(self, waiter: Waiter, now_s: float) -> None:
        """Queues a call."""
        if waiter.avoid not in self.queue.avoided:
            self.drain(waiter.avoid).begins(now_s)
        self.queue.add(waiter)

    def take(self, fits: Fits, now_s: float) -> Waiter | None:
        """Starts the next waiting call, and returns it; None if no call fits."""
        waiter = self.queue.take(fits)
        if waiter is not None:
            self.begin()
            self.drain(waiter.avoid).started(now_s, waiter.tokens)
            self._left(waiter, now_s)
        return waiter

    def begin(self) -> None:
        """Counts a call that starts."""
        self.in_flight += 1
        self.admitted += 1
        if self.flights is not None:
            self.flights.add(1)

    def end(self) -> None:
        """Counts a call that ends."""
        self.in_flight -= 1
        if self.flights is not None:
            self.flights.add(-1)

    def remove(self, waiter: Waiter, step: Step, now_s: float) -> None:
        """Removes a waiting call that will not start, and wakes its task. step: the reason."""
        self.queue.remove(waiter)
        self._left(waiter, now_s)
        if step is Step.LATE:
            self.refuse("late")
        waiter.turns(step)

    def refuse(self, reason: str) -> None:
        """Counts a refused call."""
        self.refused[reason] += 1

    def load(self, now_s: float) -> ClassLoad:
        heads = (head for flow in self.queue.flows() for head in flow.heads())
        oldest_s = min((head.since_s for head in heads), default=now_s)
        return ClassLoad(
            name=self.settings.name,
            waiting=self.queue.waiting,
            in_flight=self.in_flight,
            admitted=self.admitted,
            refused=dict(self.refused),
            oldest_wait_s=now_s - oldest_s,
        )

    def _left(self, waiter: Waiter, now_s: float) -> None:
        if waiter.avoid not in self.queue.avoided:
            self.drain(waiter.avoid).ends(now_s)


class Admission:
    """Decides which calls start, wait or are refused.

    room: the pool to which admitted calls go. flights: returns, for the name of a class, its calls
    in flight in all processes that share the endpoints; None if only this process uses them.

    waiting, in_flight: the number of calls, over all classes. coming: the number of started calls
    that have not reached the pool yet. is_held_by_coming: whether they have held back a waiting
    call.
    """

    def __init__(
        self,
        room: Pool,
        classes: Sequence[ClassSettings],
        now_s: float,
        flights: Callable[[str], Flights] | None,
    ) -> None:
        self._room = room
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
        self._coming_alike = Counter[frozenset[str]]()  # by the endpoints that they may not use
        self.is_held_by_coming = False

    def line(self, klass: str) -> Line:
        """Returns the class with this name. Raises ConfigError if it does not exist."""
        try:
            return self._by_name[klass]
        except KeyError:
            raise ConfigError(
                f"there is no class {klass}", hint=nearest(klass, self._by_name)
            ) from None

    @property
    def lowest(self) -> int:
        """The priority of the lowest class."""
        return self._lines[-1].settings.priority

    @property
    def is_full(self) -> bool:
        """Whether a call is waiting because no slot is free for its class."""
        return any(line.queue.waiting and not self._is_free(line) for line in self._lines)

    def first(self, endpoint: str) -> tuple[int, float] | None:
        """Finds the highest class with a waiting call that may use this endpoint.

        Returns the priority of the class, and the sum of the weights of its tenants with such
        calls; None if no such call is waiting.
        """
        for line in self._lines:
            if weights := line.queue.weights_for(endpoint):
                return line.settings.priority, weights
        return None

    def is_wanted(self, endpoint: str) -> bool:
        """Whether a waiting call may use this endpoint."""
        return any(endpoint not in avoid for line in self._lines for avoid in line.queue.avoided)

    def class_of(self, priority: int) -> str:
        """Returns the name of the class of calls with this priority number.

        This is the highest class whose number is at least as large, or the lowest class.
        """
        for line in self._lines:
            if line.settings.priority >= priority:
                break
        return line.settings.name

    def enter(self, line: Line, now_s: float, avoid: frozenset[str]) -> bool:
        """Starts a new call if it may start at once. Returns whether it has started."""
        if now_s >= self._review_s:
            self._review(now_s)
        if (self.waiting and self._is_behind(line, now_s, avoid)) or not self._is_free(line):
            return False
        if not self._room.has_room(now_s, self.coming, avoid):
            return False
        self.in_flight += 1
        line.begin()
        return True

    def add(self, line: Line, waiter: Waiter, until_s: float, now_s: float) -> None:
        """Queues a call. Raises QueueFull, or Overloaded if the call would start too late.

        until_s: the latest time at which the call may start, in monotonic seconds.
        """
        self._check_queue(line, waiter, now_s)
        wait_s = self._wait_s(line, waiter, now_s)
        most_s = max(0.0, until_s - now_s)
        if not most_s or (wait_s or 0.0) > most_s:
            line.refuse("wait")
            what = "cannot start at once, and no wait is allowed"
            if most_s:
                what = f"would wait for {wait_s:.1f} s; at most {most_s:.1f} s is allowed"
            raise Overloaded(
                f"the call {what}",
                retry_after_s=self._again_s(line, waiter, wait_s and wait_s - most_s, now_s),
            )
        line.add(waiter, now_s)
        self.waiting += 1

    def next(self, now_s: float) -> Waiter | None:
        """Starts the next waiting call, and returns it; None if no call may start."""
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
                # No call of a lower class can start either: even more slots are reserved from it.
                return None
            waiter = line.take(fits, now_s)
            if waiter is not None:
                self.waiting -= 1
                self.in_flight += 1
                self.coming += 1
                self._coming_alike[waiter.avoid] += 1
                return waiter
        return None

    def arrived(self, waiter: Waiter) -> bool:
        """Counts a started call that has reached the pool.

        Returns whether calls on their way to the pool have held back a waiting call, which may be
        able to start now.
        """
        self.coming -= 1
        self._coming_alike[waiter.avoid] -= 1
        if not self.coming:
            self._coming_alike.clear()
        was_held, self.is_held_by_coming = self.is_held_by_coming, False
        return was_held

    def leave(self, line: Line) -> None:
        """Counts a started call that has ended."""
        self.in_flight -= 1
        line.end()

    def remove(self, line: Line, waiter: Waiter, step: Step, now_s: float) -> None:
        """Removes a waiting call that will not start, and wakes its task. step: the reason."""
        line.remove(waiter, step, now_s)
        self.waiting -= 1

    def move(self, now_s: float) -> None:
        """Removes all waiting calls; their tasks raise Withdrawn."""
        for line in self._lines:
            for waiter in line.queue.waiters():
                self.remove(line, waiter, Step.MOVED, now_s)

    def lateness(self, line: Line, waiter: Waiter, now_s: float) -> Overloaded:
        """Returns the error for a call that has waited for as long as it may."""
        wait_s = self._wait_s(line, waiter, now_s)
        return Overloaded(
            f"the call has waited for {now_s - waiter.since_s:.1f} s, the longest allowed",
            retry_after_s=self._again_s(line, waiter, wait_s, now_s),
        )

    def _wait_s(self, line: Line, waiter: Waiter, now_s: float) -> float | None:
        """Returns the seconds until this call would start if it came now; None if unknown.

        The rate is that of calls that may use the same endpoints, since others start at other
        rates.
        """
        rate = line.drain(waiter.avoid).tokens_per_s(now_s)
        parked_s = self._parked_until_s - now_s
        if rate is None:
            return parked_s if parked_s > 0 else None
        return max(parked_s, line.queue.ahead(waiter) / rate)

    def classes(self, now_s: float) -> list[ClassLoad]:
        """Returns the state of each class, the highest first."""
        if now_s >= self._review_s:
            self._review(now_s)
        return [line.load(now_s) for line in self._lines]

    def _is_free(self, line: Line) -> bool:
        """Whether a slot is free for this class, beyond those that higher classes reserve."""
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
            guard = int(one.settings.reserved * left + 1 - _ROUNDED_UP)
            if guard and below >= left - guard:
                return False
        return True

    def _is_behind(self, line: Line, now_s: float, avoid: frozenset[str]) -> bool:
        """Whether a waiting call of this or a higher class goes before a call that comes now.

        A call that waits for other endpoints does not.
        """
        lines = self._lines[: self._lines.index(line) + 1]
        waiting = [avoided for one in lines for avoided in one.queue.avoided]
        # Only coming calls that may use the same endpoints take room from a waiting call.
        return any(avoided <= avoid for avoided in waiting) or any(
            self._room.has_room(now_s, self._coming_alike[avoided], avoided) for avoided in waiting
        )

    def _in_flight_in_all(self) -> int:
        """Returns the number of calls in flight, over all classes and processes."""
        if not self._is_shared:
            return self.in_flight
        return sum([line.in_flight_in_all for line in self._lines])

    def _check_queue(self, line: Line, waiter: Waiter, now_s: float) -> None:
        """Raises QueueFull if the class or the tenant has its maximum number of waiting calls."""
        settings, flow, waiting = line.settings, waiter.flow, line.queue.waiting
        if flow.waiting >= settings.of_a_tenant:
            reason, name, waiting = "tenant", flow.tenant, flow.waiting
        elif waiting >= settings.most_waiting:
            reason, name = "class", settings.name
        else:
            return
        line.refuse(reason)
        wait_s = self._wait_s(line, waiter, now_s)
        calls = counted(waiting, f"call of {reason} {name} is", f"calls of {reason} {name} are")
        raise QueueFull(
            f"{calls} waiting, the most allowed",
            hint="send fewer calls at once",
            status=429,
            retry_after_s=self._again_s(line, waiter, wait_s, now_s),
        )

    def _review(self, now_s: float) -> None:
        """Updates slowly changing values: means, slots, and until when the pool is parked."""
        for line in self._lines:
            line.review(now_s)
        self._review_s = now_s + REVIEW_S
        self._slots = self._room.slots(now_s) or math.inf
        self._parked_until_s = self._room.load(now_s).parked_until_s

    def _again_s(self, line: Line, waiter: Waiter, wait_s: float | None, now_s: float) -> float:
        """Returns the seconds until a retry, if known at least the mean time between two starts."""
        if wait_s is None:
            return _USUAL_WAIT_S
        rate = line.drain(waiter.avoid).calls_per_s(now_s)
        return max(wait_s, 1 / rate if rate else 0.0)
