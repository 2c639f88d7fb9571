"""Calls of one class that wait, fair between tenants: start-time fair queuing, in tokens.

Each tenant has a virtual time: the tokens that its calls have used, and an estimate of those in
flight, by its weight. The next call is one of the tenant whose virtual time is the lowest. A tenant
that is new or was idle starts at what the others have used: no tenant saves up for later. Estimates
count only while a call is in flight, so that wrong ones put off no tenant for long.

P. Goyal, H. Vin and H. Cheng, Start-time Fair Queueing, ACM SIGCOMM 1996.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from enum import Enum
from heapq import heapify, heappop, heappush

from redline.errors import ConfigError

# Tenants without calls that are known because of what they have used, or calls in flight.
_MOST_IDLE = 10_000
# Entries of the order beyond two for each tenant.
_MOST_OUTDATED = 64

Fits = Callable[[frozenset[str]], bool]


class Step(Enum):
    """Where a call is: it waits, then it may start, or is late, or gives up."""

    WAITING = "waiting"
    STARTED = "started"
    LATE = "late"
    GONE = "gone"


class Waiter:
    """One call that waits. avoid: endpoints that it may not use. turn: what its task waits for."""

    __slots__ = ("avoid", "flow", "number", "since_s", "step", "tokens", "turn")

    def __init__(self, flow: Flow, tokens: float, avoid: frozenset[str], since_s: float) -> None:
        self.flow = flow
        self.tokens = tokens
        self.avoid = avoid
        self.since_s = since_s
        self.number = 0
        self.step = Step.WAITING
        self.turn: asyncio.Future[None] | None = None

    def wait(self) -> asyncio.Future[None]:
        """Done when the call does not wait any more."""
        self.turn = asyncio.get_running_loop().create_future()
        return self.turn

    def turns(self, step: Step) -> None:
        """It no longer waits; wakes its task."""
        self.step = step
        if self.turn is not None and not self.turn.done():
            self.turn.set_result(None)


class Flow:
    """One tenant in the queue.

    used: tokens of its calls that are over, by its weight. pending: estimated tokens of its calls
    in flight, charged: their number. place: its virtual time as the queue has it in its order.
    """

    __slots__ = (
        *("_lines", "charged", "pending", "place", "tenant", "tokens", "used", "waiting"),
        "weight",
    )

    def __init__(self, tenant: str) -> None:
        self.tenant = tenant
        self.weight = 1.0
        self.used = 0.0
        self.pending = 0.0
        self.place = 0.0
        self.charged = 0
        self.waiting = 0
        self.tokens = 0.0
        # By the endpoints that calls may not use: one that is full holds back no others.
        self._lines: dict[frozenset[str], OrderedDict[Waiter, None]] = {}

    @property
    def time(self) -> float:
        """The queue's virtual time."""
        return self.used + self.pending / self.weight

    def add(self, waiter: Waiter) -> None:
        self._lines.setdefault(waiter.avoid, OrderedDict())[waiter] = None
        self.waiting += 1
        self.tokens += waiter.tokens

    def remove(self, waiter: Waiter) -> None:
        line = self._lines[waiter.avoid]
        del line[waiter]
        if not line:
            del self._lines[waiter.avoid]
        self.waiting -= 1
        self.tokens = self.tokens - waiter.tokens if self.waiting else 0.0

    def begin(self, tokens: float) -> None:
        """A call starts."""
        self.charged += 1
        self.pending += tokens

    def end(self, estimate: float, tokens: float) -> None:
        """A call that was charged is over. tokens: what it has used."""
        self.charged -= 1
        self.pending = self.pending - estimate if self.charged else 0.0
        self.used += tokens / self.weight

    def may_use(self, endpoint: str) -> bool:
        """One of its calls that wait may use this endpoint."""
        return any(endpoint not in avoid for avoid, calls in self._lines.items() if calls)

    def heads(self) -> Iterator[Waiter]:
        """The first call of each line."""
        return (next(iter(line)) for line in self._lines.values())

    def first(self, fits: Fits) -> Waiter | None:
        """The call that came first, of those that fit; None if none does."""
        found = None
        for head in self.heads():
            if (found is None or head.number < found.number) and fits(head.avoid):
                found = head
        return found


class FairQueue:
    """Waiting calls, served fairly between tenants.

    waiting: calls in it. weights: of the tenants that wait. tokens: of all calls in it.
    """

    def __init__(self) -> None:
        self.waiting = 0
        self.weights = 0.0
        self.tokens = 0.0
        self._flows: dict[str, Flow] = {}
        self._busy = 0  # tenants that wait
        # Tenants that wait by virtual time. An entry whose time is not `Flow.place` is outdated.
        self._order: list[tuple[float, int, Flow]] = []
        # Calls that wait by the endpoints that they may not use.
        self._avoided = Counter[frozenset[str]]()
        self._floor = 0.0  # what a tenant has used that comes now
        self._time = 0.0  # virtual time of the tenant whose call started last
        self._number = 0

    def flow(self, tenant: str, weight: float) -> Flow:
        """The tenant, with what it has used. weight: its share in proportion to the others'.

        Raises ConfigError for a weight of 0 or less.
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
            flow.weight = weight
            self._put(flow)
        return flow

    def flows(self) -> Iterator[Flow]:
        """The tenants that wait."""
        return (flow for flow in self._flows.values() if flow.waiting)

    def weights_for(self, endpoint: str) -> float:
        """The sum of weights of tenants with a waiting call that may use this endpoint."""
        usable = [endpoint not in avoid for avoid in self._avoided]
        if not any(usable):
            return 0.0
        if all(usable):
            return self.weights
        return sum(flow.weight for flow in self.flows() if flow.may_use(endpoint))

    def add(self, waiter: Waiter) -> None:
        """The call waits, behind those of its tenant."""
        flow = waiter.flow
        waiter.number = self._number = self._number + 1
        is_first = not flow.waiting
        flow.add(waiter)
        self.waiting += 1
        self.tokens += waiter.tokens
        self._avoided[waiter.avoid] += 1
        if is_first:
            self._busy += 1
            self.weights += flow.weight
            flow.used = max(flow.used, self._floor)
            self._put(flow)

    def take(self, fits: Fits) -> Waiter | None:
        """The call that starts now, and is charged; None if none fits.

        fits: whether a call could start that may not use these endpoints.
        """
        if not any(map(fits, self._avoided)):
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
        """The call waits no more."""
        flow = waiter.flow
        flow.remove(waiter)
        self.waiting -= 1
        self.tokens -= waiter.tokens
        self._avoided[waiter.avoid] -= 1
        if not self._avoided[waiter.avoid]:
            del self._avoided[waiter.avoid]
        if not flow.waiting:
            self._busy -= 1
            self.weights -= flow.weight
        if not self.waiting:
            self._clear()

    def ended(self, flow: Flow, estimate: float, tokens: float) -> None:
        """A call that had waited is over. tokens: what it has used in place of the estimate."""
        flow.end(estimate, tokens)
        self._put(flow)

    def ahead(self, flow: Flow, tokens: float) -> float:
        """Tokens that start before a call of this tenant, if it came now, by what waits now."""
        lead = max(flow.used, self._floor) + flow.pending / flow.weight - self._time
        own = flow.tokens + tokens + max(0.0, lead * flow.weight)
        others = self.weights - flow.weight if flow.waiting else self.weights
        of_others = min(own * others / flow.weight, self.tokens - flow.tokens)
        return flow.tokens + max(0.0, of_others)

    def _start(self, waiter: Waiter) -> None:
        flow = waiter.flow
        self._time = flow.time
        self._floor = max(self._floor, flow.used)
        flow.begin(waiter.tokens)
        self.remove(waiter)
        self._put(flow)

    def _put(self, flow: Flow) -> None:
        """Sets the place of a tenant by its virtual time."""
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
        """Nothing waits: everyone has got all that was asked for, and nothing is owed."""
        self._flows.clear()
        self._order.clear()
        self._avoided.clear()
        self.weights = self.tokens = self._floor = self._time = 0.0

    def _forget(self) -> None:
        """Forgets tenants that do not wait: those that owe nothing, or else the oldest half."""
        idle = [flow for flow in self._flows.values() if not flow.waiting]
        even = [flow for flow in idle if not flow.charged and flow.used <= self._floor]
        for flow in even or idle[: len(idle) // 2]:
            del self._flows[flow.tenant]
