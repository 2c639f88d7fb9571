"""A fleet of model servers in virtual time, and calls that arrive at it at random."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from redline.errors import NoEndpoint
from redline.route import Pool, Seat, strategy_of
from redline.route.scale import Fleet, Sample, ScaleSettings
from redline.waist import Call, Outcome, Request
from support.fleet import LoopClock, ModelServer

CLOCK = LoopClock()


class Servers:
    """Launches model servers that take `slots` calls at once, after `warm_up_s`.

    fails: how many of the next starts fail. running: by name. begun, stopped: names, in order.
    dropped: calls that servers had when they were stopped.
    """

    def __init__(self, *, slots: int = 16, warm_up_s: float = 60.0, fails: int = 0) -> None:
        self.slots = slots
        self.warm_up_s = warm_up_s
        self.fails = fails
        self.running: dict[str, ModelServer] = {}
        self.begun: list[str] = []
        self.stopped: list[str] = []
        self.dropped = 0

    async def start(self, name: str) -> Seat:
        self.begun.append(name)
        await asyncio.sleep(self.warm_up_s)
        if self.fails:
            self.fails -= 1
            raise NoEndpoint(f"{name} does not answer")
        server = ModelServer(name, slots=self.slots, bound=self.slots)
        self.running[name] = server

        def make(on_room: Callable[[], None]) -> ModelServer:
            server.on_room = on_room
            return server

        return Seat(name=name, make=make)

    async def stop(self, name: str) -> None:
        self.stopped.append(name)
        server = self.running.pop(name, None)
        if server is not None:
            self.dropped += server.in_flight


class Watched(Fleet):
    """Keeps its samples, and the names of replicas that were taken out with calls in flight."""

    def __init__(self, pool: Pool, servers: Servers, settings: ScaleSettings) -> None:
        super().__init__(pool, servers, settings, clock=CLOCK)
        self.samples: list[Sample] = []
        self.caught: set[str] = set()
        self._members = pool.members

    def sample(self) -> Sample:
        sample = super().sample()
        self.samples.append(sample)
        ready = {one.name for one in self.ready}
        self.caught |= {
            one.name for one in self._members if one.name not in ready and one.in_flight
        }
        return sample


@asynccontextmanager
async def fleet_of(
    servers: Servers, settings: ScaleSettings
) -> AsyncIterator[tuple[Pool, Watched]]:
    """A pool and its fleet, which runs."""
    pool = Pool([], strategy_of("p2c", random.Random(1)), clock=CLOCK, seed=1, may_be_empty=True)
    fleet = Watched(pool, servers, settings)
    running = asyncio.create_task(fleet.run())
    try:
        yield pool, fleet
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await pool.aclose()


class Arrivals:
    """Calls that arrive at random, independently of each other, and take a random time.

    replicas: how many replicas' slots the calls keep busy, by the time in seconds. call_s: the mean
    of a log-normal distribution whose standard deviation is as large. wobble: each minute has its
    own rate, with this relative standard deviation.
    """

    def __init__(
        self,
        pool: Pool,
        replicas: Callable[[float], float],
        *,
        slots: int = 16,
        call_s: float = 20.0,
        wobble: float = 0.05,
        seed: int = 0,
    ) -> None:
        self.outcomes: list[bool] = []
        self._pool = pool
        self._replicas = replicas
        self._slots = slots
        self._call_s = call_s
        self._wobble = wobble
        self._draw = random.Random(seed)
        self._calls: set[asyncio.Task[None]] = set()

    async def run(self, for_s: float) -> None:
        """Sends calls for this time, and waits for their answers."""
        loop, draw = asyncio.get_running_loop(), self._draw
        begun_s = loop.time()
        spread = math.sqrt(math.log(2))
        middle = math.log(self._call_s) - math.log(2) / 2
        minute, factor = -1, 1.0
        while (now_s := loop.time() - begun_s) < for_s:
            if now_s // 60 != minute:
                minute = int(now_s // 60)
                factor = max(0.5, draw.gauss(1.0, self._wobble))
            rate = factor * self._replicas(now_s) * self._slots / self._call_s
            if rate <= 0:
                await asyncio.sleep(1.0)
                continue
            call = loop.create_task(self._call(draw.lognormvariate(middle, spread)))
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)
            await asyncio.sleep(draw.expovariate(rate))
        if self._calls:
            await asyncio.wait(self._calls)

    async def _call(self, work_s: float) -> None:
        outcome: Outcome = await self._pool.send(Request(body={"work": work_s}), Call())
        self.outcomes.append(outcome.is_success)
