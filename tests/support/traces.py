"""Traces of runs that are simulated in virtual time, on servers that no replay knows."""

from __future__ import annotations

import asyncio
import random
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from redline.calls import Call, Outcome, Reply, Request, Retry
from redline.route import Pool, Seat, strategy_of
from redline.testing import VirtualClock, virtual_run
from redline.timeline import VERSION, EndpointFacts, Recorder, RunBegan, TraceFile
from redline.waist import Sink
from support.fleet import LoopClock, ModelServer

CLOCK = LoopClock()


class TokenServer(ModelServer):
    """Its answers say how many tokens they took: those of the request's body."""

    async def send(self, request: Request, call: Call, sink: Sink | None = None) -> Outcome:
        outcome = await super().send(request, call, sink)
        if outcome.is_success:
            read, written = request.body["tokens"]
            outcome.reply = Reply(input_tokens=read, output_tokens=written)
        return outcome


class CachingServer(TokenServer):
    """It reads a prompt in 2 ms a token, but what its latest prompts began with in none."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._begins: OrderedDict[str, None] = OrderedDict()

    async def send(self, request: Request, call: Call, sink: Sink | None = None) -> Outcome:
        body = request.body
        begin = body["messages"][0]["content"][:400]
        is_known = begin in self._begins
        self._begins[begin] = None
        self._begins.move_to_end(begin)
        while len(self._begins) > 150:
            self._begins.popitem(last=False)
        read = 0 if is_known else body["tokens"][0]
        slow = Request(body={**body, "work": body["work"] + 0.002 * read})
        return await super().send(slow, call, sink)


Work = Callable[[random.Random], tuple[float, int, int]]


def short_and_long(draw: random.Random) -> tuple[float, int, int]:
    """Seconds of work, input and output tokens: 20 ms a token of output, and 0.1 s."""
    output = 300 if draw.random() < 0.2 else 50
    return 0.1 + 0.02 * output, draw.randrange(20, 200), output


def long_prompts(draw: random.Random) -> tuple[float, int, int]:
    """Of a thousand tokens."""
    return 0.2, 1000, 20


def record(
    path: Path,
    servers: Sequence[ModelServer],
    *,
    calls: int,
    workers: int = 0,
    per_s: float = 0.0,
    strategy: str = "p2c",
    seed: int = 1,
    work: Work = short_and_long,
    facts: Sequence[EndpointFacts] = (),
) -> float:
    """Records this many calls, by workers, or as they arrive at random; their makespan."""

    async def main() -> float:
        loop, draw = asyncio.get_running_loop(), random.Random(seed)
        seats = [Seat(name=one.name, make=one.seated) for one in servers]
        balance = strategy_of(strategy, random.Random(seed + 1000))
        pool = Pool(seats, balance, clock=CLOCK, seed=seed)
        file = TraceFile(path)
        stated = tuple(facts) or tuple(
            EndpointFacts(name=one.name, slots=one.bound) for one in servers
        )
        began = RunBegan(v=VERSION, at=1.0, workers=workers, balance=strategy, endpoints=stated)
        inner = Retry(pool, clock=CLOCK, seed=seed)
        backend = Recorder(inner, file, began, clock=VirtualClock(loop))
        left = iter(range(calls))

        async def send() -> None:
            work_s, read, written = work(draw)
            # Four characters a token, one of 300 texts, but for its end.
            text = f"{draw.randrange(300):03} " * read + str(draw.random())
            body = {"messages": [{"role": "user", "content": text}], "model": "m"}
            request = Request(body={**body, "work": work_s, "tokens": (read, written)})
            await backend.send(request, Call())

        async def make() -> None:
            for _ in left:
                await send()

        async with asyncio.TaskGroup() as group:
            for _ in range(workers):
                group.create_task(make())
            if not workers:
                for _ in left:
                    await asyncio.sleep(draw.expovariate(per_s))
                    group.create_task(send())
        ended_s = loop.time()
        await backend.aclose()
        file.close()
        return ended_s

    return virtual_run(main())
