"""Calls through a pool of real servers, one of which begins to fail and works again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import redline
from redline.calls import Call, Endpoint, Request, Retry, RetryPolicy
from redline.calls.wire import Timeouts
from support.sim_process import SimProcess

LATENCY_S = 0.05
SERVER = ("--latency", str(LATENCY_S))
# What a user sets who knows that an answer takes a fraction of a second.
TIMEOUT_S = 5.0
SLOWER = 10
# How a server fails, as `redline sim --faults` has it. Its health page is 200 all the time.
MODES: dict[str, tuple[str, ...]] = {
    "HTTP 500": ("500=1",),
    "reset": ("reset=1",),
    "200 with HTML": ("notjson=1",),
    "black hole": ("stall=1",),
    "20 % HTTP 500": ("500=0.2",),
    "HTTP 429": ("429=1",),
    "ten times slower": (),
}
SLOW = "ten times slower"
# It is back when it gives half of its share of the answers of a second.
_BACK_SHARE = 0.5
_LOOKED_AT_S = 1.0
_BODY = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


class Ended(NamedTuple):
    """A call that is over. endpoint, has_failed: of its first attempt. answered_by: of the last."""

    began_s: float
    ended_s: float
    endpoint: str
    has_failed: bool
    answered_by: str


@dataclass
class Load:
    """Calls through a pool of these servers, `at_once` at any time, until it is left.

    probe: the pool reads the health pages of its servers.
    """

    servers: Sequence[SimProcess]
    at_once: int
    policy: RetryPolicy | None = None
    timeout_s: float = TIMEOUT_S
    probe: bool = False
    ended: list[Ended] = field(default_factory=list)
    begun: int = 0
    unanswered: int = 0

    async def __aenter__(self) -> Load:
        timeouts = Timeouts(attempt_s=self.timeout_s)
        endpoints = [
            Endpoint(
                base_url=one.base_url,
                name=f"s{number}",
                timeouts=timeouts,
                proxy="",
                probe=self.probe,
            )
            for number, one in enumerate(self.servers)
        ]
        self.pool = redline.Pool(endpoints)
        self._backend = Retry(self.pool, self.policy, seed=1)
        self._is_over = False
        self._workers = [asyncio.create_task(self._work()) for _ in range(self.at_once)]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._is_over = True
        done, _pending = await asyncio.wait(self._workers, timeout=3 * self.timeout_s)
        for worker in self._workers:
            worker.cancel()
        await asyncio.wait(self._workers)
        await self.pool.aclose()
        for worker in done:
            worker.result()

    async def until_begun(self, calls: int) -> None:
        """Returns when so many more calls have begun."""
        most = self.begun + calls
        while self.begun < most:  # noqa: ASYNC110 - a number that changes thousands of times
            await asyncio.sleep(0.02)

    def share_of_answers(self, endpoint: str, since_s: float) -> float:
        """Its share of the answers since then."""
        late = [one.answered_by for one in self.ended if one.ended_s >= since_s]
        return late.count(endpoint) / len(late) if late else 0.0

    async def _work(self) -> None:
        loop, request = asyncio.get_running_loop(), Request(body=_BODY)
        while not self._is_over:
            self.begun += 1
            began_s = loop.time()
            outcome = await self._backend.send(request, Call())
            first = outcome.tried[0]
            self.unanswered += not outcome.is_success
            has_failed = first.error is not None
            self.ended.append(
                Ended(began_s, loop.time(), first.endpoint, has_failed, outcome.endpoint)
            )


async def through_fault(
    servers: Sequence[SimProcess],
    mode: str,
    *,
    calls: int,
    at_once: int,
    timeout_s: float = TIMEOUT_S,
    most_s: float = 40.0,
    probe: bool = False,
) -> dict[str, Any]:
    """What became of the calls while the last server failed, and how soon it was back.

    calls: that begin while it fails. most_s: the longest that its return is looked for. probe: the
    pool reads the health pages.
    """
    loop, bad, name = asyncio.get_running_loop(), servers[-1], f"s{len(servers) - 1}"
    async with Load(servers, at_once, timeout_s=timeout_s, probe=probe) as load:
        await load.until_begun(20 * at_once)
        await _disturb(bad, mode)
        began_s = loop.time()
        await load.until_begun(calls)
        await asyncio.to_thread(bad.disturb, latency=str(LATENCY_S))
        over_s = loop.time()
        back_s = None
        while back_s is None and loop.time() < over_s + most_s:
            await asyncio.sleep(_LOOKED_AT_S / 4)
            since_s = max(over_s, loop.time() - _LOOKED_AT_S)
            if load.share_of_answers(name, since_s) >= _BACK_SHARE / len(servers):
                back_s = loop.time() - over_s
    met = [one for one in load.ended if one.ended_s >= began_s and one.began_s < over_s]
    first = [one for one in met if one.endpoint == name]
    return {
        "mode": mode,
        "calls": len(met),
        "first_attempts": len(first),
        "failed_first_attempts": sum(one.has_failed for one in first),
        "share_failed": round(sum(one.has_failed for one in first) / len(met), 5),
        "share": round(len(first) / len(met), 4),
        "unanswered": load.unanswered,
        "fault_s": round(over_s - began_s, 2),
        "back_s": None if back_s is None else round(back_s, 2),
    }


async def _disturb(bad: SimProcess, mode: str) -> None:
    latency_s = LATENCY_S * (SLOWER if mode == SLOW else 1)
    await asyncio.to_thread(bad.disturb, *MODES[mode], latency=str(latency_s))


async def answers_per_s(servers: Sequence[SimProcess], *, calls: int, at_once: int) -> float:
    """Answers a second of a pool that reads health pages and whose retries are not rationed."""
    loop = asyncio.get_running_loop()
    policy = RetryPolicy(share=1.0, floor_per_s=10_000.0, base_s=0.01)
    async with Load(servers, at_once, policy, probe=True) as load:
        await load.until_begun(10 * at_once)
        began_s, before = loop.time(), len(load.ended)
        await load.until_begun(calls)
        took_s, ended = loop.time() - began_s, len(load.ended) - before
    return ended / took_s
