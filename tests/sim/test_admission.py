"""A low class that floods takes nothing from a high one, and tenants get their shares."""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import NamedTuple

import pytest
from msgspec.structs import replace

from redline.serve.admission import CLASSES, ClassSettings
from redline.testing import virtual_run
from support.admitting import Site, Work, assert_empty, at_random, quantile
from support.catching import assert_caught

SLOTS = 16  # of each of two servers
FLOOD = 10.0  # times the capacity
WITHOUT_GUARD = tuple(replace(one, reserved=0.0) for one in CLASSES)


def mixed_s(draw: random.Random) -> float:
    """Service times of a mean of 1.5 s."""
    return draw.choice([0.5, 0.5, 1, 1, 2, 4]) * draw.uniform(0.8, 1.2)


def short_s(draw: random.Random) -> float:
    return draw.uniform(0.2, 0.6)


def long_s(draw: random.Random) -> float:
    return draw.uniform(3, 10)


class Load:
    """What high and low calls are like. high: the share of the capacity that high calls use."""

    def __init__(
        self, high: float, high_s: Work = mixed_s, low_s: Work = mixed_s, lasts_s: float = 120.0
    ) -> None:
        self.high = high
        self.high_s = high_s
        self.low_s = low_s
        self.lasts_s = lasts_s

    def rate(self, load: float, work: Work) -> float:
        """Calls a second that are this share of the capacity."""
        draw = random.Random(1)
        return load * 2 * SLOTS / (sum(work(draw) for _ in range(1000)) / 1000)


def measured(load: Load, flood: float, classes: Sequence[ClassSettings] = CLASSES) -> Site:
    """After the load, with low calls of `flood` times the capacity."""

    async def main() -> Site:
        site = Site(slots=SLOTS, classes=classes)
        high, low, flow = random.Random(2), random.Random(3), random.Random(4)
        async with AsyncExitStack() as stack:
            if load.high:
                rate = load.rate(load.high, load.high_s)
                await stack.enter_async_context(
                    at_random(rate, lambda: site.call("high", load.high_s(high)), high)
                )
            if flood:
                rate = load.rate(flood, load.low_s)
                await stack.enter_async_context(
                    at_random(rate, lambda: site.call("low", load.low_s(low)), flow)
                )
            await asyncio.sleep(load.lasts_s)
        assert_empty(site.gate)
        return site

    return virtual_run(main())


def assert_high_is_protected(load: Load, classes: Sequence[ClassSettings]) -> Site:
    alone, flooded = measured(load, 0.0, classes), measured(load, FLOOD, classes)
    assert len(flooded.latencies_s["high"]) >= 500
    usual_s = quantile(alone.latencies_s["high"], 0.99)
    assert quantile(flooded.latencies_s["high"], 0.99) <= 1.2 * usual_s
    return flooded


def low_share(site: Site, load: Load) -> float:
    """Of the capacity that high calls have left, what low calls have used."""
    left_s = site.slots * load.lasts_s - site.busy_s["high"]
    return site.busy_s["low"] / left_s


@pytest.mark.slow
@pytest.mark.parametrize("high", [0.3, 0.7])
def test_a_high_class_keeps_its_p99_and_a_batch_gets_what_it_leaves(high: float) -> None:
    load = Load(high)
    flooded = assert_high_is_protected(load, CLASSES)
    # The pool's own queue has nothing to decide.
    assert flooded.queued_in_pool <= 1
    assert low_share(flooded, load) >= 0.8


@pytest.mark.slow
def test_a_batch_alone_gets_most_of_the_capacity() -> None:
    load = Load(0.0)
    assert low_share(measured(load, FLOOD), load) >= 0.8


@pytest.mark.slow
def test_long_low_calls_do_not_hold_up_short_high_ones() -> None:
    load = Load(0.1, short_s, long_s, lasts_s=80.0)

    def check(classes: Sequence[ClassSettings]) -> None:
        assert_high_is_protected(load, classes)

    assert_caught(check, CLASSES, WITHOUT_GUARD)


WEIGHTS = {"one": 1.0, "double": 2.0, "modest": 1.0, "long": 1.0}
PROMPTS = {"one": 100.0, "double": 100.0, "modest": 100.0, "long": 1000.0}
# Tokens a second that it asks for, far below its share.
MODEST = 300.0
TOKENS_PER_S = 200.0  # of one slot
LASTS_S = 200.0


# Calls that each of the others has in flight and waiting at any time.
AT_ONCE = {"one": 60, "double": 60, "long": 25}


def used_by_tenants(klass: str, *, is_fair: bool) -> dict[str, int]:
    """Tokens of each tenant in a long overload. is_fair: the gate knows which tenant asks."""

    async def main() -> dict[str, int]:
        site = Site(slots=SLOTS)
        draws = {name: random.Random(number) for number, name in enumerate(WEIGHTS)}
        used = dict.fromkeys(WEIGHTS, 0)

        async def call(name: str) -> None:
            tokens = round(PROMPTS[name] * draws[name].uniform(0.5, 1.5))
            # Estimates are wrong in both directions.
            wrong = {"one": 0.5, "double": 1.5}.get(name, 1.0)
            is_answered = await site.call(
                klass,
                tokens / TOKENS_PER_S,
                tenant=name if is_fair else "all",
                weight=WEIGHTS[name],
                estimate=tokens * wrong,
                used=tokens,
            )
            assert is_answered
            used[name] += tokens

        async def keep_asking(name: str) -> None:
            while True:
                await call(name)

        tasks = [
            asyncio.create_task(keep_asking(name))
            for name, at_once in AT_ONCE.items()
            for _ in range(at_once)
        ]
        rate = MODEST / PROMPTS["modest"]
        async with at_random(rate, lambda: call("modest"), random.Random(9)):
            await asyncio.sleep(20.0)
            before = dict(used)
            await asyncio.sleep(LASTS_S)
            after = dict(used)
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(one, asyncio.CancelledError) for one in ended)
        assert_empty(site.gate)
        return {name: after[name] - before[name] for name in WEIGHTS}

    return virtual_run(main())


@pytest.mark.slow
@pytest.mark.parametrize("klass", ["high", "normal"])
def test_tenants_get_weighted_max_min_shares_in_tokens(klass: str) -> None:
    def check(is_fair: bool) -> None:
        used = used_by_tenants(klass, is_fair=is_fair)
        # The modest tenant gets what it asks for, the others share the rest by weight.
        assert used["modest"] == pytest.approx(MODEST * LASTS_S, rel=0.05)
        left = sum(used.values()) - used["modest"]
        for name, weight in [("one", 1.0), ("double", 2.0), ("long", 1.0)]:
            assert used[name] == pytest.approx(left * weight / 4.0, rel=0.05)

    assert_caught(check, True, False)


def test_a_tenant_is_not_put_off_by_estimates_that_were_wrong_at_first() -> None:
    """A new gateway takes answers to be long; what it learns must not give one tenant a run."""
    starts: dict[str, list[float]] = {"many": [], "few": []}

    async def main() -> None:
        site = Site(count=1, slots=16)
        loop = asyncio.get_running_loop()
        answers = 0

        async def caller(tenant: str) -> None:
            nonlocal answers
            while loop.time() < 20:
                estimate = 10 + 290 * 0.98**answers
                await site.call("normal", 0.2, tenant=tenant, estimate=estimate, used=10)
                answers += 1
                starts[tenant].append(loop.time())

        callers = [caller("many") for _ in range(40)] + [caller("few") for _ in range(12)]
        await asyncio.gather(*callers)

    virtual_run(main())
    for from_s in range(1, 18):
        few, many = (
            sum(from_s <= at_s < from_s + 2 for at_s in starts[name]) for name in ("few", "many")
        )

        assert 0.35 < few / (few + many) < 0.65, (from_s, few, many)


class Flood(NamedTuple):
    """Calls of a tenant, more than the servers can take. only: the servers that they may use."""

    tenant: str
    only: Sequence[int] = range(4)
    weight: float = 1.0
    from_s: float = 0.0
    until_s: float = math.inf


async def keep_flooding(site: Site, flood: Flood, draw: random.Random, used: Counter[str]) -> None:
    loop = asyncio.get_running_loop()
    avoid = frozenset(
        server.name for number, server in enumerate(site.servers) if number not in flood.only
    )
    await asyncio.sleep(flood.from_s)
    while loop.time() < flood.until_s:
        work_s = draw.uniform(0.5, 1.5)
        await site.call(
            "low",
            work_s,
            tenant=flood.tenant,
            weight=flood.weight,
            estimate=work_s,
            used=work_s,
            avoid=avoid,
        )
        used[flood.tenant] += work_s


def slots_of_tenants(
    count: int, floods: Sequence[Flood], *, from_s: float, until_s: float, lose_s: float = math.inf
) -> dict[str, float]:
    """The mean slots of each tenant during this time, at `count` servers with 8 slots each.

    lose_s: when the second server is lost.
    """

    async def main() -> dict[str, float]:
        site, used, draw = Site(count=count, slots=8), Counter[str](), random.Random(1)
        tasks = [
            asyncio.create_task(keep_flooding(site, flood, draw, used))
            for flood in floods
            for _ in range(40)
        ]
        if lose_s < from_s:
            await asyncio.sleep(lose_s)
            await site.pool.remove("server-1")
        await asyncio.sleep(from_s - asyncio.get_running_loop().time())
        before = used.copy()
        await asyncio.sleep(until_s - from_s)
        slots = {name: (used[name] - before[name]) / (until_s - from_s) for name in used}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert not site.refused
        return slots

    return virtual_run(main())


def test_a_new_tenant_gets_its_share_beside_faster_ones_on_other_endpoints() -> None:
    slots = slots_of_tenants(
        3,
        [
            Flood("heavy", only=(0, 2), weight=8.0),
            Flood("other", only=(1, 2)),
            Flood("new", only=(0, 2), from_s=50.0),
        ],
        from_s=60.0,
        until_s=200.0,
    )
    assert slots["new"] == pytest.approx(16 / 9, rel=0.1)
    assert slots["heavy"] == pytest.approx(16 * 8 / 9, rel=0.05)
    assert slots["other"] == pytest.approx(8, rel=0.05)


def test_a_modest_tenant_does_not_wait_for_calls_of_other_endpoints() -> None:
    async def main() -> list[float]:
        site, used, waits_s = Site(count=2, slots=8), Counter[str](), list[float]()
        loop, draw = asyncio.get_running_loop(), random.Random(1)

        async def call() -> None:
            since_s = loop.time()
            avoid = frozenset({"server-1"})
            assert await site.call("low", 1.0, tenant="modest", avoid=avoid)
            waits_s.append(loop.time() - since_s - 1.0)

        tasks = [
            asyncio.create_task(keep_flooding(site, flood, draw, used))
            for flood in (Flood("same", only=(0,)), Flood("other", only=(1,)))
            for _ in range(40)
        ]
        async with at_random(2.0, call, draw):
            await asyncio.sleep(150.0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return waits_s

    waits_s = virtual_run(main())
    assert len(waits_s) > 200
    assert sum(waits_s) / len(waits_s) < 0.3


def test_a_tenant_has_no_credit_from_time_on_fewer_endpoints() -> None:
    slots = slots_of_tenants(
        4,
        [Flood("few", only=(0,), until_s=100.0), Flood("few", from_s=100.0), Flood("all")],
        from_s=105.0,
        until_s=145.0,
    )
    assert slots["few"] == pytest.approx(16, rel=0.05)
    assert slots["all"] == pytest.approx(16, rel=0.05)


def test_use_of_other_endpoints_is_not_held_against_a_tenant_later() -> None:
    floods = [
        Flood("a", only=(0,)),
        Flood("b", only=(0,)),
        Flood("both", only=(0,)),
        Flood("both", only=(1,), until_s=100.0),
    ]
    # What it has at the second server is more than its share of the first.
    slots = slots_of_tenants(2, floods, from_s=20.0, until_s=100.0)
    assert slots == pytest.approx({"a": 4, "b": 4, "both": 8}, rel=0.05)
    slots = slots_of_tenants(2, floods, from_s=110.0, until_s=170.0)
    assert slots == pytest.approx({"a": 8 / 3, "b": 8 / 3, "both": 8 / 3}, rel=0.1)


def test_a_tenant_that_loses_an_endpoint_of_its_own_soon_gets_its_share_of_the_others() -> None:
    slots = slots_of_tenants(
        3,
        [
            Flood("heavy", only=(0, 2), weight=8.0),
            Flood("light", only=(0, 2)),
            Flood("loses", only=(1, 2)),
        ],
        lose_s=100.0,
        from_s=115.0,
        until_s=215.0,
    )
    assert slots["light"] == pytest.approx(1.6, rel=0.1)
    assert slots["loses"] == pytest.approx(1.6, rel=0.1)
