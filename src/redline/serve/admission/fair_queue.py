"""Queues the waiting calls of a class, fairly between tenants: start-time fair queuing by tokens.

Each tenant has a virtual time: the tokens that its calls have used, plus an estimate for its calls
in flight, divided by its weight. The next call to start belongs to the tenant with the lowest
virtual time. A new or idle tenant begins at the queue's present virtual time, so that no tenant
gains from having been idle. An estimate counts only while its call is in flight, so a wrong
estimate does not delay a tenant for long.

P. Goyal, H. Vin and H. Cheng, Start-time Fair Queueing, ACM SIGCOMM 1996.
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
# The heap may have this many entries in addition to two per waiting tenant.
_MOST_OUTDATED = 64

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

    used: the tokens of its ended calls, divided by its weight. pending: the estimated tokens of its
    calls in flight; charged: the number of these calls. place: the virtual time by which the queue
    has sorted the tenant. waiting: the number of its waiting calls. tokens: their tokens, by the
    endpoints that they may not use.
    """

    tenant: str
    weight: float = 1.0
    used: float = 0.0
    pending: float = 0.0
    place: float = 0.0
    charged: int = 0
    waiting: int = 0
    tokens: dict[frozenset[str], float] = {}
    # Waiting calls by the endpoints that they may not use, so that a full endpoint does not hold
    # back calls that can use others.
    _lines: dict[frozenset[str], OrderedDict[Waiter, None]] = {}

    @property
    def time(self) -> float:
        """The tenant's virtual time."""
        return self.used + self.pending / self.weight

    def add(self, waiter: Waiter) -> None:
        self._lines.setdefault(waiter.avoid, OrderedDict())[waiter] = None
        self.waiting += 1
        self.tokens[waiter.avoid] = self.tokens.get(waiter.avoid, 0.0) + waiter.tokens

    def remove(self, waiter: Waiter) -> None:
        line = self._lines[waiter.avoid]
        del line[waiter]
        self.waiting -= 1
        self.tokens[waiter.avoid] -= waiter.tokens
        if not line:
            del self._lines[waiter.avoid], self.tokens[waiter.avoid]

    def begin(self, tokens: float) -> None:
        """Charges the estimate of a call that starts."""
        self.charged += 1
        self.pending += tokens

    def end(self, estimate: float, tokens: float) -> None:
        """Replaces the estimate of a call that has ended by its real usage, `tokens`."""
        self.charged -= 1
        self.pending = self.pending - estimate if self.charged else 0.0
        self.used += tokens / self.weight

    def may_use(self, endpoint: str) -> bool:
        """Whether a waiting call of the tenant may use this endpoint."""
        return any(endpoint not in avoid for avoid in self._lines)

    def waiters(self) -> Iterator[Waiter]:
        """Returns the waiting calls, grouped by the endpoints that they may not use."""
        return (waiter for line in self._lines.values() for waiter in line)

    def heads(self) -> Iterator[Waiter]:
        """Returns the first call of each group of calls that may use the same endpoints."""
        return (next(iter(line)) for line in self._lines.values())

    def first(self, fits: Fits) -> Waiter | None:
        """Returns the earliest call that fits; None if no call fits."""
        found = None
        for head in self.heads():
            if (found is None or head.number < found.number) and fits(head.avoid):
                found = head
        return found


class _Alike(msgspec.Struct, eq=False):
    """The waiting calls that may use the same endpoints.

    waiting: the number of these calls. tokens: the sum of their estimates. weights: the sum of the
    weights of their tenants.
    """

    waiting: int = 0
    tokens: float = 0.0
    weights: float = 0.0


class FairQueue:
    """Waiting calls, served fairly between tenants.

    waiting: the number of these calls. weights: the sum of the weights of their tenants.
    """

    def __init__(self) -> None:
        self.waiting = 0
        self.weights = 0.0
        self._flows: dict[str, Flow] = {}
        self._busy = 0  # the number of tenants with waiting calls
        # Waiting tenants by virtual time. An entry whose time differs from `Flow.place` is
        # outdated.
        self._order: list[tuple[float, int, Flow]] = []
        # The waiting calls, keyed by the endpoints that they may not use.
        self._alike: dict[frozenset[str], _Alike] = {}
        self._floor = 0.0  # the usage at which a new or idle tenant starts
        self._time = 0.0  # virtual time of the tenant whose call started last
        self._number = 0

    def flow(self, tenant: str, weight: float) -> Flow:
        """Returns the tenant's entry, created if needed, and sets its weight.

        weight: its share, relative to the other tenants' weights. Raises ConfigError for a weight
        that is not above 0.
        """
        if not 0 < weight < math.inf:
            raise ConfigError(f"the weight of tenant {tenant} must be above 0, not {weight:g}")
        flow = self._flows.get(tenant)
        if flow is None:
            if len(self._flows) >= self._busy + _MOST_IDLE:
                self._forget()
            flow = self._flows[tenant] = Flow(tenant)
        if weight != flow.weight:
            if flow.waiting:
                self.weights += weight - flow.weight
            for avoid in flow.tokens:
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
            # A tenant may have calls in several of them, but its weight counts once.
            return sum(flow.weight for flow in self.flows() if flow.may_use(endpoint))
        return usable[0].weights if usable else 0.0

    def add(self, waiter: Waiter) -> None:
        """Queues the call behind its tenant's other calls."""
        flow = waiter.flow
        waiter.number = self._number = self._number + 1
        if (alike := self._alike.get(waiter.avoid)) is None:
            alike = self._alike[waiter.avoid] = _Alike()
        self.waiting += 1
        alike.waiting += 1
        alike.tokens += waiter.tokens
        if waiter.avoid not in flow.tokens:
            alike.weights += flow.weight
        is_first = not flow.waiting
        flow.add(waiter)
        if is_first:
            self._busy += 1
            self.weights += flow.weight
            flow.used = max(flow.used, self._floor)
            self._put(flow)

    def take(self, fits: Fits) -> Waiter | None:
        """Removes, charges and returns the next call to start; None if no call fits.

        fits: returns whether a call that may not use the given endpoints could start.
        """
        if not any(map(fits, self._alike)):
            return None
        order, passed = self._order, list[tuple[float, int, Flow]]()
        found = None
        while order:
            time, _, flow = order[0]
            if not flow.waiting or time != flow.place:
                heappop(order)
                continue
            found = flow.first(fits)
            if found is not None:
                self._start(found)
                break
            passed.append(heappop(order))
        for entry in passed:
            heappush(order, entry)
        return found

    def remove(self, waiter: Waiter) -> None:
        """Removes a waiting call."""
        flow = waiter.flow
        alike = self._alike[waiter.avoid]
        flow.remove(waiter)
        self.waiting -= 1
        alike.waiting -= 1
        alike.tokens -= waiter.tokens
        if waiter.avoid not in flow.tokens:
            alike.weights -= flow.weight
        if not alike.waiting:
            del self._alike[waiter.avoid]
        if not flow.waiting:
            self._busy -= 1
            self.weights -= flow.weight
        if not self.waiting:
            self._clear()

    def ended(self, flow: Flow, estimate: float, tokens: float) -> None:
        """Ends a call that had waited. tokens: its real usage, which replaces `estimate`."""
        flow.end(estimate, tokens)
        self._put(flow)

    def ahead(self, waiter: Waiter) -> float:
        """Returns the tokens of waiting calls that would start before this call if it came now.

        Only calls that may use the same endpoints count.
        """
        alike = self._alike.get(waiter.avoid)
        if alike is None:
            return 0.0
        flow, waiting = waiter.flow, waiter.flow.tokens.get(waiter.avoid, 0.0)
        lead = max(flow.used, self._floor) + flow.pending / flow.weight - self._time
        own = waiting + waiter.tokens + max(0.0, lead * flow.weight)
        others = alike.weights - flow.weight if waiting else alike.weights
        of_others = min(own * others / flow.weight, alike.tokens - waiting)
        return waiting + max(0.0, of_others)

    def _start(self, waiter: Waiter) -> None:
        flow = waiter.flow
        self._time = flow.time
        self._floor = max(self._floor, flow.used)
        flow.begin(waiter.tokens)
        self.remove(waiter)
        self._put(flow)

    def _put(self, flow: Flow) -> None:
        """Sorts a tenant into the queue by its present virtual time."""
        flow.place = flow.time
        if not flow.waiting:
            return
        order = self._order
        self._number += 1
        heappush(order, (flow.place, self._number, flow))
        if len(order) > 2 * self._busy + _MOST_OUTDATED:
            order[:] = [(one.place, number, one) for number, one in enumerate(self.flows())]
            heapify(order)

    def _clear(self) -> None:
        """Forgets the usage of all tenants; with an empty queue, no tenant is owed anything."""
        self._flows.clear()
        self._order.clear()
        self._alike.clear()
        self.weights = self._floor = self._time = 0.0

    def _forget(self) -> None:
        """Forgets some tenants without waiting calls, to bound the memory.

        These are the tenants that are not ahead of their share or, if there are none, the older
        half of the tenants without waiting calls.
        """
        idle = [flow for flow in self._flows.values() if not flow.waiting]
        even = [flow for flow in idle if not flow.charged and flow.used <= self._floor]
        for flow in even or idle[: len(idle) // 2]:
            del self._flows[flow.tenant]
