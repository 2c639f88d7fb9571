"""Calls of one class that wait, fair between tenants: deficit round robin, in tokens.

Tenants that wait stand in a ring. Each that comes to its front gets a quantum, in proportion to its
weight, and starts calls while its credit pays for their tokens. What a call was charged is an
estimate: the difference to what it used is put right later, so a tenant may be in debt, which it
pays off before its next call. Nobody saves up credit while it waits for nothing.

M. Shreedhar and G. Varghese, Efficient Fair Queuing Using Deficit Round-Robin, IEEE/ACM
Transactions on Networking 4(3), 1996.
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from enum import Enum

from redline.errors import ConfigError

# A quantum is the mean cost of as many calls.
_MEMORY = 64
# Tenants without calls that are known because of their debts, or calls in flight.
_MOST_IDLE = 10_000

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
    """One tenant in the queue. credit: tokens; below 0, a debt. charged: its calls in flight."""

    __slots__ = (
        *("_lines", "charged", "credit", "in_ring", "left_at", "tenant", "tokens", "waiting"),
        "weight",
    )

    def __init__(self, tenant: str) -> None:
        self.tenant = tenant
        self.weight = 1.0
        self.credit = 0.0
        self.charged = 0
        self.waiting = 0
        self.tokens = 0.0
        self.in_ring = False
        self.left_at = 0.0
        # By the endpoints that calls may not use: one that is full holds back no others.
        self._lines: dict[frozenset[str], OrderedDict[Waiter, None]] = {}

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

    def ended(self) -> None:
        """A call that was charged is over."""
        self.charged -= 1

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
    """waiting: calls in it. weights: of the tenants that wait. tokens: of all calls in it."""

    def __init__(self) -> None:
        self.waiting = 0
        self.weights = 0.0
        self.tokens = 0.0
        self._flows: dict[str, Flow] = {}
        self._ring: deque[Flow] = deque()
        self._is_credited = False  # the tenant at the front of the ring has had its quantum
        self._quantum = 1.0
        self._turned = 0.0  # what a tenant of weight 1 has got that has always waited
        self._number = 0

    def flow(self, tenant: str, weight: float) -> Flow:
        """The tenant, with its debts. weight: its share in proportion to the others'.

        Raises ConfigError for a weight of 0 or less.
        """
        if not 0 < weight < math.inf:
            raise ConfigError(f"the weight of tenant {tenant} must be above 0, not {weight:g}")
        flow = self._flows.get(tenant)
        if flow is None:
            if len(self._flows) >= len(self._ring) + _MOST_IDLE:
                self._forget()
            flow = self._flows[tenant] = Flow(tenant)
        if flow.waiting:
            self.weights += weight - flow.weight
        flow.weight = weight
        return flow

    def flows(self) -> Iterator[Flow]:
        """The tenants that wait."""
        return (flow for flow in self._ring if flow.waiting)

    def add(self, waiter: Waiter) -> None:
        """The call waits, behind those of its tenant."""
        flow = waiter.flow
        if not flow.waiting:
            self.weights += flow.weight
            self._pay_off(flow)
            if not flow.in_ring:
                flow.in_ring = True
                self._ring.append(flow)
        waiter.number = self._number = self._number + 1
        flow.add(waiter)
        self.waiting += 1
        self.tokens += waiter.tokens

    def take(self, fits: Fits) -> Waiter | None:
        """The call that starts now, and is charged; None if none fits.

        fits: whether a call could start that may not use these endpoints.
        """
        ring = self._ring
        while True:
            rounds = math.inf
            for _ in range(len(ring)):
                flow = ring[0]
                waiter = flow.first(fits)
                if waiter is not None:
                    if not self._is_credited:
                        self._is_credited = True
                        flow.credit += self._quantum * flow.weight
                        self._turned += self._quantum / len(ring)
                    if flow.credit >= waiter.tokens:
                        self._start(waiter)
                        return waiter
                    lacks = (waiter.tokens - flow.credit) / (self._quantum * flow.weight)
                    rounds = min(rounds, lacks)
                self._move_on()
            if rounds == math.inf:
                return None
            # All are too poor. The rounds until one is not are made at once.
            skipped = max(0, math.ceil(rounds) - 1)
            for flow in ring:
                if skipped and flow.first(fits) is not None:
                    flow.credit += skipped * self._quantum * flow.weight
            self._turned += skipped * self._quantum

    def remove(self, waiter: Waiter) -> None:
        """The call waits no more."""
        flow = waiter.flow
        flow.remove(waiter)
        self.waiting -= 1
        self.tokens -= waiter.tokens
        if not flow.waiting:
            self.weights -= flow.weight
            flow.left_at = self._turned
        if not self.waiting:
            self._clear()

    def settle(self, flow: Flow, extra: float) -> None:
        """Corrects the estimate of a call that has started by `extra` tokens."""
        if not flow.waiting:
            self._pay_off(flow)
            extra = max(0.0, extra)
        flow.credit -= extra

    def ahead(self, flow: Flow, tokens: float) -> float:
        """Tokens that start before a call of this tenant, if it came now, by what waits now."""
        own = flow.tokens + tokens + max(0.0, -flow.credit)
        others = self.weights - flow.weight if flow.waiting else self.weights
        of_others = min(own * others / flow.weight, self.tokens - flow.tokens)
        return flow.tokens + max(0.0, of_others)

    def _pay_off(self, flow: Flow) -> None:
        """A tenant that does not wait pays debts with what it would have got. It saves nothing."""
        earned = (self._turned - flow.left_at) * flow.weight
        flow.credit = min(0.0, flow.credit + earned)
        flow.left_at = self._turned

    def _start(self, waiter: Waiter) -> None:
        flow = waiter.flow
        flow.credit -= waiter.tokens
        flow.charged += 1
        self._quantum += (max(1.0, waiter.tokens) - self._quantum) / _MEMORY
        self.remove(waiter)

    def _move_on(self) -> None:
        """The next tenant of the ring is at its front; one without calls leaves the ring."""
        ring = self._ring
        if ring[0].waiting:
            ring.rotate(-1)
        else:
            ring.popleft().in_ring = False
        self._is_credited = False

    def _clear(self) -> None:
        """Nothing waits: everyone has got all that was asked for, and nothing is owed."""
        self._flows.clear()
        self._ring.clear()
        self.weights = self.tokens = 0.0
        self._is_credited = False

    def _forget(self) -> None:
        """Forgets tenants that do not wait: those that owe nothing, or else the oldest half."""
        idle = [flow for flow in self._flows.values() if not flow.waiting]
        for flow in idle:
            self._pay_off(flow)
        even = [flow for flow in idle if not (flow.charged or flow.credit)]
        for flow in even or idle[: len(idle) // 2]:
            del self._flows[flow.tenant]
