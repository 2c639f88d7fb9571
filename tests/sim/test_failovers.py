"""Failovers after a request was written: those that may have been billed twice are counted."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack

import pytest

from redline.calls import Call, Endpoint, HttpBackend, Request, Retry
from redline.limits import Limits
from redline.route import Pool, Seat, strategy_of
from redline.testing import VirtualClock, virtual_run
from redline.waist import Attempts, Outcome
from support.raw_server import Handler, RawServer, Seen, answer, chat

CALLS = 4


async def works(seen: Seen, writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(1.0)
    writer.write(answer(chat("yes")))


def fails(status: int, **headers: str) -> Handler:
    async def handle(seen: Seen, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(1.0)
        writer.write(answer(b"{}", status=status, **headers))

    return handle


async def garbles(seen: Seen, writer: asyncio.StreamWriter) -> None:
    writer.write(answer(b"<html>"))


async def resets(seen: Seen, writer: asyncio.StreamWriter) -> None:
    writer.close()


def pool_of(servers: Sequence[RawServer], attempts: Attempts) -> Pool:
    """Each gets its calls in turn."""
    clock = VirtualClock(asyncio.get_running_loop())

    def seat(number: int, server: RawServer) -> Seat:
        endpoint = Endpoint(
            base_url=server.base_url,
            name=f"key-{number}",
            limits=Limits(concurrency=2 * CALLS),
            proxy="",
        )

        def make(on_room: Callable[[], None]) -> HttpBackend:
            return HttpBackend(endpoint, attempts=attempts, on_room=on_room, clock=clock)

        return Seat(name=endpoint.label, make=make)

    seats = [seat(number, server) for number, server in enumerate(servers)]
    return Pool(seats, strategy_of("round_robin", random.Random(1)), clock=clock, seed=1)


async def send(pool: Pool, calls: int) -> list[Outcome]:
    """The outcomes of so many calls at once."""
    backend = Retry(pool, clock=VirtualClock(asyncio.get_running_loop()), seed=1)
    request = Request(body={"model": "m", "messages": []})
    return await asyncio.gather(*(backend.send(request, Call()) for _ in range(calls)))


def failovers(*handlers: Handler) -> tuple[int, int]:
    """The failovers and the retries of CALLS calls at once to servers that answer so."""

    async def main() -> tuple[int, int]:
        attempts = Attempts()
        async with AsyncExitStack() as stack:
            servers = [await stack.enter_async_context(RawServer(each)) for each in handlers]
            pool = pool_of(servers, attempts)
            outcomes = await send(pool, CALLS)
            await pool.aclose()
        assert all(outcome.is_success for outcome in outcomes)
        return attempts.failovers, attempts.retries

    return virtual_run(main())


@pytest.mark.parametrize("handle", [fails(500), fails(503), garbles, resets])
def test_a_call_that_failed_once_written_may_be_billed_at_both_endpoints(handle: Handler) -> None:
    assert failovers(handle, works) == (CALLS // 2, CALLS // 2)


@pytest.mark.parametrize("handle", [fails(429), fails(429, Retry_After="5"), fails(401)])
def test_what_an_endpoint_refuses_it_does_not_bill(handle: Handler) -> None:
    assert failovers(handle, works) == (0, CALLS // 2)


def test_calls_that_succeed_at_once_count_nothing() -> None:
    assert failovers(works, works) == (0, 0)


def test_a_retry_at_the_same_endpoint_is_no_failover() -> None:
    asked = 0

    async def fails_first(seen: Seen, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        writer.write(answer(chat("yes"), status=500 if asked <= CALLS else 200))

    assert failovers(fails_first) == (0, CALLS)


def test_one_call_counts_for_each_endpoint_that_follows() -> None:
    # The first two get half of the calls; the second also what failed at the first, or the reverse.
    counted, retries = failovers(fails(500), fails(500), works)
    assert counted == retries > CALLS // 2


def test_an_endpoint_that_refuses_what_another_may_have_billed_makes_it_no_third_time() -> None:
    at = list[str]()

    def seen_at(name: str, handle: Handler) -> Handler:
        async def noted(seen: Seen, writer: asyncio.StreamWriter) -> None:
            at.append(name)
            await handle(seen, writer)

        return noted

    async def limits(seen: Seen, writer: asyncio.StreamWriter) -> None:
        # It answers its first call, so that it gets another one.
        await (works if at.count("limits") == 1 else fails(429))(seen, writer)

    counted, _ = failovers(seen_at("fails", fails(500)), seen_at("limits", limits), works)
    # One that failed went on to the one that limits, and from there to the last.
    assert at.count("limits") > CALLS // 3
    assert counted == at.count("fails") > 0


def test_a_write_that_a_kept_connection_lost_may_be_billed_whatever_the_second_one_ends_with() -> (
    None
):
    async def main() -> None:
        attempts, asked = Attempts(), 0

        async def loses(seen: Seen, writer: asyncio.StreamWriter) -> None:
            nonlocal asked
            asked += 1
            if asked == 1:
                writer.write(answer(chat("yes")))
            elif asked == 2:
                writer.close()
            else:
                writer.write(answer(b"{}", status=429))

        async with RawServer(loses) as losing, RawServer(works) as other:
            pool = pool_of([losing, other], attempts)
            await send(pool, 2)
            (first, second) = await send(pool, 2)
            await pool.aclose()
        assert first.is_success
        assert second.is_success
        assert (asked, attempts.failovers) == (3, 1)

    virtual_run(main())


def test_a_write_on_a_kept_connection_counts_although_no_retry_reached_its_server() -> None:
    """A server that is killed with calls in flight; the pool moves them, not a retry."""

    async def main() -> None:
        attempts = Attempts()
        async with RawServer(works) as dying, RawServer(works) as other:
            pool = pool_of([dying, other], attempts)
            # Each has connections that have carried a call.
            assert all(one.is_success for one in await send(pool, CALLS))
            sending = asyncio.create_task(send(pool, CALLS))
            await asyncio.sleep(0.5)
            had = len(dying.seen) - CALLS // 2
            await dying.stop()
            outcomes = await sending
            await pool.aclose()
        assert {(one.is_success, one.endpoint) for one in outcomes} == {(True, "key-1")}
        assert [one.attempts for one in outcomes] == [1] * CALLS
        assert attempts.failovers == had == CALLS // 2

    virtual_run(main())
