"""One of several processes under a shared limit: `sharing_worker.py URL TARGET RATE CALLS GUARD`.

Prints `ready`, and begins at a line on stdin.
"""

from __future__ import annotations

import asyncio
import sys
import time

import aiohttp

from redline.limits import Limits
from redline.limits.shared import SharedLimiter, open_ledger

BODY = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 1}
_AT_ONCE = 64


async def main(base_url: str, target: str, rate: str, calls: int, guard: str) -> None:
    limits = Limits(requests=rate, guard_s=None if guard == "measured" else float(guard))
    limiter = SharedLimiter(limits, open_ledger(target, limits, base_url))
    slots = asyncio.Semaphore(_AT_ONCE)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        # The first request of a process is slow, which the guard need not cover.
        async with session.get(base_url + "/models") as reply:
            await reply.read()
        print("ready", flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)

        async def call() -> None:
            async with slots:
                grant = await limiter.acquire()
                sent_s = time.monotonic()
                grant.sent(sent_s)
                async with session.post(base_url + "/chat/completions", json=BODY) as reply:
                    grant.replied(time.monotonic() - sent_s)
                    await reply.read()

        await asyncio.gather(*(call() for _ in range(calls)))
        await limiter.aclose()


if __name__ == "__main__":
    url, where, at_rate, count, with_guard = sys.argv[1:]
    asyncio.run(main(url, where, at_rate, int(count), with_guard))
