"""Pages of real servers, in virtual time: whatever they send costs no more than their figures."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import pytest

from redline.calls import Call, Endpoint, Request, Retry
from redline.errors import NoEndpoint
from redline.route import Pool, ServerFigures, seat_of, strategy_of
from redline.route.pages import MOST_BYTES, Pages
from redline.testing import VirtualClock, virtual_run
from support.raw_server import RawServer, Seen, answer, chat

FIGURES = b"vllm:num_requests_running 2\nvllm:num_requests_waiting 1\n"
Handler = Callable[[Seen, asyncio.StreamWriter], Awaitable[None]]


def clock() -> VirtualClock:
    return VirtualClock(asyncio.get_running_loop())


async def drip(seen: Seen, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
    while True:
        writer.write(b"v")
        await asyncio.sleep(0.5)


async def endless(seen: Seen, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        writer.write(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")
        await writer.drain()


async def silent(seen: Seen, writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(10_000)


def always(data: bytes) -> Handler:
    async def send(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(data)

    return send


HOSTILE = {
    "slow": drip,
    "endless": endless,
    "silent": silent,
    "too long": always(answer(FIGURES + b"x" * MOST_BYTES)),
    "html": always(answer(b"<html>hello</html>")),
    "404": always(answer(FIGURES, status=404)),
    "500": always(answer(FIGURES, status=500)),
    "redirect": always(answer(b"", status=302, Location="http://127.0.0.1:1/metrics")),
    "no http": always(b"vllm:num_requests_running 2\r\n\r\n"),
    "nan": always(answer(FIGURES.replace(b"2", b"NaN"))),
}


@pytest.mark.parametrize("handle", HOSTILE.values(), ids=HOSTILE)
def test_a_page_that_is_no_good_has_no_figures_and_takes_a_bounded_time(handle: Handler) -> None:
    async def main() -> None:
        async with RawServer(handle) as server:
            endpoint = Endpoint(base_url=server.base_url, proxy="", metrics=True)
            pages, since_s = Pages(endpoint, clock()), clock().now_s()
            assert await pages.figures() is None
            assert clock().now_s() - since_s < 5
            await pages.aclose()

    virtual_run(main())


@pytest.mark.parametrize(
    ("health", "models", "is_well"),
    [(200, 200, True), (503, 200, False), (500, 200, False), (404, 200, True), (404, 500, False),
     (404, 404, True), (401, 200, True), (204, 500, True), (202, 500, True)],
)  # fmt: skip
def test_a_server_is_well_by_its_health_page_or_its_models(
    health: int, models: int, is_well: bool
) -> None:
    async def handle(seen: Seen, writer: asyncio.StreamWriter) -> None:
        status = {"/health": health, "/v1/models": models}[seen.target]
        writer.write(answer(b"", status=status))

    async def main() -> None:
        async with RawServer(handle) as server:
            pages = Pages(Endpoint(base_url=server.base_url, proxy="", probe=True), clock())
            assert [await pages.is_well() for _ in range(3)] == [is_well] * 3
            # A page that the server lacks is asked for once.
            assert sum(seen.target == "/health" for seen in server.seen) == (
                1 if health == 404 else 3
            )
            # One connection serves all of them.
            assert server.connections == 1
            await pages.aclose()

    virtual_run(main())


def test_a_server_that_takes_no_connection_is_not_well() -> None:
    async def main() -> None:
        async with RawServer(silent) as server:
            endpoint = Endpoint(base_url=server.base_url, proxy="", probe=True)
        pages = Pages(endpoint, clock())
        # Also after an endpoint out of reach would have been given up.
        for _ in range(10):
            assert not await pages.is_well()
            await asyncio.sleep(1.0)
        await pages.aclose()

    virtual_run(main())


def test_the_key_goes_to_the_endpoint_and_to_no_other_server() -> None:
    async def main() -> None:
        page = always(answer(FIGURES))
        async with RawServer(page) as server, RawServer(page) as other:
            root = server.base_url.removesuffix("/v1")
            for stated in (True, "/m?a=b", f"{root}/m", f"{other.base_url}/m"):
                endpoint = Endpoint(
                    base_url=server.base_url,
                    api_key="secret",
                    headers={"X-Api-Key": "secret"},
                    proxy="",
                    metrics=stated,
                )
                pages = Pages(endpoint, clock())
                assert await pages.figures() == ServerFigures(2, 1)
                await pages.aclose()
            assert [seen.target for seen in server.seen] == ["/metrics", "/m?a=b", "/m"]
            assert all("secret" in str(seen.headers) for seen in server.seen)
            assert [seen.target for seen in other.seen] == ["/v1/m"]
            assert "secret" not in str(other.seen[0].headers)

    virtual_run(main())


@pytest.mark.parametrize("balance", ["p2c", "prefix"])
def test_a_pool_reads_pages_between_its_calls_and_leaves_nothing(balance: str) -> None:
    async def handle(seen: Seen, writer: asyncio.StreamWriter) -> None:
        if seen.target == "/metrics":
            writer.write(answer(FIGURES))
        elif seen.target == "/health":
            writer.write(answer(b"{}"))
        else:
            await asyncio.sleep(0.5)
            writer.write(answer(chat("yes")))

    async def main() -> None:
        async with AsyncExitStack() as stack:
            servers = [await stack.enter_async_context(RawServer(handle)) for _ in range(2)]
            endpoints = [
                Endpoint(base_url=one.base_url, name=f"e{n}", proxy="", metrics=True, probe=True)
                for n, one in enumerate(servers)
            ]
            seats = [seat_of(one, clock=clock()) for one in endpoints]
            pool = Pool(seats, strategy_of(balance, random.Random(1)), clock=clock(), seed=1)
            for number in range(20):
                request = Request(body={"model": "m", "user": str(number), "messages": []})
                assert (await pool.send(request, Call())).is_success
            for member in pool.members:
                assert (member.queued, member.foreign) == (1, 2) or (member.foreign == 3)
                assert clock().now_s() - member.seen_s < 2
            for server in servers:
                asked = [seen.target for seen in server.seen]
                assert 9 <= asked.count("/metrics") <= 11
                assert 9 <= asked.count("/health") <= 11
            await pool.aclose()
            async with asyncio.timeout(5):
                for server in servers:
                    await server.closed()
            await asyncio.sleep(3.0)
            assert len(asyncio.all_tasks()) == 1

    virtual_run(main())


def test_a_server_whose_first_page_is_well_gets_all_calls_at_once() -> None:
    async def handle(seen: Seen, writer: asyncio.StreamWriter) -> None:
        if seen.target != "/health":
            await asyncio.sleep(4.0)
        writer.write(answer(chat("yes")))

    async def main() -> None:
        async with RawServer(handle) as server:
            endpoint = Endpoint(base_url=server.base_url, proxy="", probe=True)
            seats = [seat_of(endpoint, clock=clock())]
            pool = Pool(seats, strategy_of("p2c", random.Random(1)), clock=clock(), seed=1)
            request, begun_s = Request(body={"model": "m", "messages": []}), clock().now_s()
            outcomes = await asyncio.gather(*(pool.send(request, Call()) for _ in range(16)))
            assert all(outcome.is_success for outcome in outcomes)
            assert clock().now_s() - begun_s < 5
            await pool.aclose()

    virtual_run(main())


def test_servers_none_of_which_answers_end_the_calls_soon_though_they_are_probed() -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            servers = [await stack.enter_async_context(RawServer(silent)) for _ in range(2)]
        seats = [
            seat_of(
                Endpoint(base_url=one.base_url, name=f"e{n}", proxy="", probe=True), clock=clock()
            )
            for n, one in enumerate(servers)
        ]
        pool = Pool(seats, strategy_of("p2c", random.Random(1)), clock=clock(), seed=1)
        backend, begun_s = Retry(pool, clock=clock(), seed=1), clock().now_s()
        request = Request(body={"model": "m", "messages": []})
        outcomes = await asyncio.gather(*(backend.send(request, Call()) for _ in range(8)))
        assert {type(outcome.error) for outcome in outcomes} == {NoEndpoint}
        assert 5 <= clock().now_s() - begun_s < 10
        await pool.aclose()

    virtual_run(main())
