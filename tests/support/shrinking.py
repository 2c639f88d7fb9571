"""A real fleet that shrinks while its replicas have calls in flight."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path

from redline.calls import Call, Endpoint, Request, Retry
from redline.limits import Limits
from redline.route import Pool, strategy_of
from redline.route.scale import Fleet, LocalLauncher, Sample, ScaleSettings
from support.replicas import replica

SLOTS = 8
REPLICAS = 8
CALL_S = 0.4


class Shrunk(Fleet):
    """caught: replicas that were taken with calls in flight."""

    def __init__(self, pool: Pool, launcher: LocalLauncher, settings: ScaleSettings) -> None:
        super().__init__(pool, launcher, settings)
        self.caught: set[str] = set()
        self._members = pool.members

    def sample(self) -> Sample:
        ready = {one.name for one in self.ready}
        self.caught |= {
            one.name for one in self._members if one.name not in ready and one.in_flight
        }
        return super().sample()


async def shrink(folder: Path) -> tuple[int, Counter[str]]:
    """How many replicas a fleet has taken with calls in flight, and what became of all calls.

    A call that was answered at a later attempt is "repeated": an earlier one was dropped.

    It grows under a high load, and shrinks under a low one that keeps each replica at work.
    """
    folder.mkdir(exist_ok=True)
    settings = ScaleSettings(
        max_replicas=REPLICAS,
        panic_window_s=1.0,
        scale_down_window_s=1.5,
        warm_up_s=0.5,
        tick_s=0.05,
        queue_wait_slo_s=0.1,
    )
    limits = Limits(concurrency=SLOTS)
    endpoint = Endpoint(base_url="http://127.0.0.1/v1", limits=limits)
    local = LocalLauncher(replica(folder, f"slow {CALL_S}", endpoint=endpoint))
    pool = Pool([], strategy_of("round_robin", random.Random(1)), may_be_empty=True)
    fleet, backend, outcomes = Shrunk(pool, local, settings), Retry(pool), Counter[str]()
    running = asyncio.create_task(fleet.run())
    wanted = REPLICAS * SLOTS

    async def ask(number: int) -> None:
        while number < wanted:
            body = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
            outcome = await backend.send(Request(body=body), Call())
            ended = outcome.status if outcome.error is None else str(outcome.error)
            outcomes["repeated" if outcome.is_success and outcome.attempts > 1 else ended] += 1

    try:
        async with asyncio.timeout(40), asyncio.TaskGroup() as tasks:
            for number in range(wanted):
                tasks.create_task(ask(number))
            while len(fleet.ready) < REPLICAS:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            # In turn, so that no replica is without a call.
            wanted = 2 * REPLICAS
            while len(fleet.ready) > REPLICAS / 2 or len(pool.members) > len(fleet.ready):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            wanted = 0
    finally:
        running.cancel()
        await asyncio.wait([running])
        await pool.aclose()
    return len(fleet.caught), outcomes
