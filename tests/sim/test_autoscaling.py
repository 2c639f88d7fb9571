"""A fleet follows its load, and drops no call when it shrinks."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable

import pytest

from redline.errors import ConfigError, Refused, ServerFailed, TimedOut
from redline.route import Pool, Seat, strategy_of
from redline.route.scale import Fleet, ScaleSettings, replay
from redline.testing import virtual_run
from redline.waist import Call, Request
from support.fleet import ModelServer
from support.scaling import CLOCK, Arrivals, Servers, fleet_of

SETTINGS = ScaleSettings(max_replicas=40)


@pytest.mark.slow
@pytest.mark.parametrize(
    "loads", [{20.0: 5.0}, {10.0: 2.5, 200.0: 2.5}], ids=["alike", "long and short"]
)
def test_a_steady_load_with_noise_changes_the_fleet_seldom(loads: dict[float, float]) -> None:
    """loads: the replicas that calls of this many seconds keep busy."""

    async def main() -> None:
        servers = Servers()
        async with fleet_of(servers, SETTINGS) as (pool, fleet):
            arrivals = [
                Arrivals(pool, lambda _, load=load: load, call_s=call_s, seed=seed)
                for seed, (call_s, load) in enumerate(loads.items(), 1)
            ]
            await asyncio.gather(*(one.run(3 * 3600) for one in arrivals))
            samples = [one for one in fleet.samples if 3600 <= one.at_s < 3 * 3600]
            changes = [one for one in fleet.history if 3600 <= one.at_s < 3 * 3600]
            assert [one.replicas for one in replay(fleet.samples, SETTINGS)][-1] == len(fleet.ready)
        assert len(changes) <= 4
        busy = sum(one.in_flight for one in samples)
        assert 0.6 <= busy / sum(one.ready * servers.slots for one in samples) <= 0.8
        assert all(all(one.outcomes) for one in arrivals)
        assert servers.dropped == 0

    virtual_run(main())


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_after_a_step_the_queue_is_gone_in_time_and_after_a_fall_the_fleet_shrinks(
    seed: int,
) -> None:
    async def main() -> None:
        servers = Servers()
        async with fleet_of(servers, SETTINGS) as (pool, fleet):
            arrivals = Arrivals(pool, lambda at_s: 9 if 1800 <= at_s < 3000 else 3, seed=seed)
            await arrivals.run(4600)
            samples = {round(one.at_s): one for one in fleet.samples}
            servers_then = len(fleet.ready)
        slow = [at for at, one in samples.items() if one.queue_wait_p95_s > 1 and at >= 1800]
        assert slow
        assert max(slow) < 1800 + 1.1 * (SETTINGS.warm_up_s + SETTINGS.panic_window_s)
        assert samples[1799].ready <= 7
        assert samples[2900].ready >= 12
        assert servers_then <= 7
        assert all(arrivals.outcomes)
        assert servers.dropped == 0

    virtual_run(main())


def test_a_fleet_is_stopped_without_calls_and_holds_the_first_ones_while_it_starts() -> None:
    async def main() -> None:
        servers = Servers(warm_up_s=30.0)
        settings = ScaleSettings(min_replicas=0, max_replicas=4, idle_s=100.0)
        async with fleet_of(servers, settings) as (pool, fleet):
            for _ in range(2):
                await asyncio.sleep(500)
                assert not servers.running
                begun_s = CLOCK.now_s()
                outcomes = await asyncio.gather(*(one_call(pool, 1.0) for _ in range(8)))
                assert all(outcomes)
                assert 30 <= CLOCK.now_s() - begun_s <= 33
            await asyncio.sleep(200)
            assert not servers.running
            assert [(one.before, one.after) for one in fleet.history] == [(0, 1), (1, 0)] * 2
            assert fleet.history[0].reason == "8 calls wait"
            assert fleet.history[1].reason == "no call for 100 s"

    virtual_run(main())


@pytest.mark.slow
def test_a_thousand_replicas_with_a_call_in_flight_are_stopped_and_no_call_is_dropped() -> None:
    async def main() -> None:
        servers = Servers(slots=4, warm_up_s=1.0)
        settings = ScaleSettings(
            max_replicas=60, scale_down_window_s=6.0, panic_window_s=10.0, warm_up_s=1.0
        )
        async with fleet_of(servers, settings) as (pool, fleet):
            load = [24.0, 2.0]
            arrivals = Arrivals(pool, lambda at_s: load[int(at_s // 40) % 2], slots=4)
            await arrivals.run(10_000)
            assert len(fleet.caught) >= 1_000
            traffic = pool.traffic
            assert traffic.ended == traffic.answered == len(arrivals.outcomes)
            await asyncio.sleep(120)
            assert len(servers.running) == len(pool.members) == len(fleet.ready)
        assert all(arrivals.outcomes)
        assert servers.dropped == 0
        assert not servers.running
        assert pool.load(0.0).in_flight == pool.queued == 0

    virtual_run(main())


def test_a_replica_that_cannot_be_started_is_tried_again_later() -> None:
    async def main() -> None:
        servers = Servers(warm_up_s=5.0, fails=3)
        async with fleet_of(servers, ScaleSettings()) as (pool, fleet):
            await asyncio.sleep(60)
            assert len(servers.running) == 1
            # Whatever a start has begun is ended.
            assert servers.stopped == servers.begun[:3]
            assert [str(one).partition(" could")[0] for one in fleet.failures] == servers.begun[:3]
            assert await one_call(pool, 1.0)

    virtual_run(main())


def test_starts_that_fail_together_are_tried_again_as_soon_as_one() -> None:
    async def main() -> None:
        servers = Servers(warm_up_s=5.0, fails=8)
        async with fleet_of(servers, ScaleSettings(min_replicas=8)) as (_, fleet):
            await asyncio.sleep(9)
            assert fleet.failed_starts == 1
            assert len(fleet.failures) == len(fleet.starting) == 8
            await asyncio.sleep(5)
            assert len(servers.running) == 8

    virtual_run(main())


def test_a_fleet_that_was_stopped_is_started_for_a_call_at_once() -> None:
    async def main() -> None:
        servers = Servers(warm_up_s=1.0, fails=6)
        settings = ScaleSettings(min_replicas=0, idle_s=5.0)
        async with fleet_of(servers, settings) as (pool, fleet):
            call = asyncio.create_task(one_call(pool, 1.0))
            await asyncio.sleep(45.0)
            assert fleet.failed_starts == 6
            call.cancel()
            await asyncio.sleep(10.0)
            assert fleet.history[-1].after == 0
            begun_s = CLOCK.now_s()
            assert await one_call(pool, 1.0)
            assert CLOCK.now_s() - begun_s < 5.0

    virtual_run(main())


def test_a_fleet_that_is_ended_stops_replicas_that_are_starting() -> None:
    async def main() -> None:
        servers = Servers(warm_up_s=60.0)
        async with fleet_of(servers, ScaleSettings(min_replicas=3)):
            await asyncio.sleep(30)
        assert len(servers.begun) == 3
        assert sorted(servers.stopped) == sorted(servers.begun)

    virtual_run(main())


def test_a_replica_whose_key_is_refused_is_replaced() -> None:
    async def main() -> None:
        servers = Servers(warm_up_s=1.0)
        async with fleet_of(servers, ScaleSettings(min_replicas=2)) as (pool, fleet):
            await asyncio.sleep(10)
            bad = next(iter(servers.running.values()))
            bad.fails = lambda now_s, number: Refused("HTTP 401", status=401)
            assert all(await asyncio.gather(*(one_call(pool, 1.0) for _ in range(40))))
            await asyncio.sleep(10)
            assert bad.name in servers.stopped
            assert len(servers.running) == len(fleet.ready) == 2

    virtual_run(main())


@pytest.mark.parametrize("fails_for_s", [200.0, math.inf])
def test_a_replica_whose_calls_fail_is_replaced_unless_it_recovers(fails_for_s: float) -> None:
    async def main() -> None:
        servers = Servers(warm_up_s=1.0)
        async with fleet_of(servers, ScaleSettings(min_replicas=2)) as (pool, fleet):
            await asyncio.sleep(10)
            bad = next(iter(servers.running.values()))
            until_s = CLOCK.now_s() + fails_for_s
            hangs = TimedOut("first_byte")
            bad.fails, bad.fails_in_s = lambda now_s, _: hangs if now_s < until_s else None, 1.0
            for _ in range(500):
                await asyncio.gather(*(one_call(pool, 0.5) for _ in range(4)))
                await asyncio.sleep(0.5)
            is_replaced = bad.name in servers.stopped
            assert is_replaced == (fails_for_s > 300)
            why = [f"{bad.name} was lost: its calls have failed for 300 s"]
            assert [str(one) for one in fleet.failures] == why * is_replaced
            assert len(servers.running) == len(fleet.ready) == 2

    virtual_run(main())


@pytest.mark.parametrize("slow", [0, 8])
def test_a_replica_that_has_failed_and_is_idle_or_slow_is_not_replaced(slow: int) -> None:
    async def main() -> None:
        servers = Servers(warm_up_s=1.0, slots=4)
        async with fleet_of(servers, ScaleSettings(min_replicas=2)) as (pool, fleet):
            await asyncio.sleep(10)
            bad = next(iter(servers.running.values()))
            until_s = CLOCK.now_s() + 5.0
            error = ServerFailed("HTTP 500", status=500)
            bad.fails = lambda now_s, _: error if now_s < until_s else None
            while CLOCK.now_s() < until_s - 0.3:
                await asyncio.gather(*(one_call(pool, 0.1) for _ in range(4)))
            assert not all(one.breaker.is_working for one in pool.members)
            calls = [asyncio.create_task(one_call(pool, 400.0)) for _ in range(slow)]
            await asyncio.sleep(390)
            assert bool(bad.in_flight) == bool(slow)
            assert not fleet.failures
            assert bad.name in [one.name for one in fleet.ready]
            assert all(await asyncio.gather(*calls))

    virtual_run(main())


def test_a_fleet_has_a_pool_of_its_own() -> None:
    def make(on_room: Callable[[], None]) -> ModelServer:
        return ModelServer("a")

    pool = Pool([Seat(name="a", make=make)], strategy_of("p2c", random.Random(1)))
    with pytest.raises(ConfigError, match="the pool of a fleet has endpoints already"):
        Fleet(pool, Servers(), SETTINGS)


async def one_call(pool: Pool, work_s: float) -> bool:
    outcome = await pool.send(Request(body={"work": work_s}), Call())
    return outcome.is_success
