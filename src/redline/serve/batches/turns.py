"""Turns by tenant: waiting tenants are served in rotation, within a total bound."""

from __future__ import annotations

import asyncio
import math
from collections import Counter, deque
from collections.abc import Callable

from redline.calls import Backend, Call, Load, Outcome, Request, Sink
from redline.clock import SYSTEM, Clock

# Seconds between two queries of a backend's slots, at least.
_FRESH_S = 0.05
_LEAST_AHEAD = 16


class Turns:
    """Turns by tenant.

    most: returns how many may be held together now; most_each: how many by one tenant.
    """

    def __init__(self, most: Callable[[], int], most_each: float = math.inf) -> None:
        self._most = most
        self._most_each = most_each
        self._held: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        # Tenants with waiters, the next one first.
        self._ring: deque[str] = deque()
        self.held = 0

    async def acquire(self, tenant: str) -> None:
        """Returns once the tenant has a turn; give it back with `release`."""
        if not self._ring and self._may(tenant):
            self._take(tenant)
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if tenant not in self._waiting:
            self._waiting[tenant] = deque()
            self._ring.append(tenant)
        self._waiting[tenant].append(turn)
        self.look()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._forget(tenant, turn)
            else:
                # The turn was granted and cancelled in the same turn of the loop.
                self.release(tenant)
            raise

    def release(self, tenant: str) -> None:
        self.held -= 1
        self._held[tenant] -= 1
        if not self._held[tenant]:
            del self._held[tenant]
        self.look()

    def look(self) -> None:
        """Grants all free turns."""
        passed = 0
        while self._ring and passed < len(self._ring):
            tenant = self._ring[0]
            line = self._waiting[tenant]
            while line and line[0].done():
                line.popleft()
            if not line:
                self._ring.popleft()
                del self._waiting[tenant]
                continue
            if self.held >= self._most():
                return
            self._ring.rotate(-1)
            if self._held[tenant] >= self._most_each:
                passed += 1
                continue
            passed = 0
            self._take(tenant)
            line.popleft().set_result(None)

    def _may(self, tenant: str) -> bool:
        return self._held.get(tenant, 0) < self._most_each and self.held < self._most()

    def _take(self, tenant: str) -> None:
        self.held += 1
        self._held[tenant] += 1

    def _forget(self, tenant: str, turn: asyncio.Future[None]) -> None:
        line = self._waiting.get(tenant)
        if line is not None and turn in line:
            line.remove(turn)


class _Group:
    """The calls of one tenant to one model. room: how many of them the backend may have now."""

    def __init__(self, tenant: str, room: Callable[[], int]) -> None:
        self._tenant = tenant
        self.turns = Turns(room)
        self.calls = 0

    async def send(self, backend: Backend, request: Request, call: Call) -> Outcome:
        await self.turns.acquire(self._tenant)
        try:
            return await backend.send(request, call)
        finally:
            self.turns.release(self._tenant)


class Shared:
    """The backend of all batches, which passes on a few calls more than can be answered at once.

    The bound is for each tenant and model. most: calls of a tenant to a model, at most. The backend
    orders its waiting calls by priority and arrival. The bounds therefore give tenants equal
    shares, and neither a tenant whose limits are used up nor a model whose endpoints are down holds
    up other calls.
    """

    def __init__(self, backend: Backend, most: int, clock: Clock = SYSTEM) -> None:
        self._backend = backend
        self._most = most
        self._clock = clock
        self._groups: dict[tuple[str, str], _Group] = {}

    @property
    def held(self) -> int:
        """Calls that the backend has now."""
        return sum(group.turns.held for group in self._groups.values())

    def look(self) -> None:
        """Passes further calls to the backend if it has room for them."""
        for group in self._groups.values():
            group.turns.look()

    def load(self, now_s: float, request: Request | None = None) -> Load:
        return self._backend.load(now_s, request)

    async def send(self, request: Request, call: Call, sink: Sink | None = None) -> Outcome:
        body = request.body
        model = body.get("model") if isinstance(body, dict) else None
        name = call.tenant, model if isinstance(model, str) else ""
        group = self._groups.get(name)
        if group is None:
            room = _Room(self._backend, request, self._most, self._clock)
            group = self._groups[name] = _Group(call.tenant, room)
        group.calls += 1
        try:
            return await group.send(self._backend, request, call)
        finally:
            group.calls -= 1
            if not group.calls:
                del self._groups[name]

    async def aclose(self) -> None:
        """Does nothing: the owner of the backend closes it."""


class _Room:
    """How many calls like `request` the backend may have at once; queried at intervals."""

    def __init__(self, backend: Backend, request: Request, most: int, clock: Clock) -> None:
        self._backend = backend
        self._request = request
        self._most = most
        self._clock = clock
        self._found = 0
        self._found_s = -math.inf

    def __call__(self) -> int:
        now_s = self._clock.now_s()
        if now_s - self._found_s >= _FRESH_S:
            self._found_s = now_s
            slots = self._backend.load(now_s, self._request).slots
            self._found = min(self._most, slots + max(_LEAST_AHEAD, slots // 2))
            if not slots:
                self._found = self._most
        return self._found
