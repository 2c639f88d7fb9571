"""`async with limiter()` around anybody's own calls, and its twin for threads."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import aiohttp
import pytest

from redline.errors import OverLimit
from redline.limits import Cost, Limiter, Limits, SyncLimiter
from redline.testing import VirtualClock, virtual_run
from support.catching import assert_caught
from support.lateness import judge
from support.virtual_time import in_virtual_time

SERVER = Path(__file__).parents[1] / "support" / "slowapi_server.py"
CALLS = 25
# The guard that a limiter begins with, less the server's own jitter.
LATE_S = 0.03


@contextmanager
def slowapi(limit: str, strategy: str, jitter_ms: int) -> Iterator[str]:
    command = [sys.executable, str(SERVER), limit, strategy, str(jitter_ms)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        root = process.stdout.readline().strip().removesuffix("/v1")
        counts(root)  # the server's first request is slow, which the guard need not cover
        yield root
    finally:
        process.terminate()
        process.wait(timeout=20)
        if process.stdout is not None:
            process.stdout.close()


def fetch(url: str) -> Any:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=10) as reply:
        return json.load(reply)


def counts(root: str) -> dict[str, int]:
    found: dict[str, int] = fetch(f"{root}/count")
    return found


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["fixed", "moving", "counter"])
def test_in_a_users_own_client_no_call_is_rejected(strategy: str) -> None:
    judge(lambda _: asyncio.run(check_client(strategy)), LATE_S)


async def check_client(strategy: str) -> None:
    limiter = Limiter("10/1s")
    loop = asyncio.get_running_loop()
    with slowapi("10/second", strategy, 20) as root:
        async with aiohttp.ClientSession() as session:

            async def ask() -> str:
                async with limiter(), session.get(f"{root}/chat") as reply:
                    return str(await reply.json()) if reply.status == 200 else "refused"

            begun_s = loop.time()
            answers = await asyncio.gather(*(ask() for _ in range(CALLS)))
            took_s = loop.time() - begun_s
        seen = await asyncio.to_thread(counts, root)
    assert answers == ["hello"] * CALLS
    assert seen == {"admitted": CALLS, "refused": 0}
    # The limit is used: a limiter that wastes it takes far longer.
    assert took_s <= 1.5 * (CALLS - 1) / 10 + 2


def test_in_a_users_own_threads_no_call_is_rejected() -> None:
    judge(lambda _: check_threads(), LATE_S)


def check_threads() -> None:
    limiter = SyncLimiter("10/1s")
    with slowapi("10/second", "moving", 20) as root:

        def ask(_: int) -> str:
            with limiter():
                try:
                    return str(fetch(f"{root}/chat"))
                except HTTPError as error:
                    error.close()
                    return "refused"

        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(ask, range(CALLS)))
        seen = counts(root)
    assert answers == ["hello"] * CALLS
    assert seen == {"admitted": CALLS, "refused": 0}


# The rest is in virtual time.


def limiter_of(kind: Any = Limiter, **limits: Any) -> Any:
    limits.setdefault("profile", "moving")
    return kind(Limits(guard_s=0.0, **limits), VirtualClock(asyncio.get_running_loop()))


def used(limiter: Any) -> dict[str, int]:
    now_s = asyncio.get_running_loop().time()
    return {line.kind: line.window.used(now_s) for line in limiter.rules.lines}


async def is_whole(limiter: Any) -> bool:
    """After a window, all of the limit is free, and nobody is left in the queue."""
    await asyncio.sleep(10)
    now_s = asyncio.get_running_loop().time()
    most = int(min(limiter.most("tokens"), 1000))
    return limiter.waiting == 0 and limiter.room_s(Cost(most), now_s) == 0


@in_virtual_time
async def test_an_exception_in_the_body_passes_and_the_call_counts_as_sent() -> None:
    limiter = limiter_of(requests="3/1s", tokens="100/1s")
    with pytest.raises(ZeroDivisionError):
        async with limiter(tokens=70):
            _ = 1 / 0
    assert used(limiter) == {"requests": 1, "tokens": 70}
    assert await is_whole(limiter)


@in_virtual_time
async def test_a_cancellation_in_the_body_passes_and_the_call_counts_as_sent() -> None:
    limiter = limiter_of(requests="3/1s", tokens="100/1s")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5), limiter(tokens=70):
            await asyncio.sleep(5)
    assert used(limiter) == {"requests": 1, "tokens": 70}
    assert await is_whole(limiter)


def check_cancellation(kind: Any) -> None:
    async def main() -> None:
        limiter = limiter_of(kind, requests="1/1s")
        async with limiter():
            pass
        entered: list[str] = []

        async def call(name: str) -> None:
            async with limiter():
                entered.append(name)

        tasks = [asyncio.create_task(call(name)) for name in "abc"]
        await asyncio.sleep(0.5)
        tasks[0].cancel()
        # In the very tick in which it is granted, too.
        asyncio.get_running_loop().call_later(0.5, tasks[1].cancel)
        await asyncio.wait(tasks, timeout=10)
        assert entered in (["b", "c"], ["c"])
        assert await is_whole(limiter)

    virtual_run(main())


def test_who_is_cancelled_while_it_waits_takes_nothing() -> None:
    check_cancellation(Limiter)


def check_settling(kind: Any) -> None:
    async def main() -> None:
        limiter = limiter_of(kind, input_tokens="100/1s", output_tokens="50/1s")
        async with limiter(80, output_tokens=40) as grant:
            grant.settle(Cost(20, 10))
        assert used(limiter) == {"input_tokens": 20, "output_tokens": 10}
        # What was not used is free at once.
        async with asyncio.timeout(0.5), limiter(80, output_tokens=40) as grant:
            # A sum keeps the ratio of the estimate.
            grant.settle(60)
        assert used(limiter) == {"input_tokens": 60, "output_tokens": 30}
        # What a call used above its estimate is taken in addition.
        async with limiter(10, output_tokens=5) as grant:
            grant.settle(Cost(40, 5))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1), limiter(1):
                pass
        assert await is_whole(limiter)

    virtual_run(main())


@in_virtual_time
async def test_more_than_a_limit_allows_at_all_is_refused_at_once() -> None:
    limiter = limiter_of(tokens="100/1s")
    with pytest.raises(OverLimit):
        async with limiter(tokens=101):
            raise AssertionError("it was let in")
    assert await is_whole(limiter)


@in_virtual_time
async def test_it_goes_around_any_coroutine_and_lower_priorities_go_first() -> None:
    limiter = limiter_of(requests="1/1s")
    order: list[int] = []

    async def call(number: int) -> None:
        async with limiter(priority=number):
            order.append(number)

    await asyncio.gather(*(call(number) for number in (3, 1, 2, 0)))
    assert order == [3, 0, 1, 2]


def check_windows(kind: Any) -> None:
    """By stamps of the user's own, no window holds more than its limit."""

    async def main() -> None:
        limiter = limiter_of(kind, requests="5/1s")
        sent_s: list[float] = []

        async def call() -> None:
            async with limiter():
                sent_s.append(asyncio.get_running_loop().time())
                await asyncio.sleep(0.3)

        await asyncio.gather(*(call() for _ in range(40)))
        assert all(
            later_s - sooner_s >= 1 - 1e-6
            for sooner_s, later_s in zip(sent_s, sent_s[5:], strict=False)
        )
        assert sent_s[-1] <= 7.5

    virtual_run(main())


class Unsent(Limiter):
    """Takes what goes at once for what is given back."""

    def acquire_now(self, cost: Cost) -> Any:
        grant = super().acquire_now(cost)
        if grant is not None:
            grant.release()
        return grant


class Unsettled(Limiter):
    def settle(self, taken: Any, used: Cost) -> None:
        pass


@pytest.mark.parametrize(("check", "wrong"), [(check_windows, Unsent), (check_settling, Unsettled)])
def test_a_wrong_limiter_is_noticed(check: Any, wrong: Any) -> None:
    assert_caught(check, Limiter, wrong)
