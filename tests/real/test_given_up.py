"""Calls that are given up at any moment, and transports that are closed: nothing is left behind."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from redline.calls import Call, Endpoint, HttpBackend, Request
from redline.calls.wire import Connection, Outbox, Timing, Transport, pool
from redline.clock import SYSTEM
from redline.errors import Disconnected
from redline.limits import Limits
from support.asking import Asked, Asker, wire
from support.catching import assert_caught
from support.raw_server import RawServer, Seen, answer
from support.until import until

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("no_proxy"), pytest.mark.timeout(60)]

Run = Callable[[Coroutine[Any, Any, None]], None]
THROUGH_ASYNCIO = pytest.mark.parametrize("run", ["asyncio"], indirect=True)


async def echo(seen: Seen, writer: asyncio.StreamWriter) -> None:
    writer.write(answer(seen.target.encode()))


def chat(text: str) -> bytes:
    return b'{"choices":[{"message":{"content":"%b"}}]}' % text.encode()


def request(number: int) -> Request:
    return Request(body={"number": number})


def test_a_call_that_waits_to_be_written_once_more_is_not_on_the_wire(run: Run) -> None:
    """A run that is drained cancels the calls that are not on the wire."""

    async def handle(seen: Seen, writer: asyncio.StreamWriter) -> None:
        if len(server.seen) == 2:
            backend.limiter.park(SYSTEM.now_s() + 60)
            writer.close()
            return
        writer.write(answer(chat("a")))

    async def main() -> None:
        nonlocal server, backend
        async with RawServer(handle) as server:
            limits = Limits(requests="10/60s", profile="fixed")
            backend = HttpBackend(Endpoint(base_url=server.base_url, limits=limits))
            assert (await backend.send(request(1), Call())).is_success
            call = Call()
            repeated = asyncio.create_task(backend.send(request(2), call))
            await until(lambda: len(server.seen) == 2 and backend.limiter.waiting == 1)
            assert call.sent_s is None
            repeated.cancel()
            with pytest.raises(asyncio.CancelledError):
                await repeated
            assert len(server.seen) == 2
            assert backend.slots.in_use == backend.limiter.waiting == 0
            await backend.aclose()

    server: Any = None
    backend: Any = None
    run(main())


def test_a_transport_that_is_closed_connects_no_more(run: Run) -> None:
    async def main() -> None:
        async with RawServer(echo) as server:
            async with Asker(server.base_url) as asker:
                await asker.ask(wire("/1"))
                due = asyncio.create_task(asker.ask(wire("/2")))
                # The request is due at the end of this turn, and its connection is closed in it.
                await asyncio.sleep(0)
                assert not due.done()
                await asker.transport.aclose()
                with pytest.raises(Disconnected):
                    await due
                with pytest.raises(Disconnected):
                    await asker.ask(wire("/3"))
            assert [seen.target for seen in server.seen] == ["/1"]
            assert server.connections == 1

    run(main())


def test_a_connection_that_is_made_while_the_transport_is_closed_is_closed_too(run: Run) -> None:
    async def main() -> None:
        async with RawServer(echo) as server:
            async with Asker(server.base_url) as asker:
                connecting = asyncio.create_task(asker.ask(wire("/1")))
                await asyncio.sleep(0)
                await asker.transport.aclose()
                with pytest.raises(Disconnected):
                    await connecting
            await server.closed()
            assert server.seen == []

    run(main())


def test_waiting_for_a_grant_does_not_renew_the_time_that_a_connection_may_be_idle(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "KEEP_ALIVE_S", 0.2)

    async def main() -> None:
        async with RawServer(echo) as server:
            transport = Transport(Endpoint(base_url=server.base_url), SYSTEM, lambda _: None)
            asker = Asker(server.base_url)

            def asked(gate: asyncio.Event | None) -> Asked:
                head = transport.head("GET", "/x", {}, None)
                return Asked(Timing(asker.timeouts, SYSTEM), head=head, gate=gate)

            await transport.exchange(asked(None))
            async with asyncio.timeout(5):
                # The second is made because the first one was closed.
                while server.connections == 1:
                    waiting = asyncio.create_task(transport.exchange(asked(asyncio.Event())))
                    await asyncio.sleep(0.03)
                    waiting.cancel()
                    await asyncio.sleep(0.001)
            await transport.aclose()

    run(main())


def test_bytes_that_nothing_asked_for_are_found_beside_a_lost_connection(run: Run) -> None:
    """The system gives the number of a lost connection's socket to the next one."""

    async def handle(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        writer.write(answer(seen.target.encode()))

    async def main() -> None:
        async with RawServer(handle) as server:
            endpoint = Endpoint(base_url=server.base_url)

            def stray() -> None:
                # Before the writes of a turn, so that the loop cannot have read it.
                while strays:
                    os.write(strays.pop(), answer(b"stray"))
                    time.sleep(0.05)

            transport = Transport(endpoint, SYSTEM, lambda _: None, outbox=Outbox(stray))
            strays, granted = list[int](), asyncio.Event()

            def ask(name: str, gate: asyncio.Event | None = None) -> asyncio.Task[bytes]:
                head = transport.head("POST", name, {}, b"")
                asked = Asked(Timing(endpoint.timeouts, SYSTEM), head=head, gate=gate)

                async def body() -> bytes:
                    return (await transport.exchange(asked)).body

                return asyncio.create_task(body())

            assert await ask("/1") == b"/1"
            waiting = ask("/waits", granted)
            await asyncio.sleep(0.05)
            # The connection with which it waits is lost, and another one is made and kept.
            writers[0].close()
            await asyncio.sleep(0.05)
            assert await ask("/2") == b"/2"
            strays.append(writers[1].get_extra_info("socket").fileno())
            asking = ask("/3")
            granted.set()
            async with asyncio.timeout(5):
                assert await asking == b"/3"
                assert await waiting == b"/waits"
            await transport.aclose()

    writers: list[asyncio.StreamWriter] = []
    run(main())


class Interrupted(BaseException):
    """What a signal raises in code that blocks the event loop."""


@pytest.mark.parametrize("place", ["before the writes", "after a slow flush", "in a write"])
def test_an_interrupted_write_leaves_no_other_without_an_answer(run: Run, place: str) -> None:
    async def main() -> None:
        is_armed = False

        def interrupted() -> None:
            nonlocal is_armed
            if is_armed:
                is_armed = False
                raise Interrupted

        def written(asked: Asked, sent_s: float) -> None:
            if place == "in a write":
                interrupted()

        class Blocked(Asked, eq=False):
            def was_due(self, due_s: float) -> None:
                super().was_due(due_s)
                if self.head.startswith(b"POST /2"):
                    interrupted()

        flushes = {
            "before the writes": interrupted,
            "after a slow flush": lambda: time.sleep(0.01),
            "in a write": lambda: None,
        }
        before = flushes[place]
        async with RawServer(echo) as server:
            endpoint = Endpoint(base_url=server.base_url)
            transport = Transport(endpoint, SYSTEM, lambda _: None, outbox=Outbox(before))

            async def ask(number: int) -> bytes:
                head = transport.head("POST", f"/{number}", {}, b"")
                asked = Blocked(Timing(endpoint.timeouts, SYSTEM, written), head=head)
                return (await transport.exchange(asked)).body

            await asyncio.gather(*[ask(number) for number in range(3)])
            is_armed = True
            async with asyncio.timeout(5):
                found = await asyncio.gather(
                    *[ask(number) for number in range(3)], return_exceptions=True
                )
            assert isinstance(found[0], Interrupted)
            assert found[1:] == [b"/1", b"/2"]
            await transport.aclose()

    run(main())


@THROUGH_ASYNCIO
def test_requests_of_two_endpoints_leave_together_if_they_share_an_outbox(run: Run) -> None:
    async def main() -> None:
        flushed = list[int]()
        async with RawServer(echo) as server:
            endpoint = Endpoint(base_url=server.base_url)
            outbox = Outbox(lambda: flushed.append(len(server.seen)))
            both = [Transport(endpoint, SYSTEM, lambda _: None, outbox=outbox) for _ in range(2)]

            async def ask(number: int) -> bytes:
                transport = both[number % 2]
                head = transport.head("POST", f"/{number}", {}, b"")
                asked = Asked(Timing(endpoint.timeouts, SYSTEM), head=head)
                return (await transport.exchange(asked)).body

            expected = [b"/%d" % number for number in range(6)]
            assert await asyncio.gather(*[ask(number) for number in range(6)]) == expected
            flushed.clear()
            # Their connections are up now.
            assert await asyncio.gather(*[ask(number) for number in range(6)]) == expected
            assert flushed == [6]
            for transport in both:
                await transport.aclose()

    run(main())


# Calls cancelled at random, while others go on over the same connections.


class Hasty(Connection):
    """Takes each connection for one that may carry another request."""

    def release(self) -> bool:
        super().release()
        return not self._is_lost


async def wait_turns(turns: int) -> None:
    for _ in range(turns):
        await asyncio.sleep(0)


async def cancel_at_random(seed: int) -> None:
    """Calls over few connections, of which every third is cancelled after some turns."""
    rng = random.Random(seed)

    async def handle(seen: Seen, writer: asyncio.StreamWriter) -> None:
        number = seen.json()["number"]  # type: ignore[index]
        data = answer(chat(f"answer {number}"))
        cut = random.Random(seed * 10_007 + number)
        for piece in (data,) if cut.random() < 0.5 else (data[:60], data[60:]):
            await wait_turns(cut.randrange(4))
            writer.write(piece)
            await writer.drain()

    async with RawServer(handle) as server:
        limits = Limits(requests=rng.choice(("500/1s", "100000/1s")), concurrency=4)
        limits = rng.choice((limits, Limits(concurrency=4)))
        backend = HttpBackend(Endpoint(base_url=server.base_url, limits=limits))

        async def one(number: int) -> None:
            await wait_turns(rng.randrange(30))
            task = asyncio.create_task(backend.send(request(number), Call()))
            if rng.random() < 0.35:
                await wait_turns(rng.randrange(40))
                task.cancel()
            try:
                outcome = await task
            except asyncio.CancelledError:
                return
            assert outcome.error is None, outcome.error
            assert outcome.output == f"answer {number}", "the answer of another call"

        try:
            async with asyncio.timeout(30), asyncio.TaskGroup() as group:
                for number in range(60):
                    group.create_task(one(number))
            assert backend.slots.in_use == 0
            assert backend.limiter.waiting == 0
            # All places are there: as many calls as slots go on at once.
            outcomes = await asyncio.gather(*[backend.send(request(n), Call()) for n in range(8)])
            assert [outcome.output for outcome in outcomes] == [f"answer {n}" for n in range(8)]
        finally:
            await backend.aclose()
        async with asyncio.timeout(5):
            await server.closed()


@pytest.mark.parametrize("seed", range(8))
def test_cancelled_calls_leave_nothing_and_take_nothing_from_others(run: Run, seed: int) -> None:
    run(cancel_at_random(seed))


@THROUGH_ASYNCIO
def test_a_connection_of_a_cancelled_call_that_is_used_again_is_noticed(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(kind: type[Connection]) -> None:
        monkeypatch.setattr(pool, "Connection", kind)
        # Whether a wrong answer is met depends on the system's turns, so it has many chances.
        for seed in range(4 if kind is Connection else 60):
            try:
                run(cancel_at_random(seed))
            except* AssertionError as found:
                raise AssertionError from found

    assert_caught(check, Connection, Hasty)
