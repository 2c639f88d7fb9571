"""Calls through a pool of real servers while servers die, fail and park keys; what is left then."""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import redline
from redline.calls import Call, Chunk, Endpoint, Request, Retry, RetryPolicy
from redline.calls.cost import NOTHING, Allowance, Metered, Price, Prices, Spending
from redline.calls.wire import Timeouts
from redline.events import RetryScheduled, RetryStarted
from redline.limits import Limits
from redline.waist import Health
from support.sim_process import SimProcess

SERVERS = 3
SERVER = ("--latency", "0.005-0.03", "--api-key", "key")
FAULTS = ("500", "503", "reset", "half", "notjson", "stall")
_TIMEOUT_S = 0.4
_PAUSE_S = 0.15
# Long after every window: what counts then is booked and was never sent.
_LATER_S = 1e6


class Streamed:
    """Takes the chunks of a stream, not always at once."""

    relays = False

    async def begin(self, status: int, headers: Any) -> None:
        await asyncio.sleep(0)

    async def put(self, chunk: Chunk) -> None:
        await asyncio.sleep(0)


class Retries:
    """How many retries have been scheduled and not begun."""

    def __init__(self) -> None:
        self.waiting = 0

    def on_event(self, event: object) -> None:
        if isinstance(event, RetryScheduled):
            self.waiting += 1
        elif isinstance(event, RetryStarted):
            self.waiting -= 1


class Disturbed:
    """The servers' pool, under a budget and a retry, and everything that happens to it."""

    def __init__(self, servers: Sequence[SimProcess], seed: int) -> None:
        self.servers = servers
        self.draw = random.Random(seed)
        self.found: Counter[str] = Counter()
        endpoints = [
            Endpoint(
                base_url=one.base_url,
                name=f"s{number}",
                api_key="key",
                proxy="",
                timeouts=Timeouts(attempt_s=_TIMEOUT_S, connect_s=1.0),
                limits=Limits(requests="400/1s", tokens="40k/1s", concurrency=12),
            )
            for number, one in enumerate(servers)
        ]
        self.pool = redline.Pool(endpoints)
        self._is_over = False
        self.spending = Spending(Allowance(tokens=10**12, picodollars=10**18))
        self.retries = Retries()
        price = Price(input=10**6, cached_input=10**5, output=4 * 10**6)
        self.metered = Metered(self.pool, self.spending, Prices({"m": price}))
        policy = RetryPolicy(base_s=0.02, cap_s=0.2, share=1.0)
        self.backend = Retry(self.metered, policy, listener=self.retries, seed=seed)

    async def play(self, calls: int, at_once: int) -> None:
        """Sends so many calls, and disturbs them until all are over."""
        numbers = iter(range(calls))
        disturbing = asyncio.create_task(self._disturb())
        async with asyncio.TaskGroup() as group:
            for _ in range(at_once):
                group.create_task(self._work(numbers))
        self._is_over = True
        await disturbing
        for server in self.servers:
            await asyncio.to_thread(server.disturb, key="key")

    def left(self) -> list[str]:
        """What is still held when all calls are over, in words."""
        now_s, words = asyncio.get_running_loop().time(), list[str]()

        def holds(what: str, count: object) -> None:
            if count:
                words.append(f"{what}: {count}")

        load = self.pool.load(now_s)
        holds("calls in the pool", load.in_flight + load.waiting + self.pool.queued)
        for member in self.pool.members:
            name, backend = member.name, member.backend
            assert isinstance(backend, redline.calls.HttpBackend)
            load = backend.load(now_s)
            holds(f"calls that come to {name}", member.in_flight + member.coming)
            holds(f"calls at {name}", load.in_flight + load.waiting + load.queued)
            holds(f"tokens of calls at {name}", load.tokens_out)
            holds(f"slots of {name}", backend.slots.in_use + backend.slots.waiting)
            holds(f"calls ahead at {name}", backend.ahead.in_use + backend.ahead.waiting)
            holds(f"calls in the limiter of {name}", backend.limiter.waiting)
            for line in backend.limiter.rules.lines:
                holds(f"{line.kind} booked at {name}", line.window.used(now_s + _LATER_S))
        if self.spending.reserved != NOTHING:
            words.append(f"reserved: {self.spending.reserved}")
        holds("calls that wait for the budget", self.metered.load(now_s).waiting)
        holds("retries that wait", self.retries.waiting)
        return words

    def held_back(self) -> list[str]:
        """What holds back the next call at each endpoint, in words."""
        now_s, words = asyncio.get_running_loop().time(), list[str]()
        for member in self.pool.members:
            load = member.backend.load(now_s)
            later = max(load.parked_until_s, load.opens_s, load.next_s)
            if later > now_s or load.room_s or load.binds:
                words.append(f"the next call at {member.name} is held back: {load}")
        return words

    async def _work(self, numbers: Any) -> None:
        draw, loop = self.draw, asyncio.get_running_loop()
        for number in numbers:
            body = {"model": "m", "messages": [{"role": "user", "content": f"row {number}"}]}
            call = Call(priority=draw.choice([0, 0, 1, 2]))
            if draw.random() < 0.2:
                call.deadline_s = loop.time() + draw.choice([0.001, 0.05, 0.5])
            sink = Streamed() if draw.random() < 0.2 else None
            sending = asyncio.create_task(self.backend.send(Request(body=body), call, sink))
            if draw.random() < 0.2:
                await asyncio.sleep(draw.choice([0, 0.001, 0.01, 0.05]))
                sending.cancel()
            await asyncio.wait([sending])
            if sending.cancelled():
                self.found["cancelled"] += 1
                continue
            outcome = sending.result()
            self.found["answered" if outcome.is_success else type(outcome.error).__name__] += 1

    async def _disturb(self) -> None:
        while not self._is_over:
            await asyncio.sleep(self.draw.uniform(0, 2 * _PAUSE_S))
            server = self.draw.choice(self.servers)
            what = self.draw.choice(["faults", "faults", "none", "park", "withdraw", "die"])
            self.found[what] += 1
            if what == "withdraw":
                self.draw.choice(self.pool.members).backend.withdraw()
            elif what == "die":
                server.kill()
                await asyncio.sleep(self.draw.uniform(0, _PAUSE_S))
                await asyncio.to_thread(server.start)
            elif what == "park":
                await asyncio.to_thread(server.park, "key", 1)
            else:
                share = 0 if what == "none" else self.draw.choice([0.05, 0.3, 1.0])
                faults = [f"{kind}={share / len(FAULTS)}" for kind in FAULTS] if share else []
                await asyncio.to_thread(server.disturb, *faults, key="key")


async def disturbed(
    servers: Sequence[SimProcess], *, calls: int, at_once: int, seed: int
) -> dict[str, Any]:
    """Plays it; how the calls ended, what happened, and what was left, which is to be nothing."""
    loop, sockets = asyncio.get_running_loop(), _sockets()
    began_s = loop.time()
    world = Disturbed(servers, seed)
    await world.play(calls, at_once)
    left = world.left()
    # It works as before once its pauses are over.
    until_s = loop.time() + 30
    while loop.time() < until_s:
        if all(one.health(loop.time()) is Health.READY for one in world.pool.members):
            break
        await asyncio.gather(
            *(world.backend.send(Request(body={"model": "m", "messages": []}), Call())
              for _ in range(30))
        )  # fmt: skip
        await asyncio.sleep(0.05)
    while world.held_back() and loop.time() < until_s:  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    left += world.held_back()
    states = {member.health(loop.time()) for member in world.pool.members}
    left += [] if states == {Health.READY} else [f"states: {states}"]
    await world.backend.aclose()
    await asyncio.sleep(0)
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    left += [f"task: {task.get_name()}" for task in tasks]
    left += [f"socket: {one}" for one in _sockets() - sockets]
    took_s = round(loop.time() - began_s, 2)
    return {"calls": calls, "took_s": took_s, "met": dict(world.found), "left": left}


def _sockets() -> set[str]:
    """The sockets that this process has open; none where the system does not tell."""
    folder, found = "/proc/self/fd", set[str]()
    if not os.path.isdir(folder):
        return found
    for number in os.listdir(folder):
        try:
            name = os.readlink(f"{folder}/{number}")
        except FileNotFoundError:
            continue
        if name.startswith("socket:"):
            found.add(name)
    return found
