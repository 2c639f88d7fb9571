"""Servers of a pool in virtual time: so many calls at once, in order of arrival, at a speed."""

from __future__ import annotations

import asyncio
import copy
import math
from collections import deque
from collections.abc import Callable

from redline.calls.tokens import prefixes_of
from redline.errors import CallError
from redline.testing import WALL_START_S
from redline.waist import Attempt, Call, Load, Outcome, Reply, Request, Sink, failed


class LoopClock:
    """The time of the loop that runs now; 0 without one."""

    def now_s(self) -> float:
        try:
            return asyncio.get_running_loop().time()
        except RuntimeError:
            return 0.0

    def wall_s(self) -> float:
        return WALL_START_S + self.now_s()


class ModelServer:
    """A member of a pool. Its calls take `request.body["work"]` seconds at a speed of 1.

    slots: calls that it works on at once; further ones wait in it. bound: how many a pool may give
    it at once, 0 for any number. fails: what a call ends with instead, or None for an answer, given
    the time and the call's number here.
    """

    def __init__(
        self,
        name: str,
        on_room: Callable[[], None] | None = None,
        *,
        speed: float = 1.0,
        slots: int = 1,
        bound: int = 0,
        fails: Callable[[float, int], CallError | None] = lambda now_s, number: None,
        fails_in_s: float = 0.0,
    ) -> None:
        self.name = name
        self.on_room = on_room
        self.speed = speed
        self.slots = slots
        self.bound = bound
        self.fails = fails
        self.fails_in_s = fails_in_s
        self.calls = 0
        self.failed = 0
        self.in_flight = 0
        self.busy_s = 0.0
        self._working = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    def seated(self, on_room: Callable[[], None]) -> ModelServer:
        """Itself, as the member of a pool."""
        self.on_room = on_room
        return self

    def has_room(self, now_s: float, coming: int = 0) -> bool:
        return not self.bound or self.in_flight + coming < self.bound

    def withdraw(self, call: Call | None = None) -> int:
        # Whatever has reached it is on its wire.
        return 0

    def load(self, now_s: float, request: Request | None = None) -> Load:
        has_room = self.has_room(now_s)
        return Load(
            in_flight=self.in_flight,
            slots=self.bound,
            ahead_free=self.bound,
            steady=self.bound or 1_000_000,
            room_s=0.0 if has_room else math.ulp(0.0),
        )

    async def send(self, request: Request, call: Call, sink: Sink | None = None) -> Outcome:
        loop = asyncio.get_running_loop()
        self.calls += 1
        self.in_flight += 1
        begun_s = loop.time()
        try:
            error = self.fails(begun_s, self.calls)
            if error is not None:
                self.failed += 1
                await asyncio.sleep(self.fails_in_s)
                outcome = failed(copy.copy(error), endpoint=self.name)
                outcome.tried = (Attempt(self.name, error, begun_s, None, loop.time()),)
                return outcome
            await self._take_slot()
            work_s = self.work_s(request) / self.speed
            try:
                await asyncio.sleep(work_s)
            finally:
                self.busy_s += work_s
                self._free_slot()
            return Outcome(
                status="succeeded",
                reply=Reply(output=self.name),
                endpoint=self.name,
                latency_s=loop.time() - begun_s,
                tried=(Attempt(self.name, None, begun_s, None, loop.time()),),
            )
        finally:
            self.in_flight -= 1

    def work_s(self, request: Request) -> float:
        """What the call takes at a speed of 1, when it has its slot."""
        return float(request.body["work"])

    async def aclose(self) -> None:
        """There is nothing to close."""

    async def _take_slot(self) -> None:
        if self._working < self.slots:
            self._working += 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        await turn

    def _free_slot(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._working -= 1


class CachingServer(ModelServer):
    """A server with a prefix cache: what it has computed of a prompt before takes no time again.

    A call takes `work` seconds, and `prefill_s` for each prefix of its prompt that is not cached.
    kept: prefixes in the cache, the latest ones. hits, misses: prefixes that were cached, or not.
    """

    def __init__(self, name: str, *, prefill_s: float, kept: int, slots: int, bound: int) -> None:
        super().__init__(name, slots=slots, bound=bound)
        self.prefill_s = prefill_s
        self.kept = kept
        self.hits = self.misses = 0
        self._cached: dict[int, None] = {}

    def work_s(self, request: Request) -> float:
        blocks, cached = prefixes_of(request), self._cached
        hits = sum(block in cached for block in blocks)
        for block in reversed(blocks):
            cached.pop(block, None)
            cached[block] = None
        while len(cached) > self.kept:
            del cached[next(iter(cached))]
        self.hits += hits
        self.misses += len(blocks) - hits
        return super().work_s(request) + self.prefill_s * (len(blocks) - hits)
