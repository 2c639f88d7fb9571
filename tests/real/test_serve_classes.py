"""Classes of `redline serve` over a server whose slots are all used."""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections import Counter
from pathlib import Path

import aiohttp
import openai
import pytest

from support import batch_files
from support.serve_process import Serve
from support.sim_process import SimProcess

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("no_proxy"), pytest.mark.timeout(240)]

SLOTS, LATENCY_S = 40, 0.5
# Not a constant: all slots would become free at the same moments, and calls would wait for those.
FLAGS = ("--latency", f"{0.8 * LATENCY_S}-{1.2 * LATENCY_S}")
# A gateway without keys has one tenant, whose calls may request each class.
TOML = """
[tenants.default]
classes = ["high", "low"]
"""


class Clients:
    """Clients of one class, with a call each at a time. times_s: of those that were answered."""

    def __init__(self, session: aiohttp.ClientSession, url: str, klass: str, count: int) -> None:
        self._session = session
        self._url = f"{url}/chat/completions"
        self._headers = {"x-redline-class": klass}
        self._count = count
        self.times_s: list[float] = []
        self.refused = 0

    async def __aenter__(self) -> Clients:
        self._tasks = [asyncio.create_task(self._client()) for _ in range(self._count)]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            if task.done():
                # Raises what it met.
                task.result()
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _client(self) -> None:
        body = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
        while True:
            began_s = time.monotonic()
            async with self._session.post(self._url, json=body, headers=self._headers) as answer:
                await answer.read()
            if answer.status == 200:
                self.times_s.append(time.monotonic() - began_s)
            else:
                assert answer.status in (429, 503)
                self.refused += 1
                await asyncio.sleep(LATENCY_S)


@pytest.mark.slow
async def test_a_batch_gets_what_a_high_class_leaves(tmp_path: Path) -> None:
    window_s = 8.0
    with SimProcess(*FLAGS) as sim:
        serving = Serve(tmp_path, "--endpoint", sim.base_url, "-c", str(SLOTS), toml=TOML)
        with serving as serve:
            async with (
                aiohttp.ClientSession() as session,
                openai.AsyncOpenAI(base_url=serve.url, api_key="none") as client,
            ):
                await batch_files.begun(client, batch_files.lines(5_000))
                for load in (0.0, 0.3, 0.7):
                    count = round(load * SLOTS)
                    async with Clients(session, serve.url, "high", count) as high:
                        await asyncio.sleep(3)
                        before, answered = sim.stats()["answered"], len(high.times_s)
                        began_s = time.monotonic()
                        await asyncio.sleep(window_s)
                        took_s = time.monotonic() - began_s
                        own = len(high.times_s) - answered
                        lines = sim.stats()["answered"] - before - own
                    # In seconds of slots.
                    left = SLOTS * took_s - own * LATENCY_S
                    assert own >= 0.8 * count * took_s / LATENCY_S, load
                    assert lines * LATENCY_S >= 0.8 * left, (load, lines * LATENCY_S, left)


class Arrivals:
    """Calls of one class that arrive at random, whether or not earlier ones were answered.

    times_s: latencies of those that were answered. statuses: counts of each HTTP status.
    """

    def __init__(
        self, session: aiohttp.ClientSession, url: str, klass: str, per_s: float, seed: int
    ) -> None:
        self._session = session
        self._url = f"{url}/chat/completions"
        self._headers = {"x-redline-class": klass}
        self._per_s = per_s
        self._rng = random.Random(seed)
        self._tasks = set[asyncio.Task[None]]()
        self.times_s: list[float] = []
        self.sent = 0
        self.statuses = Counter[int]()

    async def send_for(self, span_s: float) -> None:
        """Sends calls for this time, and waits for their answers."""
        due_s = time.monotonic()
        until_s = due_s + span_s
        while (due_s := due_s + self._rng.expovariate(self._per_s)) < until_s:
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            task = asyncio.create_task(self._call(due_s))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        await asyncio.gather(*self._tasks)

    async def stop(self) -> None:
        """Gives up the calls that have no answer yet."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _call(self, due_s: float) -> None:
        body = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
        self.sent += 1
        async with self._session.post(self._url, json=body, headers=self._headers) as answer:
            await answer.read()
        self.statuses[answer.status] += 1
        if answer.status == 200:
            self.times_s.append(time.monotonic() - due_s)


@pytest.mark.slow
async def test_a_high_class_keeps_its_latency_while_a_low_one_floods(tmp_path: Path) -> None:
    """The low class asks for ten times what the server can do; the high one, for half of it."""
    latency_s, span_s = 1.0, 28.0
    capacity = SLOTS / latency_s
    flags = ("--latency", f"{0.8 * latency_s}-{1.2 * latency_s}", "--concurrency", str(SLOTS))
    with SimProcess(*flags) as sim:
        serving = Serve(tmp_path, "--endpoint", sim.base_url, "-c", str(SLOTS), toml=TOML)
        with serving as serve:
            connector = aiohttp.TCPConnector(limit=0)
            async with aiohttp.ClientSession(connector=connector) as session:
                alone = Arrivals(session, serve.url, "high", 0.5 * capacity, 1)
                await alone.send_for(span_s)
                low = Arrivals(session, serve.url, "low", 10 * capacity, 2)
                flooding = asyncio.create_task(low.send_for(span_s + 5))
                await asyncio.sleep(4)
                answered = len(low.times_s)
                high = Arrivals(session, serve.url, "high", 0.5 * capacity, 3)
                began_s = time.monotonic()
                await high.send_for(span_s)
                took_s = time.monotonic() - began_s
                answered = len(low.times_s) - answered
                flooding.cancel()
                await low.stop()
    assert low.sent >= 0.9 * 10 * capacity * took_s
    assert low.statuses.keys() == {200, 429}
    assert alone.statuses.keys() == high.statuses.keys() == {200}
    usual_s, flooded_s = (p99(one.times_s) for one in (alone, high))
    assert flooded_s <= 1.2 * usual_s, (usual_s, flooded_s)
    left = capacity * took_s - len(high.times_s)
    assert answered >= 0.8 * left, (answered, left)


def p99(times_s: list[float]) -> float:
    assert len(times_s) >= 500
    return statistics.quantiles(times_s, n=100)[-1]
