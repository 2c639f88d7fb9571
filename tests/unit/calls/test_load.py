"""What a backend says of itself: its room, its queue and what binds."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from redline.calls import (
    Call,
    Endpoint,
    FunctionBackend,
    Health,
    HttpBackend,
    Load,
    Reply,
    Request,
    Retry,
)
from redline.calls.cost import Allowance, Metered, Prices, Spending
from redline.limits import Cost, Limits
from redline.testing import ScriptedBackend, VirtualClock, virtual_run

ASK = Request(body={"model": "m", "messages": [{"role": "user", "content": "x" * 4000}]})


def play(limits: Limits, story: Callable[[HttpBackend], Awaitable[None]]) -> None:
    async def main() -> None:
        endpoint = Endpoint(base_url="http://127.0.0.1:9/v1", limits=limits, proxy="")
        backend = HttpBackend(endpoint, clock=VirtualClock(asyncio.get_running_loop()))
        await story(backend)
        await backend.aclose()

    virtual_run(main())


def test_an_idle_endpoint_is_ready_and_nothing_binds() -> None:
    async def story(backend: HttpBackend) -> None:
        load = backend.load(0.0)
        assert load == Load(slots=4, ahead_free=load.ahead_free, steady=4)
        assert load.ahead_free > 0
        assert load.state is Health.READY
        assert load.parked_until_s == -math.inf

    play(Limits(concurrency=4), story)


def test_an_endpoint_with_stated_limits_has_steady_room_until_it_is_parked() -> None:
    async def story(backend: HttpBackend) -> None:
        load = backend.load(0.0)
        assert load.steady == min(64, load.ahead_free) > 1
        backend.limiter.park(5.0)
        assert backend.load(0.0).steady == 0
        assert backend.load(6.0).steady == load.steady

    play(Limits(requests="1000/1s", concurrency=64), story)


def test_an_endpoint_with_limits_that_may_change_is_asked_each_time(tmp_path: Path) -> None:
    async def story(backend: HttpBackend) -> None:
        assert backend.load(0.0).steady == 0

    play(Limits(requests="1000/1s", concurrency=64, share=str(tmp_path / "limits")), story)
    play(Limits(rate="auto", concurrency=64), story)
    play(Limits(tokens="6m/60s", concurrency=64), story)


def test_room_is_behind_those_that_wait() -> None:
    async def story(backend: HttpBackend) -> None:
        limiter = backend.limiter
        (await limiter.acquire(Cost())).sent(0.0)
        alone_s = backend.load(0.0).room_s
        assert 10 <= alone_s < 10.5
        waiting = [asyncio.create_task(limiter.acquire(Cost())) for _ in range(3)]
        await asyncio.sleep(0)
        load = backend.load(0.0)
        assert load.room_s == pytest.approx(alone_s + 30)
        assert (load.waiting, load.binds) == (3, "1/10s requests")
        for task in waiting:
            task.cancel()

    play(Limits(requests="1/10s", profile="fixed"), story)


def test_the_limit_with_the_longest_wait_binds() -> None:
    async def story(backend: HttpBackend) -> None:
        (await backend.limiter.acquire(Cost(900))).sent(0.0)
        assert backend.load(1.0).binds == ""
        load = backend.load(1.0, ASK)
        assert load.room_s > 50
        assert load.binds == "1000/60s tokens"
        huge = Request(body={"messages": [{"role": "user", "content": "x" * 40_000}]})
        never = backend.load(1.0, huge)
        assert never.room_s == math.inf
        assert "more than the limit of 1000/60s" in never.binds

    play(Limits(requests="10/1s", tokens="1000/60s", profile="fixed"), story)


def test_a_parked_endpoint_says_until_when() -> None:
    async def story(backend: HttpBackend) -> None:
        backend.limiter.park(7.0)
        load = backend.load(2.0)
        assert (load.room_s, load.parked_until_s) == (5.0, 7.0)
        assert (load.state, load.binds) == (Health.READY, "the endpoint asked redline to wait")

    play(Limits(), story)


def test_a_function_whose_limits_are_parked_says_until_when() -> None:
    async def main() -> None:
        async def answer(row: object) -> object:
            return row

        backend = FunctionBackend(answer, clock=VirtualClock(asyncio.get_running_loop()))
        assert backend.load(2.0).parked_until_s == -math.inf
        # As when another process that shares them is asked to wait.
        backend.limiter.park(7.0)
        load = backend.load(2.0)
        assert (load.room_s, load.parked_until_s) == (5.0, 7.0)
        await backend.aclose()

    virtual_run(main())


def test_an_endpoint_out_of_reach_is_degraded_and_then_gone() -> None:
    async def story(backend: HttpBackend) -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        await backend.send(ASK, Call())
        load = backend.load(loop.time())
        assert (load.state, load.binds) == (Health.DEGRADED, "the endpoint is out of reach")
        assert load.parked_until_s == loop.time() + load.room_s
        assert backend.load(began_s + 60).state is Health.GONE

    play(Limits(), story)


def test_a_retry_waits_for_as_long_as_its_backend_is_parked() -> None:
    async def main() -> None:
        backend = ScriptedBackend([Reply(output="ok")], room_s=3.0)
        load = Retry(backend).load(5.0)
        assert load == backend.load(5.0)
        assert (load.parked_until_s, load.room_s) == (8.0, 3.0)
        await backend.aclose()
        assert Retry(backend).load(5.0).state is Health.GONE

    virtual_run(main())


def test_a_budget_that_is_all_reserved_binds() -> None:
    async def main() -> None:
        clock = VirtualClock(asyncio.get_running_loop())
        backend = ScriptedBackend([Reply(output="ok")], latency_s=5.0)
        request = Request(body={"max_tokens": 600, "messages": []})
        spending = Spending(Allowance(tokens=1000))
        metered = Metered(backend, spending, Prices(), clock=clock)
        assert metered.load(0.0).binds == ""
        tasks = [asyncio.create_task(metered.send(request, Call())) for _ in range(2)]
        await asyncio.sleep(1)
        load = metered.load(1.0)
        assert (load.in_flight, load.waiting, load.binds) == (1, 1, "the budget")
        assert load.room_s > 0
        await asyncio.gather(*tasks)

    virtual_run(main())
