"""Random limits of all kinds at once, judged by exact servers, in virtual time.

Each call takes a slot, waits for its grant, may be cancelled at any moment or written late, reaches
the server up to JITTER_S later, and settles what it used. A server of the limiter's profile counts
what reached it and rejects none of it.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from msgspec.structs import replace

from redline.errors import OverLimit
from redline.limits import Cost, Limiter, Limits, Rate, Slots
from redline.limits.rule import KINDS
from redline.testing import VirtualClock, VirtualLoop
from support.catching import assert_caught
from support.pacing import SERVERS, Sent, rejections

JITTER_S = 0.05
SCENARIOS, SOME = 60, 20
SERVERS_OF = {
    "any": ("fixed", "aligned", "moving", "counter", "bucket"),
    "counter": ("counter",),
    "fixed": ("fixed", "aligned"),
    "moving": ("moving", "fixed", "aligned"),
    "bucket": ("bucket",),
}
# In each kind a call takes so much at the mean, and at most.
MEAN = {"requests": 1, "tokens": 150, "input_tokens": 75, "output_tokens": 75}
MOST = {"requests": 1, "tokens": 400, "input_tokens": 200, "output_tokens": 200}

# Seconds, drawn anew for each call.
Law = Callable[[], float]


@dataclass
class World:
    """One scenario and what became of it. sends: (stamp, jitter, what was used)."""

    chance: random.Random
    limits: Limits
    sends: list[tuple[float, float, Cost]] = field(default_factory=list)

    def law(self) -> Law:
        """How long answers take."""
        draw = self.chance.uniform
        laws: list[Law] = [lambda: 0.0, lambda: draw(0.02, 0.04), lambda: draw(0.5, 3.0)]
        return self.chance.choice(laws)

    async def run(self, kind: Any) -> None:
        chance, loop = self.chance, asyncio.get_running_loop()
        clock = VirtualClock(loop)
        self.clock, self.limiter, self.slots = clock, kind(self.limits, clock), Slots(self.most)
        # A call that is written late spoils an even pace, but never the count of a window.
        self.is_late = chance.random() < 0.3 and self.limits.profile != "bucket"
        self.answer, self.shares = self.law(), chance.choice([0.0, 0.3])
        spread_s = chance.choice([0.0, 5.0])
        tasks = [
            asyncio.create_task(self.call(chance.uniform(0, spread_s)))
            for _ in range(chance.choice([40, 120]))
        ]
        _, lost = await asyncio.wait(tasks, timeout=5000)
        assert not lost, f"{len(lost)} calls wait for ever"
        for task in tasks:
            assert task.cancelled() or task.exception() is None, task.exception()
        await asyncio.sleep(1000)
        assert self.limiter.waiting == self.slots.in_use == 0
        for line in self.limiter.rules.lines:
            assert line.window.used(clock.now_s()) == 0, f"{line.stated} keeps what it gave"

    @property
    def most(self) -> int:
        return self.limits.slots()

    async def call(self, arrives_s: float) -> None:
        chance, loop = self.chance, asyncio.get_running_loop()
        await asyncio.sleep(arrives_s)
        task = asyncio.current_task()
        assert task is not None
        if chance.random() < self.shares:
            loop.call_later(chance.uniform(0, 6), task.cancel)
        priority = chance.choice([0, 0, 1])
        await self.slots.acquire(priority)
        grant = None
        try:
            assert self.slots.in_use <= self.most
            cost = Cost(chance.choice([1, 20, 100, 200]), chance.choice([0, 10, 100, 200]))
            grant = await self.limiter.acquire(cost, priority)
            if self.is_late and chance.random() < 0.3:
                await asyncio.sleep(chance.choice([0.0, 0.01, 0.3]))
            if chance.random() < self.shares:
                return
            await self.written(grant, cost)
        except OverLimit:
            pass
        finally:
            if grant is not None:
                grant.release()
            self.slots.release()

    async def written(self, grant: Any, cost: Cost) -> None:
        share = self.chance.choice([1.0, 1.0, 0.5])
        used = Cost(round(cost.input_tokens * share), round(cost.output_tokens * share))
        sent_s, jitter_s = self.clock.now_s(), self.chance.uniform(0, JITTER_S)
        grant.sent(sent_s)
        self.sends.append((sent_s, jitter_s, used))
        took_s = jitter_s + self.answer()
        await asyncio.sleep(took_s)
        grant.replied(took_s)
        grant.settle(used)

    def rejected(self) -> int:
        """By the servers that the profile is made for."""
        names = SERVERS_OF[self.limits.profile]
        if self.is_late:
            names = tuple(name for name in names if name not in ("counter", "bucket"))
        jitters_s = [jitter_s for _, jitter_s, _ in self.sends]
        found = 0
        for kind, name in itertools.product(KINDS, names):
            sends = [Sent(sent_s, used.amount(kind)) for sent_s, _, used in self.sends]
            for rate in self.limits.rates(kind):
                found += rejections(SERVERS[name](rate), sends, jitters_s, 0.37 * rate.window_s)
        return found


def limits_of(chance: random.Random) -> Limits:
    """One to eight rates of random kinds and windows, and a bound on calls in flight."""
    rates: dict[str, Any] = {}
    for kind in chance.sample(KINDS, chance.randint(1, 4)):
        windows_s = chance.sample([0.5, 1.0, 2.0, 6.0], chance.randint(1, 2))
        rates[kind] = tuple(
            Rate(max(MOST[kind], math.ceil(chance.choice([5, 20, 60]) * w * MEAN[kind])), w)
            for w in windows_s
        )
    return Limits(
        profile=chance.choice([*SERVERS_OF]),
        guard_s=chance.choice([None, JITTER_S + 0.005]),
        concurrency=chance.choice([1, 4, 32, 200]),
        **rates,
    )


def check(kind: Any, seeds: range) -> None:
    for seed in seeds:
        chance = random.Random(seed)
        world = World(chance, limits_of(chance))
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            runner.run(world.run(kind))
        assert world.rejected() == 0, f"seed {seed}: {world.limits}"


@pytest.mark.slow
@pytest.mark.parametrize("part", range(3))
def test_no_server_rejects_a_call_whatever_is_limited(part: int) -> None:
    count = SCENARIOS // 3
    check(Limiter, range(part * count, (part + 1) * count))


class Unguarded(Limiter):
    """Adds no guard to its windows."""

    def __init__(self, limits: Limits, clock: Any) -> None:
        super().__init__(replace(limits, guard_s=0.0), clock)


class Forgetful(Limiter):
    """Keeps to the first of its limits alone."""

    def __init__(self, limits: Limits, clock: Any) -> None:
        super().__init__(limits, clock)
        for line in self.rules.lines[1:]:
            self.rules.lines.remove(line)


class Leaking(Limiter):
    """Keeps what was granted and not written."""

    def give_back(self, taken: Any) -> None: ...


@pytest.mark.slow
@pytest.mark.parametrize("wrong", [Unguarded, Forgetful, Leaking])
def test_wrong_limiters_are_caught(wrong: type[Limiter]) -> None:
    assert_caught(lambda kind: check(kind, range(SOME)), Limiter, wrong)
