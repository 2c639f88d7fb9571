"""The same calls over one HTTP client: `transport_clients.py KIND URL CALLS IN_FLIGHT`.

direct     redline's own connections, through the exchange that a run uses, its deadlines set
bare       aiohttp as it comes, one session, no timeouts
pyreqwest  pyreqwest, one client, no timeouts

As many workers as calls in flight make the calls in turn, on uvloop. Ends with a line of JSON: CPU
and wall seconds of the calls alone, and the most memory. All but redline's run in an environment of
their own.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import resource
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import uvloop

BODY = json.dumps({"model": "sim", "messages": [{"role": "user", "content": "x" * 1024}]}).encode()
PATH = "/v1/chat/completions"
Ask = Callable[[], Awaitable[bytes]]


@asynccontextmanager
async def through_redline(url: str) -> AsyncIterator[Ask]:
    from redline.calls import Endpoint
    from redline.calls.wire import Exchange, Timing, Transport
    from redline.clock import SYSTEM
    from redline.limits import Cost, Limiter, Limits

    limiter = Limiter(Limits())
    cost = Cost()

    class Free(Exchange, eq=False):
        """Nothing limits it."""

        def may_leave(self) -> bool:
            if self.grant is None:
                self.grant = limiter.acquire_now(cost)
            return self.grant is not None

        async def acquire(self) -> Any:
            return await limiter.acquire(cost)

    endpoint = Endpoint(base_url=url, proxy="")
    transport = Transport(endpoint, SYSTEM, lambda took_s: None)

    async def ask() -> bytes:
        head = transport.head("POST", PATH, {}, BODY)
        exchange = Free(Timing(endpoint.timeouts, SYSTEM), head=head, body=BODY)
        answer = await transport.exchange(exchange)
        assert answer.status == 200
        return answer.body

    try:
        yield ask
    finally:
        await transport.aclose()


@asynccontextmanager
async def through_aiohttp(url: str) -> AsyncIterator[Ask]:
    import aiohttp

    address = url.removesuffix("/v1") + PATH
    headers = {"Content-Type": "application/json"}
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:

        async def ask() -> bytes:
            async with session.post(address, data=BODY, headers=headers) as response:
                assert response.status == 200
                return await response.read()

        yield ask


@asynccontextmanager
async def through_pyreqwest(url: str) -> AsyncIterator[Ask]:
    from pyreqwest.client import ClientBuilder

    address = url.removesuffix("/v1") + PATH
    async with ClientBuilder().build() as client:

        async def ask() -> bytes:
            request = client.post(address).header("Content-Type", "application/json")
            response = await request.body_bytes(BODY).build().send()
            assert response.status == 200
            return bytes(await response.bytes())

        yield ask


def opened(kind: str, url: str) -> Any:
    if kind == "pyreqwest":
        return through_pyreqwest(url)
    return through_aiohttp(url) if kind == "bare" else through_redline(url)


async def drive(kind: str, url: str, calls: int, in_flight: int) -> dict[str, float]:
    async with opened(kind, url) as ask:
        left = itertools.repeat(None, calls)

        async def work() -> None:
            for _ in left:
                answer = await ask()
                assert answer.startswith(b"{")

        begun_s, cpu_s = time.monotonic(), time.process_time()
        async with asyncio.TaskGroup() as group:
            for _ in range(in_flight):
                group.create_task(work())
        return {
            "cpu_s": time.process_time() - cpu_s,
            "wall_s": time.monotonic() - begun_s,
            "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        }


if __name__ == "__main__":
    kind, url, calls, in_flight = sys.argv[1:]
    print(json.dumps(uvloop.run(drive(kind, url, int(calls), int(in_flight)))))
