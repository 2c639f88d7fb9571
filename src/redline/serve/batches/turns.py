"""Grants turns to waiting tenants in rotation, within a bound on the total.

A tenant that holds no turn gets one even beyond the bound: otherwise, tenants whose work is stuck
could hold all turns.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from redline.calls import Backend, Call, Outcome, Request, Sink
from redline.clock import SYSTEM, Clock
from redline.waist import Around

# The least time, in seconds, between two queries of a backend's slots.
_FRESH_S = 0.05
_LEAST_AHEAD = 16


class Turns:
    """Turns that tenants hold or wait for.

    most: returns the most turns that may be held now, by all tenants together; a tenant gets its
    first turn even beyond this number. most_each: the most turns that one tenant may hold. held:
    the number of turns held now.
    """

    def __init__(self, most: Callable[[], int], most_each: float = math.inf) -> None:
        self._most = most
        self._most_each = most_each
        self._held: Counter[str] = Counter()
        # Waiting calls of `acquire` by tenant; the tenant whose turn is next comes first.
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        self.held = 0

    async def acquire(self, tenant: str) -> None:
        """Waits until the tenant gets a turn. The caller must return the turn with `release`."""
        if not self._waiting and self._may_take(tenant):
            self._take(tenant)
            return
        turn = asyncio.Future[None]()
        self._waiting.setdefault(tenant, deque()).append(turn)
        self.look()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                with suppress(KeyError, ValueError):
                    self._waiting[tenant].remove(turn)
            else:
                # The turn was granted and its wait cancelled in the same iteration of the loop.
                self.release(tenant)
            raise

    def release(self, tenant: str) -> None:
        self.held -= 1
        self._held[tenant] -= 1
        if not self._held[tenant]:
            del self._held[tenant]
        self.look()

    def look(self) -> None:
        """Grants free turns to waiting tenants."""
        passed = 0
        while passed < len(self._waiting):
            tenant, line = next(iter(self._waiting.items()))
            while line and line[0].done():
                line.popleft()
            if not line:
                del self._waiting[tenant]
                continue
            self._waiting.move_to_end(tenant)
            if not self._may_take(tenant):
                passed += 1
                continue
            passed = 0
            self._take(tenant)
            line.popleft().set_result(None)

    def _may_take(self, tenant: str) -> bool:
        held = self._held[tenant]
        return not held or (held < self._most_each and self.held < self._most())

    def _take(self, tenant: str) -> None:
        self.held += 1
        self._held[tenant] += 1


class _Group:
    """The calls of one tenant to one model.

    request: one of these calls. most: the most of them in flight.
    """

    def __init__(self, backend: Backend, request: Request, most: int, clock: Clock) -> None:
        self._backend = backend
        self._request = request
        self._most = most
        self._clock = clock
        self._room = 0
        self._room_s = -math.inf
        self.turns = Turns(self.room)
        self.calls = 0

    def room(self) -> int:
        """Returns how many of the calls the backend may have at once; asks it at intervals."""
        now_s = self._clock.now_s()
        if now_s - self._room_s >= _FRESH_S:
            self._room_s = now_s
            slots = self._backend.load(now_s, self._request).slots
            room = slots + max(_LEAST_AHEAD, slots // 2)
            self._room = min(self._most, room) if slots else self._most
        return self._room


@dataclass(eq=False)
class Shared(Around):
    """The backend of all batches, which bounds the calls that it passes on.

    For each tenant and model, it passes on somewhat more calls than the backend has slots, and at
    most `_most`. Therefore tenants get equal shares even from a backend that orders waiting calls
    only by priority and arrival. Neither a tenant whose limits are used up nor a model whose
    endpoints are down holds up other calls.
    """

    _most: int
    _clock: Clock = SYSTEM
    _groups: dict[tuple[str, str], _Group] = field(default_factory=dict)

    @property
    def held(self) -> int:
        """The number of calls that the backend has now."""
        return sum(group.turns.held for group in self._groups.values())

    def look(self) -> None:
        """Passes waiting calls to the backend if it has room for them."""
        for group in self._groups.values():
            group.turns.look()

    async def send(self, request: Request, call: Call, sink: Sink | None = None) -> Outcome:
        name = call.tenant, request.model or ""
        group = self._groups.get(name)
        if group is None:
            group = _Group(self._inner, request, self._most, self._clock)
            self._groups[name] = group
        group.calls += 1
        try:
            await group.turns.acquire(call.tenant)
            try:
                return await self._inner.send(request, call)
            finally:
                group.turns.release(call.tenant)
        finally:
            group.calls -= 1
            if not group.calls:
                del self._groups[name]

    async def aclose(self) -> None:
        """Does nothing: the owner of the backend closes it."""
