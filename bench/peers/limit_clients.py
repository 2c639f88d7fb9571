"""The same client around one limiter: `limit_clients.py KIND URL RUN CALLS COUNT WINDOW_S`.

tutorial    the tutorials' token bucket, which refills int(elapsed * rate) and is polled
aiolimiter  AsyncLimiter(COUNT, WINDOW_S)
pyrate      pyrate-limiter's Limiter around BucketAsyncWrapper(InMemoryBucket), its default log
throttled   throttled-py's GCRA of burst COUNT, waiting, as its page shows it
redline-P   redline with profile P; its limiter sits behind the connection and learns from answers

All calls are begun at once; one that is answered 429 asks its limiter again at once. Says `ready`,
waits for a line, and ends with a line of JSON: every write as [call, monotonic time], the process's
CPU seconds meanwhile, and redline's guard. All but redline run in an environment of their own.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp

Gate = Callable[[], Awaitable[Any]]
Sends = list[tuple[int, float]]
# Takes the server's URL, the run and the number of calls; gives every write, and redline's guard.
Client = Callable[[str, str, int], Awaitable[tuple[Sends, float | None]]]
POLL_S = 0.1
# Longer than any wait; throttled-py needs a bound.
FOREVER_S = 3600.0


def tutorial(count: int, window_s: float) -> Gate:
    """Whole tokens only, so that a part of each wait is forgotten."""
    rate_per_s = count / window_s
    tokens, filled_s = count, time.monotonic()

    async def acquire() -> None:
        nonlocal tokens, filled_s
        while True:
            now_s = time.monotonic()
            new = int((now_s - filled_s) * rate_per_s)
            if new > 0:
                tokens = min(count, tokens + new)
                filled_s = now_s
            if tokens > 0:
                tokens -= 1
                return
            await asyncio.sleep(POLL_S)

    return acquire


def aiolimiter(count: int, window_s: float) -> Gate:
    from aiolimiter import AsyncLimiter

    return AsyncLimiter(count, window_s).acquire


def pyrate(count: int, window_s: float) -> Gate:
    from pyrate_limiter import BucketAsyncWrapper, InMemoryBucket, Limiter, Rate

    limiter = Limiter(BucketAsyncWrapper(InMemoryBucket([Rate(count, round(1000 * window_s))])))
    return lambda: limiter.try_acquire_async("calls")


def throttled(count: int, window_s: float) -> Gate:
    from throttled.asyncio import RateLimiterType, Throttled, rate_limiter

    quota = rate_limiter.per_duration(timedelta(seconds=window_s), count, burst=count)
    gate = Throttled(key="calls", using=RateLimiterType.GCRA.value, quota=quota, timeout=FOREVER_S)
    return gate.limit


GATES = {f.__name__: f for f in (tutorial, aiolimiter, pyrate, throttled)}


def behind(gate: Gate) -> Client:
    """Calls through aiohttp behind `gate`."""

    async def client(url: str, run: str, calls: int) -> tuple[Sends, None]:
        address = url.removesuffix("/v1") + f"/chat?run={run}"
        sends: Sends = []

        async def call(number: int) -> None:
            while True:
                await gate()
                sends.append((number, time.monotonic()))
                async with session.get(f"{address}&n={number}") as response:
                    await response.read()
                    if response.status == 200:
                        return

        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session:
            await asyncio.gather(*map(call, range(calls)))
        return sends, None

    return client


def through_redline(profile: str, count: int, window_s: float) -> Client:
    """Redline with its own client; it says its guard at the end."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))
    from redline.limits import Limits, Rate
    from support.opponents import send_all

    limits = Limits(requests=Rate(count, window_s), profile=profile)
    return lambda url, run, calls: send_all(url, run, limits, calls, is_repeated=True)


async def drive(words: list[str]) -> dict[str, Any]:
    """The figures of one run; it begins when a line comes."""
    kind, url, run = words[:3]
    calls, count, window_s = int(words[3]), int(words[4]), float(words[5])
    name, _, profile = kind.partition("-")
    if name == "redline":
        client = through_redline(profile, count, window_s)
    else:
        client = behind(GATES[name](count, window_s))
    print("ready", flush=True)
    sys.stdin.readline()
    begun_s = time.process_time()
    sends, guard_s = await client(url, run, calls)
    return {"sends": sends, "cpu_s": time.process_time() - begun_s, "guard_s": guard_s}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(drive(sys.argv[1:]))))
