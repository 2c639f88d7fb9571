"""A ledger in memory for several limiters in one loop, each with a clock and a way of its own."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Coroutine, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from redline.errors import NoEndpoint
from redline.limits import Cost, Limits, Rate
from redline.limits.shared import Lease, LeaseRequest, SharedLimiter, State
from redline.limits.shared import schedule as schedule_module
from redline.testing import VirtualClock, VirtualLoop

# By how much the timers ring late that are set in this context, in turn.
_LATES_S: ContextVar[Iterator[float] | None] = ContextVar("_LATES_S", default=None)


class Memory:
    """What the limiters share: the state, and the rule that changes it."""

    def __init__(self, rule: Any = schedule_module) -> None:
        self.rule = rule
        self.state: State | None = None
        self.turns = 0
        self.is_lost = False

    def transact(self, request: LeaseRequest, now_s: float) -> Lease:
        if self.is_lost:
            raise NoEndpoint("the ledger does not answer")
        self.turns += 1
        self.state, lease = self.rule.transact(self.state, request, now_s)
        return lease


class OffsetClock(VirtualClock):
    """A clock that shows `ahead_s` more than the loop's."""

    def __init__(self, ahead_s: float) -> None:
        super().__init__(asyncio.get_running_loop())
        self.ahead_s = ahead_s

    def now_s(self) -> float:
        return super().now_s() + self.ahead_s


class MemoryLedger:
    """One process's way to the memory: `way_s` each way, and a clock ahead of the memory's."""

    def __init__(self, memory: Memory, way_s: float = 0.0, ahead_s: float = 0.0) -> None:
        self.memory = memory
        self.clock = OffsetClock(ahead_s)
        self.lead_s = 2 * way_s
        self.unsure_s = way_s
        self.is_cut_off = False
        self._way_s = way_s

    def local_s(self, ledger_s: float) -> tuple[float, float]:
        middle_s = ledger_s + self.clock.ahead_s
        return middle_s - self.unsure_s / 2, middle_s + self.unsure_s / 2

    def stamp_s(self, local_s: float) -> float:
        return local_s - self.clock.ahead_s + self.unsure_s / 2

    async def transact(self, request: LeaseRequest) -> Lease:
        if self._way_s:
            await _sleep(self._way_s)
        if self.is_cut_off:
            raise NoEndpoint("the process was killed")
        lease = self.memory.transact(request, asyncio.get_running_loop().time())
        if self._way_s:
            await _sleep(self._way_s)
        return lease

    async def aclose(self) -> None:
        pass


@dataclass(frozen=True)
class Ask:
    """One caller: when it comes, what it wants, and what becomes of it.

    gone_s: it is cancelled so long after it came. is_released: it gives its grant back. used: what
    its call is settled to, `answer_s` after it was sent.
    """

    arrival_s: float = 0.0
    tokens: int = 0
    priority: int = 0
    gone_s: float = math.inf
    is_released: bool = False
    used: int | None = None
    answer_s: float = 0.5


@dataclass(frozen=True)
class Process:
    """One process. dies_s: it ends there without a word. lates_s: of its timers, in turn."""

    asks: Sequence[Ask]
    way_s: float = 0.0
    ahead_s: float = 0.0
    dies_s: float = math.inf
    lates_s: Sequence[float] = (0.0,)


@dataclass
class Sent:
    """A call that was written: when, by which process, for which of its asks."""

    at_s: float
    process: int
    ask: Ask
    amount: int = 1


@dataclass
class Shared:
    """What came of several processes: the writes in order, and what they shared."""

    memory: Memory
    sends: list[Sent] = field(default_factory=list)

    def by(self, process: int) -> list[Sent]:
        return [send for send in self.sends if send.process == process]


def share(limits: Limits, processes: Sequence[Process], rule: Any = schedule_module) -> Shared:
    """Runs the processes in virtual time until all their callers are served or gone."""
    shared = Shared(Memory(rule))

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            for number, process in enumerate(processes):
                group.create_task(_run(shared, limits, process, number))

    late_run(main())
    return shared


class LateLoop(VirtualLoop):
    """A virtual loop whose timers ring late, in tasks for which `ring_late` was called."""

    def call_later(self, delay: float, *rest: Any, **named: Any) -> asyncio.TimerHandle:
        lates_s = _LATES_S.get()
        return super().call_later(delay + (next(lates_s) if lates_s else 0.0), *rest, **named)


def late_run(main: Coroutine[Any, Any, None]) -> None:
    """Runs `main` in a LateLoop."""
    with asyncio.Runner(loop_factory=lambda: LateLoop(start_s=1000.0, limit_s=3600.0)) as runner:
        runner.run(main)


def ring_late(lates_s: Sequence[float]) -> None:
    """Timers that this task and those it makes set from now on ring late by these, in turn."""
    _LATES_S.set(itertools.cycle(lates_s))


async def _sleep(wait_s: float) -> None:
    """Sleeps without being late."""
    token = _LATES_S.set(None)
    await asyncio.sleep(wait_s)
    _LATES_S.reset(token)


async def _run(shared: Shared, limits: Limits, process: Process, number: int) -> None:
    ledger = MemoryLedger(shared.memory, process.way_s, process.ahead_s)
    limiter = SharedLimiter(limits, ledger, ledger.clock)
    loop = asyncio.get_running_loop()
    began_s = loop.time()

    async def call(ask: Ask) -> None:
        await _sleep(ask.arrival_s)
        try:
            async with asyncio.timeout(None if ask.gone_s == math.inf else ask.gone_s):
                grant = await limiter.acquire(Cost(ask.tokens), ask.priority)
        except TimeoutError:
            return
        if ask.is_released:
            grant.release()
            return
        grant.sent(ledger.clock.now_s())
        send = Sent(loop.time() - began_s, number, ask, ask.tokens or 1)
        shared.sends.append(send)
        if ask.used is not None:
            await _sleep(ask.answer_s)
            grant.settle(ask.used)
            send.amount = ask.used

    ring_late(process.lates_s)
    calls = [asyncio.create_task(call(ask)) for ask in process.asks]
    ring_late([0.0])
    _, unfinished = await asyncio.wait(
        calls, timeout=None if process.dies_s == math.inf else process.dies_s
    )
    if unfinished:
        # As a kill does it: nothing is given back, and no other process is told.
        ledger.is_cut_off = True
        for task in unfinished:
            task.cancel()
        await asyncio.wait(unfinished)
    else:
        await asyncio.gather(*calls)
    await limiter.aclose()


def least_left(sends: Sequence[Sent], rate: Rate, lates_s: Sequence[float] = (0.0,)) -> float:
    """The least that a bucket at the server ever holds after a call, below 0 if it was exceeded.

    It is full at first and refills evenly. lates_s: how late the calls reach it, in turn.
    """
    arrivals = sorted(
        (send.at_s + late_s, send.amount)
        for send, late_s in zip(sends, itertools.cycle(lates_s), strict=False)
    )
    least = left = float(rate.count)
    before_s = 0.0
    for at_s, amount in arrivals:
        left = min(rate.count, left + (at_s - before_s) * rate.count / rate.window_s) - amount
        least, before_s = min(least, left), at_s
    return least


def most_amount(sends: Sequence[Sent], span_s: float) -> int:
    """The largest sum of amounts within any `span_s`, its end left out."""
    ordered = sorted(sends, key=lambda send: send.at_s)
    most = total = first = 0
    for send in ordered:
        total += send.amount
        while ordered[first].at_s <= send.at_s - span_s + 1e-6:
            total -= ordered[first].amount
            first += 1
        most = max(most, total)
    return most
