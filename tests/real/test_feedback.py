"""Limits that a server changes in the middle of a run, over the whole HTTP path."""

from __future__ import annotations

import asyncio
import json
import urllib.request

import pytest

from redline.calls import Call, Endpoint, HttpBackend, Outcome, Request, Retry
from redline.clock import SYSTEM
from redline.limits import Limits
from simulated import Simulated, simulated

pytestmark = pytest.mark.real

# Calls that wait for their turn at any time.
WAITING = 30


class Run:
    """Calls that go on until they are told to stop, and what became of each."""

    def __init__(self, sim: Simulated, limits: Limits) -> None:
        self.sim = sim
        self.begun_s = SYSTEM.now_s()
        self.outcomes: list[Outcome] = []
        self.started = 0
        self._inner = HttpBackend(Endpoint(base_url=sim.base_url, limits=limits, proxy=""))
        self._backend = Retry(self._inner, seed=1)
        self._is_over = False

    async def go(self, *steps: tuple[float, str | None]) -> list[float]:
        """Works through the steps: seconds to work, then another limit; the times of the changes.

        Every call that was started has come to its end on return.
        """
        changes = []
        async with asyncio.TaskGroup() as group:
            for _ in range(WAITING):
                group.create_task(self._work())
            for lasts_s, limit in steps:
                await asyncio.sleep(lasts_s)
                if limit is not None:
                    await asyncio.to_thread(self._state, limit)
                changes.append(SYSTEM.now_s())
            self._is_over = True
        await self._backend.aclose()
        return changes

    @property
    def stated(self) -> str:
        """The limit that is kept now."""
        return str(self._inner.limiter.budget.lines[0].stated)

    async def _work(self) -> None:
        while not self._is_over:
            self.started += 1
            body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
            self.outcomes.append(await self._backend.send(Request(body=body), Call()))

    def _state(self, limit: str) -> None:
        url = self.sim.base_url.removesuffix("/v1") + "/sim/limits"
        body = json.dumps({"requests": [limit]}).encode()
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(urllib.request.Request(url, body), timeout=10):
            pass


class Seen:
    """What the server saw, by the time of arrival."""

    def __init__(self, sim: Simulated) -> None:
        self._records = sim.requests()

    def admitted(self, since_s: float, until_s: float) -> int:
        return self._count(200, since_s, until_s)

    def rejected(self, since_s: float, until_s: float) -> int:
        return self._count(429, since_s, until_s)

    def _count(self, status: int, since_s: float, until_s: float) -> int:
        return sum(
            each["status"] == status and since_s <= each["arrival_s"] < until_s
            for each in self._records
        )


@pytest.mark.parametrize("algorithm", ["fixed", "moving"])
async def test_a_limit_that_is_halved_and_raised_again_is_followed(algorithm: str) -> None:
    flags = ["--requests", "40/1s", "--algorithm", algorithm, "--latency", "0.02-0.05"]
    with simulated(*flags) as sim:
        run = Run(sim, Limits(requests="40/1s"))
        halved_s, raised_s, ended_s = await run.go((1.5, "20/1s"), (3.5, "40/1s"), (2.5, None))
        seen = Seen(sim)
        begun_s = halved_s - 1.5
    assert run.stated == "40/1s"
    assert seen.rejected(begun_s, halved_s - 0.1) == 0
    # What was on its way, and no more than two windows of it.
    assert seen.rejected(halved_s - 0.1, halved_s + 1.5) <= 2 * 20
    assert seen.rejected(halved_s + 1.5, ended_s) <= 1
    assert 0.6 * 20 <= seen.admitted(halved_s + 1, raised_s) / (raised_s - halved_s - 1) <= 20.5
    assert seen.admitted(raised_s + 0.5, ended_s) / (ended_s - raised_s - 0.5) >= 0.7 * 40
    # No waiter is lost, and each call succeeds in the end.
    assert len(run.outcomes) == run.started
    assert all(outcome.is_success for outcome in run.outcomes)


async def test_so_is_one_of_a_minute_from_its_next_answer_on() -> None:
    flags = ["--requests", "2400/60s", "--algorithm", "bucket", "--headers", "anthropic"]
    with simulated(*flags, "--latency", "0.02-0.05") as sim:
        run = Run(sim, Limits(requests="2400/60s"))
        halved_s, raised_s, ended_s = await run.go(
            (1.0, "1200/60s"), (2.0, "9600/60s"), (1.5, None)
        )
        seen = Seen(sim)
    # The user allows no more than was stated at first.
    assert run.stated == "2400/60s"
    assert seen.rejected(0.0, ended_s) == 0
    slow = seen.admitted(halved_s + 0.2, raised_s) / (raised_s - halved_s - 0.2)
    fast = seen.admitted(raised_s + 0.2, ended_s) / (ended_s - raised_s - 0.2)
    assert 0.8 * 20 <= slow <= 1.15 * 20
    assert 0.8 * 40 <= fast <= 1.15 * 40
    assert len(run.outcomes) == run.started


async def test_a_limit_that_only_the_headers_tell_is_found_and_followed() -> None:
    flags = ["--requests", "2400/60s", "--algorithm", "bucket", "--latency", "0.02-0.05"]
    with simulated(*flags) as sim:
        run = Run(sim, Limits(rate="auto", concurrency=WAITING))
        halved_s, ended_s = await run.go((1.5, "1200/60s"), (2.0, None))
        seen = Seen(sim)
    assert run.stated == "1200/60s"
    assert seen.rejected(0.0, ended_s) == 0
    assert seen.admitted(halved_s + 0.2, ended_s) / (ended_s - halved_s - 0.2) >= 0.8 * 20
    assert len(run.outcomes) == run.started
