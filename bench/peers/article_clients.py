"""Three clients as the articles build them: `article_clients.py KIND URL CALLS SEED`.

threads  a pool of 8 threads, requests, and a retry with back-off
gather   all calls at once with asyncio.gather and aiohttp, and a retry with back-off
bucket   as gather, behind a token bucket that refills int(elapsed * rate)

The last line on stdout says when the first call was sent and when the last answer came, on the
monotonic clock. Runs in an environment of its own.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import aiohttp
import requests  # type: ignore[import-not-found,import-untyped,unused-ignore]

THREADS = 8
RATE_PER_S = 2
POLL_S = 0.1


def pause_s(attempt: int) -> float:
    """Exponential back-off with full jitter, from half a second up to 8 s."""
    return random.uniform(0, min(8.0, math.ldexp(0.5, attempt)))


def with_threads(url: str, calls: int) -> None:
    def call(_: int) -> str:
        attempt = 0
        while True:
            response = requests.get(url, timeout=60)
            if response.status_code == 200:
                return str(response.json())
            time.sleep(pause_s(attempt))
            attempt += 1

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(call, range(calls)))


class TokenBucket:
    """The tutorials' bucket: whole tokens only, so that a part of each wait is forgotten."""

    def __init__(self, rate_per_s: int) -> None:
        self.rate_per_s = rate_per_s
        self.tokens = rate_per_s
        self.filled_s = time.monotonic()

    async def acquire(self) -> None:
        while True:
            now_s = time.monotonic()
            new = int((now_s - self.filled_s) * self.rate_per_s)
            if new > 0:
                self.tokens = min(self.rate_per_s, self.tokens + new)
                self.filled_s = now_s
            if self.tokens > 0:
                self.tokens -= 1
                return
            await asyncio.sleep(POLL_S)


async def with_gather(url: str, calls: int, bucket: TokenBucket | None) -> None:
    async with aiohttp.ClientSession() as session:

        async def call() -> str:
            attempt = 0
            while True:
                if bucket is not None:
                    await bucket.acquire()
                async with session.get(url) as response:
                    if response.status == 200:
                        return str(await response.json())
                await asyncio.sleep(pause_s(attempt))
                attempt += 1

        await asyncio.gather(*(call() for _ in range(calls)))


def main() -> None:
    kind, url, calls = sys.argv[1], sys.argv[2], int(sys.argv[3])
    random.seed(int(sys.argv[4]))
    first_send_s = time.monotonic()
    if kind == "threads":
        with_threads(url, calls)
    else:
        bucket = TokenBucket(RATE_PER_S) if kind == "bucket" else None
        asyncio.run(with_gather(url, calls, bucket))
    print(json.dumps({"first_send_s": first_send_s, "last_answer_s": time.monotonic()}))


if __name__ == "__main__":
    main()
