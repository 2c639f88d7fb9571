"""Turns by tenant: each that waits is served after the other, within a bound for all of them."""

from __future__ import annotations

import asyncio
import math
from collections import Counter, deque
from collections.abc import Callable

from redline.calls import Backend, Call, Load, Outcome, Request, Sink
from redline.clock import SYSTEM, Clock

# A backend is asked how many calls it can take at most this often.
_FRESH_S = 0.05
_LEAST_AHEAD = 16


class Turns:
    """most: how many may be held at once, asked whenever that matters; most_each: by a tenant."""

    def __init__(self, most: Callable[[], int], most_each: float = math.inf) -> None:
        self._most = most
        self._most_each = most_each
        self._held: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        # Tenants that have waiters, the next one first.
        self._ring: deque[str] = deque()
        self.held = 0

    async def acquire(self, tenant: str) -> None:
        """Returns with a turn; give it back with `release`."""
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
                # It was given and cancelled in the same turn of the loop.
                self.release(tenant)
            raise

    def release(self, tenant: str) -> None:
        self.held -= 1
        self._held[tenant] -= 1
        if not self._held[tenant]:
            del self._held[tenant]
        self.look()

    def look(self) -> None:
        """Gives out what is free."""
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


class Shared:
    """The backend of all batches: a few calls more than it can take at once, from each tenant in
    turn.

    most: calls at the backend, however many it could take. What waits there holds nobody up who
    comes with a lower priority number; more waiting there would only fill its queue.
    """

    def __init__(self, backend: Backend, most: int, clock: Clock = SYSTEM) -> None:
        self._backend = backend
        self._most = most
        self._clock = clock
        self._found = most
        self._found_s = -math.inf
        self.turns = Turns(self._room)

    def load(self, now_s: float, request: Request | None = None) -> Load:
        return self._backend.load(now_s, request)

    async def send(self, request: Request, call: Call, sink: Sink | None = None) -> Outcome:
        tenant = call.tenant
        await self.turns.acquire(tenant)
        try:
            return await self._backend.send(request, call, sink)
        finally:
            self.turns.release(tenant)

    async def aclose(self) -> None:
        """Nothing: the backend stays its owner's."""

    def _room(self) -> int:
        now_s = self._clock.now_s()
        if now_s - self._found_s >= _FRESH_S:
            self._found_s = now_s
            slots = self._backend.load(now_s).slots
            ahead = max(_LEAST_AHEAD, slots // 2)
            self._found = min(self._most, slots + ahead) if slots else self._most
        return self._found
