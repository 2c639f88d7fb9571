"""A gate in front of a pool of servers with slots, in virtual time, and calls that pass it."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

from redline.calls import Call, Request
from redline.errors import CallError
from redline.route import Pool, Seat, strategy_of
from redline.serve.admission import CLASSES, ClassSettings, Gate, Overloaded, QueueFull
from support.fleet import LoopClock, ModelServer

CLOCK = LoopClock()
PRIORITIES = {"high": 0, "normal": 10, "low": 20}
Work = Callable[[random.Random], float]


def pool_of(
    servers: Sequence[ModelServer], *, most: int | None = None, kind: type[Pool] = Pool
) -> Pool:
    seats = [Seat(name=server.name, make=server.seated) for server in servers]
    return kind(seats, strategy_of("p2c", random.Random(1)), most=most, seed=1, clock=CLOCK)


def servers(count: int = 2, *, slots: int) -> list[ModelServer]:
    return [ModelServer(f"server-{number}", slots=slots, bound=slots) for number in range(count)]


class Site:
    """Servers, their pool, and its gate. slots: of each server.

    busy_s: of each class, in calls that have ended. latencies_s: of each class. refused: what
    refused calls got. queued_in_pool: the most that have waited there.
    """

    def __init__(
        self,
        *,
        count: int = 2,
        slots: int,
        classes: Sequence[ClassSettings] = CLASSES,
    ) -> None:
        self.servers = servers(count, slots=slots)
        self.pool = pool_of(self.servers)
        self.gate = Gate(self.pool, classes, clock=CLOCK)
        self.slots = count * slots
        self.busy_s: Counter[str] = Counter()
        self.latencies_s: dict[str, list[float]] = {}
        self.refused: list[QueueFull | Overloaded] = []
        self.queued_in_pool = 0

    async def call(
        self,
        klass: str,
        work_s: float,
        *,
        tenant: str = "",
        weight: float = 1.0,
        estimate: float = 1.0,
        used: float = 1.0,
        avoid: frozenset[str] = frozenset(),
    ) -> bool:
        """Whether it was answered, and not refused."""
        loop = asyncio.get_running_loop()
        since_s = loop.time()
        try:
            with await self.gate.enter(
                klass, tenant=tenant, weight=weight, tokens=estimate, avoid=avoid
            ) as place:
                sending = self.pool.send(
                    Request(body={"work": work_s}),
                    Call(priority=PRIORITIES[klass], avoid=avoid),
                )
                self.queued_in_pool = max(self.queued_in_pool, self.pool.queued)
                await sending
                place.settle(used)
        except (QueueFull, Overloaded) as error:
            self.refused.append(error)
            return False
        self.busy_s[klass] += work_s
        self.latencies_s.setdefault(klass, []).append(loop.time() - since_s)
        return True


@asynccontextmanager
async def at_random(
    rate: float, start: Callable[[], Awaitable[object]], draw: random.Random
) -> AsyncIterator[None]:
    """While it is entered, calls come as a Poisson process; those that are left are cancelled."""
    tasks = set[asyncio.Task[None]]()

    async def arrive() -> None:
        while True:
            await asyncio.sleep(draw.expovariate(rate))
            task = asyncio.ensure_future(start())
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    arriving = asyncio.create_task(arrive())
    try:
        yield
    finally:
        for task in (arriving, *tasks):
            task.cancel()
        await asyncio.gather(arriving, *tasks, return_exceptions=True)


def quantile(values: Sequence[float], share: float) -> float:
    return sorted(values)[int(share * len(values))]


def assert_empty(gate: Gate) -> None:
    """Nothing is in flight and nothing waits."""
    for one in gate.classes():
        assert (one.in_flight, one.waiting, one.oldest_wait_s) == (0, 0, 0.0)


def error_of(task: asyncio.Task[object]) -> CallError:
    """What refused the call of a task."""
    error = task.exception()
    assert isinstance(error, CallError)
    return error
