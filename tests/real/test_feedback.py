"""Limits that a server changes in the middle of a run, over the whole HTTP path."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from contextlib import ExitStack
from dataclasses import dataclass
from typing import NamedTuple

import pytest

from redline.calls import Call, Endpoint, HttpBackend, Outcome, Request, Retry
from redline.clock import SYSTEM
from redline.limits import Limits
from support.simulated import Simulated, simulated

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
        return str(self._inner.limiter.rules.lines[0].stated)

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


@dataclass(frozen=True)
class Scenario:
    """flags: of the server. steps: as Run.go has them."""

    flags: tuple[str, ...]
    limits: Limits
    steps: tuple[tuple[float, str | None], ...]


class Ended(NamedTuple):
    """What came of a scenario. changes_s: when each step ended."""

    run: Run
    seen: Seen
    changes_s: list[float]


LATENCY = ("--latency", "0.02-0.05")
A_SECOND = (Limits(requests="40/1s"), ((1.5, "20/1s"), (3.5, "40/1s"), (2.5, None)))
A_MINUTE = ("--requests", "2400/60s", "--algorithm", "bucket", *LATENCY)
SCENARIOS = {
    "fixed": Scenario(("--requests", "40/1s", "--algorithm", "fixed", *LATENCY), *A_SECOND),
    "moving": Scenario(("--requests", "40/1s", "--algorithm", "moving", *LATENCY), *A_SECOND),
    "a minute": Scenario(
        (*A_MINUTE, "--headers", "anthropic"),
        Limits(requests="2400/60s"),
        ((1.0, "1200/60s"), (2.0, "9600/60s"), (1.5, None)),
    ),
    "not stated": Scenario(
        A_MINUTE,
        Limits(rate="auto", concurrency=WAITING),
        ((1.5, "1200/60s"), (2.0, None)),
    ),
}


@pytest.fixture(scope="module")
def ended() -> dict[str, Ended]:
    """All scenarios, each with a server of its own, played at once: they mostly wait."""

    async def play(sim: Simulated, scenario: Scenario) -> Ended:
        run = Run(sim, scenario.limits)
        changes_s = await run.go(*scenario.steps)
        return Ended(run, await asyncio.to_thread(Seen, sim), changes_s)

    async def play_all() -> dict[str, Ended]:
        with ExitStack() as stack:
            sims = [stack.enter_context(simulated(*one.flags)) for one in SCENARIOS.values()]
            found = await asyncio.gather(*map(play, sims, SCENARIOS.values()))
        return dict(zip(SCENARIOS, found, strict=True))

    return asyncio.run(play_all())


@pytest.mark.parametrize("algorithm", ["fixed", "moving"])
def test_a_limit_that_is_halved_and_raised_again_is_followed(
    ended: dict[str, Ended], algorithm: str
) -> None:
    run, seen, (halved_s, raised_s, ended_s) = ended[algorithm]
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


def test_so_is_one_of_a_minute_from_its_next_answer_on(ended: dict[str, Ended]) -> None:
    run, seen, (halved_s, raised_s, ended_s) = ended["a minute"]
    # The user allows no more than was stated at first.
    assert run.stated == "2400/60s"
    assert seen.rejected(0.0, ended_s) == 0
    slow = seen.admitted(halved_s + 0.2, raised_s) / (raised_s - halved_s - 0.2)
    fast = seen.admitted(raised_s + 0.2, ended_s) / (ended_s - raised_s - 0.2)
    assert 0.8 * 20 <= slow <= 1.15 * 20
    assert 0.8 * 40 <= fast <= 1.15 * 40
    assert len(run.outcomes) == run.started


def test_a_limit_that_only_the_headers_tell_is_found_and_followed(ended: dict[str, Ended]) -> None:
    run, seen, (halved_s, ended_s) = ended["not stated"]
    assert run.stated == "1200/60s"
    assert seen.rejected(0.0, ended_s) == 0
    assert seen.admitted(halved_s + 0.2, ended_s) / (ended_s - halved_s - 0.2) >= 0.8 * 20
    assert len(run.outcomes) == run.started
