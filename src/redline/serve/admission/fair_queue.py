"""Queues the waiting calls of a class, fairly between tenants: start-time fair queuing by tokens.

Each tenant has a virtual time: the tokens that its calls have used, plus an estimate for its calls
in flight, divided by its weight. The next call to start belongs to the tenant with the lowest
virtual time. A new or idle tenant begins at the queue's present virtual time, so that no tenant
gains from having been idle. An estimate counts only while its call is in flight, so a wrong
estimate does not delay a tenant for long.

Calls may use different endpoints: those with their model, except one at which they failed. The
tenants get weighted max-min shares then too: a tenant gets less than another, relative to their
weights, only if all endpoints that it may use give nothing to the other. Therefore each set of
usable endpoints has a queue as above, with virtual times of its own, and an endpoint in several
sets takes the call with the lowest virtual time of all. Usage of endpoints that are in only some of
the sets is forgotten soon, because it must not delay a tenant later:

the virtual times of sets that lag behind approach the latest one, within about _MEMORY starts;
a call counts in full for calls of its tenant that may use the same endpoints, and sets back the
tenant's other calls by at most a fixed distance.

P. Goyal, H. Vin and H. Cheng, Start-time Fair Queueing, ACM SIGCOMM 1996.
K. Yap et al., Scheduling Packets over Multiple Interfaces while Respecting User Preferences, ACM
CoNEXT 2013, which also limits how much the use of one interface counts on another.
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Set
from enum import Enum
from heapq import heapify, heappop, heappush

import msgspec

from redline.errors import ConfigError
from redline.structs import mutable

# The queue remembers the usage and the calls in flight of at most this many tenants without waiting
# calls.
_MOST_IDLE = 10_000
# A heap may have this many entries in addition to two per waiting tenant.
_MOST_OUTDATED = 64
# Calls that may use different endpoints are compared by their usage during about this many starts.
# In 120 random lineups of 2 to 4 endpoints, tenants got their max-min shares within 10 %, most
# within 2 %; with 64 starts, within 13 %. With 256, a tenant that loses an endpoint that no other
# tenant could use waits twice as long for its share of the rest.
_MEMORY = 128

Fits = Callable[[frozenset[str]], bool]


class Step(Enum):
    """The state of a call: waiting, started, late, cancelled, or withdrawn by `Gate.move`."""

    WAITING = "waiting"
    STARTED = "started"
    LATE = "late"
    GONE = "gone"
    MOVED = "moved"


@mutable
class Waiter(msgspec.Struct, eq=False):
    """A waiting call.

    flow: its tenant. tokens: its estimate. avoid: the names of endpoints that it may not use.
    since_s: its arrival, in monotonic seconds. number: its place in the order of arrival. turn: the
    future that its task awaits.
    """

    flow: Flow
    tokens: float
    avoid: frozenset[str]
    since_s: float
    number: int = 0
    step: Step = Step.WAITING
    turn: asyncio.Future[None] = msgspec.field(default_factory=asyncio.Future)

    def turns(self, step: Step) -> None:
        """Ends the wait with this state and wakes the call's task."""
        self.step = step
        if not self.turn.done():
            self.turn.set_result(None)


@mutable
class Flow(msgspec.Struct, eq=False):
    """A tenant in the queue.

    pending: the estimated tokens of its calls in flight; charged: the number of these calls.
    waiting: the number of its waiting calls. parts: these calls, by the endpoints that they may not
    use.
    """

    tenant: str
    weight: float = 1.0
    pending: float = 0.0
    charged: int = 0
    waiting: int = 0
    parts: dict[frozenset[str], Part] = {}

    def begin(self, tokens: float) -> None:
        """Charges the estimate of a call that starts."""
        self.charged += 1
        self.pending += tokens

    def end(self, estimate: float) -> None:
        """Takes back the estimate of a call that has ended."""
        self.charged -= 1
        self.pending = self.pending - estimate if self.charged else 0.0

    def may_use(self, endpoint: str) -> bool:
        """Whether a waiting call of the tenant may use this endpoint."""
        return any(endpoint not in avoid for avoid in self.parts)

    def waiters(self) -> Iterator[Waiter]:
        """Returns the waiting calls, grouped by the endpoints that they may not use."""
        return (waiter for part in self.parts.values() for waiter in part.line)

    def heads(self) -> Iterator[Waiter]:
        """Returns the first call of each group of calls that may use the same endpoints."""
        return (part.head for part in self.parts.values())


@mutable
class Part(msgspec.Struct, eq=False):
    """A tenant's calls that may use the same endpoints.

    used: the tokens that count against these calls, divided by the tenant's weight. place: the
    virtual time by which they are sorted among the calls of other tenants. tokens: the sum of the
    estimates of the waiting ones, which are in `line`.
    """

    flow: Flow
    used: float
    place: float = 0.0
    tokens: float = 0.0
    line: OrderedDict[Waiter, None] = msgspec.field(default_factory=OrderedDict)

    @property
    def time(self) -> float:
        """The tenant's virtual time among these calls."""
        return self.used + self.flow.pending / self.flow.weight

    @property
    def head(self) -> Waiter:
        """The first waiting call."""
        return next(iter(self.line))


class _Alike(msgspec.Struct, eq=False):
    """The calls that may use the same endpoints, while such calls are waiting.

    waiting: the number of waiting calls. tokens: the sum of their estimates. weights: the sum of
    the weights of their tenants; busy: the number of these tenants. floor: the usage at which a new
    or idle tenant starts. time: the virtual time of the tenant whose call started last. shift:
    added to virtual times when they are compared with those of other calls.
    """

    shift: float = 0.0
    waiting: int = 0
    tokens: float = 0.0
    weights: float = 0.0
    busy: int = 0
    floor: float = 0.0
    time: float = 0.0
    parts: dict[Flow, Part] = {}
    # Waiting tenants by virtual time. An entry whose time differs from `Part.place` is outdated.
    _order: list[tuple[float, int, Part]] = []

    def first(self) -> Part:
        """Returns the waiting calls of the tenant with the lowest virtual time."""
        order = self._order
        while True:
            place, _, part = order[0]
            if part.line and place == part.place:
                return part
            heappop(order)

    def put(self, part: Part, number: int) -> None:
        """Sorts waiting calls of a tenant by its present virtual time.

        number: decides between equal times; increases from call to call.
        """
        part.place = part.time
        heappush(self._order, (part.place, number, part))
        if len(self._order) > 2 * self.busy + _MOST_OUTDATED:
            parts = (part for part in self.parts.values() if part.line)
            self._order = [(part.place, number, part) for number, part in enumerate(parts)]
            heapify(self._order)


class FairQueue:
    """Waiting calls, served fairly between tenants.

    waiting: the number of these calls. weights: the sum of the weights of their tenants.
    """

    def __init__(self) -> None:
        self.waiting = 0
        self.weights = 0.0
        self._flows: dict[str, Flow] = {}
        self._busy = 0  # the number of tenants with waiting calls
        # The calls, keyed by the endpoints that they may not use.
        self._alike: dict[frozenset[str], _Alike] = {}
        self._number = 0

    def flow(self, tenant: str, weight: float) -> Flow:
        """Returns the tenant's entry, created if needed, and sets its weight.

        weight: its share, relative to the other tenants' weights. Raises ConfigError for a weight
        that is not a finite number above 0.
        """
        if not 0 < weight < math.inf:
            raise ConfigError(f"tenant {tenant} must have a finite weight above 0, not {weight:g}")
        flow = self._flows.get(tenant)
        if flow is None:
            if len(self._flows) >= self._busy + _MOST_IDLE:
                self._forget()
            flow = self._flows[tenant] = Flow(tenant)
        if weight != flow.weight:
            if flow.waiting:
                self.weights += weight - flow.weight
            for avoid in flow.parts:
                self._alike[avoid].weights += weight - flow.weight
            flow.weight = weight
            self._put(flow)
        return flow

    def flows(self) -> Iterator[Flow]:
        """Returns the tenants with waiting calls."""
        return (flow for flow in self._flows.values() if flow.waiting)

    @property
    def avoided(self) -> Set[frozenset[str]]:
        """The sets of endpoints that waiting calls may not use."""
        return self._alike.keys()

    def waiters(self) -> list[Waiter]:
        """Returns the waiting calls, in the order of their arrival."""
        waiters = (waiter for flow in self.flows() for waiter in flow.waiters())
        return sorted(waiters, key=lambda waiter: waiter.number)

    def weights_for(self, endpoint: str) -> float:
        """Returns the summed weights of tenants with a waiting call that may use this endpoint."""
        usable = [alike for avoid, alike in self._alike.items() if endpoint not in avoid]
        if len(usable) == len(self._alike):
            return self.weights
        if len(usable) > 1:
            # A tenant may have calls in several of these, but its weight counts once.
            return sum(flow.weight for flow in self.flows() if flow.may_use(endpoint))
        return usable[0].weights if usable else 0.0

    def add(self, waiter: Waiter) -> None:
        """Queues the call behind its tenant's other calls."""
        flow, avoid = waiter.flow, waiter.avoid
        waiter.number = self._number = self._number + 1
        if (alike := self._alike.get(avoid)) is None:
            # With a larger shift, these calls might have to wait until another set has caught up.
            shift = min((one.floor + one.shift for one in self._alike.values()), default=0.0)
            alike = self._alike[avoid] = _Alike(shift)
        if not flow.waiting:
            self._busy += 1
            self.weights += flow.weight
        if (part := flow.parts.get(avoid)) is None:
            part = alike.parts.get(flow)
            if part is None:
                part = alike.parts[flow] = Part(flow, alike.floor)
            flow.parts[avoid] = part
            part.used = max(part.used, alike.floor)
            alike.weights += flow.weight
            alike.busy += 1
            alike.put(part, waiter.number)
        self.waiting += 1
        flow.waiting += 1
        alike.waiting += 1
        part.line[waiter] = None
        part.tokens += waiter.tokens
        alike.tokens += waiter.tokens

    def take(self, fits: Fits) -> Waiter | None:
        """Removes, charges and returns the next call to start; None if no call fits.

        fits: returns whether a call that may not use the given endpoints could start.
        """
        found, lowest = None, (math.inf, 0)
        for avoid, alike in self._alike.items():
            if fits(avoid):
                part = alike.first()
                head = part.head
                rank = part.place + alike.shift, head.number
                if rank < lowest:
                    found, lowest = part, rank
        if found is None:
            return None
        waiter = found.head
        self._start(waiter, found)
        return waiter

    def remove(self, waiter: Waiter) -> None:
        """Removes a waiting call."""
        flow, avoid = waiter.flow, waiter.avoid
        alike, part = self._alike[avoid], flow.parts[avoid]
        self.waiting -= 1
        flow.waiting -= 1
        alike.waiting -= 1
        del part.line[waiter]
        part.tokens -= waiter.tokens
        alike.tokens -= waiter.tokens
        if not part.line:
            part.tokens = 0.0
            del flow.parts[avoid]
            alike.weights -= flow.weight
            alike.busy -= 1
        if not alike.waiting:
            del self._alike[avoid]
        if not flow.waiting:
            self._busy -= 1
            self.weights -= flow.weight
        if not self.waiting:
            self._clear()

    def ended(self, waiter: Waiter, tokens: float) -> None:
        """Ends a call that had waited. tokens: its real usage, which replaces the estimate."""
        flow, cost = waiter.flow, tokens / waiter.flow.weight
        flow.end(waiter.tokens)
        alike = self._alike.get(waiter.avoid)
        own = None if alike is None else alike.parts.get(flow)
        if own is not None:
            own.used += cost
        for avoid, part in flow.parts.items():
            if part is not own:
                # A tenant that keeps using other endpoints stays behind here, but its usage there
                # does not add up. With one cost instead of two, some would not count at all.
                most = self._alike[avoid].first().place + 2 * cost - flow.pending / flow.weight
                part.used = max(part.used, min(part.used + cost, most))
        self._put(flow)

    def ahead(self, waiter: Waiter) -> float:
        """Returns the tokens of waiting calls that would start before this call if it came now.

        Only calls that may use the same endpoints count.
        """
        alike = self._alike.get(waiter.avoid)
        if alike is None:
            return 0.0
        flow, part = waiter.flow, alike.parts.get(waiter.flow)
        waiting = 0.0 if part is None else part.tokens
        used = alike.floor if part is None else max(part.used, alike.floor)
        lead = used + flow.pending / flow.weight - alike.time
        own = waiting + waiter.tokens + max(0.0, lead * flow.weight)
        others = alike.weights - flow.weight if waiting else alike.weights
        of_others = min(own * others / flow.weight, alike.tokens - waiting)
        return waiting + max(0.0, of_others)

    def _start(self, waiter: Waiter, part: Part) -> None:
        alike, flow = self._alike[waiter.avoid], waiter.flow
        if len(self._alike) > 1:
            self._approach()
        alike.time = part.time
        alike.floor = max(alike.floor, part.used)
        flow.begin(waiter.tokens)
        self.remove(waiter)
        self._put(flow)

    def _approach(self) -> None:
        """Moves the virtual times of sets of usable endpoints nearer to the latest one."""
        times = [(one, one.first().place + one.shift) for one in self._alike.values()]
        latest = max(time for _, time in times)
        for one, time in times:
            one.shift += (latest - time) / _MEMORY

    def _put(self, flow: Flow) -> None:
        """Sorts a tenant's waiting calls by its present virtual times."""
        for avoid, part in flow.parts.items():
            self._number += 1
            self._alike[avoid].put(part, self._number)

    def _clear(self) -> None:
        """Forgets the usage of all tenants, which matters only while calls are waiting."""
        self._flows.clear()
        self._alike.clear()
        self.weights = 0.0

    def _forget(self) -> None:
        """Forgets some tenants without waiting calls, to bound the memory.

        These are the ones that have no call in flight and are not ahead of their share or, if there
        are none, the older half of the tenants without waiting calls.
        """
        ahead = {
            flow
            for alike in self._alike.values()
            for flow, part in alike.parts.items()
            if part.used > alike.floor
        }
        idle = [flow for flow in self._flows.values() if not flow.waiting]
        even = [flow for flow in idle if not flow.charged and flow not in ahead]
        for flow in even or idle[: len(idle) // 2]:
            del self._flows[flow.tenant]
            for alike in self._alike.values():
                alike.parts.pop(flow, None)
