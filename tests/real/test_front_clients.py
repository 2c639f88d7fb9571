"""Clients of the front that leave, do not read, are too many, or are there when it closes."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec
import pytest

from redline.calls import Call, Endpoint, FunctionBackend, HttpBackend, Outcome, Reply, Request
from redline.calls.wire import ReplyMemory
from redline.serve.http import Bounds, door, front
from redline.sim import SimSettings
from redline.sim.server import Sim
from redline.testing import ScriptedBackend
from support.fronting import BODY, STREAM, Told, ask, port_of, read_until_broken, root, serving
from support.raw_server import RawServer, Seen, answer, chat
from support.until import until

Run = Callable[[Coroutine[Any, Any, None]], None]

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("no_proxy")]
BRIEF = Bounds(grace_s=0.05)
CHUNK = "x" * 65_536


# Clients that leave.


def test_who_leaves_ends_the_call(run: Run) -> None:
    async def main() -> None:
        for body, backend in ((BODY, Told()), (STREAM, Told()), (STREAM, Told("a"))):
            async with (
                front.Front(backend, bounds=BRIEF) as served,
                aiohttp.ClientSession() as session,
            ):
                asking = asyncio.create_task(ask(served, session, body))
                await until(lambda b=backend: b.in_flight == 1)
                asking.cancel()
                await asyncio.wait([asking])
                await until(lambda b=backend: b.cancelled == 1, within_s=1.0)
                await until(lambda s=served: s.in_flight == 0)

    run(main())


def test_who_leaves_in_the_middle_of_a_stream_ends_the_call(run: Run) -> None:
    async def main() -> None:
        backend = Told("a", "b")
        async with serving(backend) as (served, session):
            async with session.post(f"{served.base_url}/chat/completions", json=STREAM) as reply:
                await reply.content.readuntil(b"\n\n")
            await until(lambda: backend.cancelled == 1, within_s=1.0)
            await until(lambda: served.in_flight == 0)

    run(main())


def test_who_leaves_ends_the_call_at_the_provider_too(run: Run) -> None:
    async def main() -> None:
        settings = SimSettings(per_token_s=60.0)
        async with Sim(settings) as sim:
            backend = HttpBackend(Endpoint(base_url=sim.base_url))
            async with serving(backend) as (served, session):
                for body in (BODY, STREAM):
                    seen = sim.stats()["abandoned"]
                    asking = asyncio.create_task(ask(served, session, body))
                    await until(lambda: sim.stats()["in_flight"] == 1)
                    asking.cancel()
                    await asyncio.wait([asking])
                    await until(lambda seen=seen: sim.stats()["abandoned"] == seen + 1)
                assert backend.slots.in_use == 0
            await backend.aclose()

    run(main())


def test_who_only_stops_sending_has_left(run: Run) -> None:
    async def main() -> None:
        backend = Told()
        async with serving(backend) as (served, _):
            _, writer = await asyncio.open_connection("127.0.0.1", port_of(served))
            writer.write(raw_request(BODY))
            await until(lambda: backend.in_flight == 1)
            writer.write_eof()
            await until(lambda: backend.cancelled == 1)
            writer.close()
            await writer.wait_closed()

    run(main())


# Clients that do not read.


def raw_request(body: Any) -> bytes:
    raw = msgspec.json.encode(body)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(raw)}\r\n\r\n"
    return head.encode() + raw


@asynccontextmanager
async def unread(port: int, body: Any) -> AsyncIterator[socket.socket]:
    """A client that has asked and reads nothing by itself."""
    loop = asyncio.get_running_loop()
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        client.setblocking(False)
        await loop.sock_connect(client, ("127.0.0.1", port))
        await loop.sock_sendall(client, raw_request(body))
        yield client


def test_a_reader_sets_the_pace(run: Run) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        # 32 MiB, of which the buffers on the way hold a few.
        backend = Told(*[CHUNK] * 512)
        async with front.Front(backend, bounds=BRIEF) as served:
            async with unread(port_of(served), STREAM) as client:
                await until(lambda: backend.put > 0)
                held = -1
                while held != backend.put:
                    held = backend.put
                    await asyncio.sleep(0.1)
                assert 0 < held < 256
                while backend.put == held:
                    await loop.sock_recv(client, 2**20)
            await until(lambda: backend.cancelled == 1)

    run(main())


def test_a_stream_that_is_not_read_is_cut_off(run: Run) -> None:
    async def main() -> None:
        backend = Told(*[CHUNK] * 512)
        async with (
            serving(backend, bounds=Bounds(unread_s=0.05)) as (served, _),
            unread(port_of(served), STREAM),
        ):
            await until(lambda: backend.cancelled == 1)
            await until(lambda: served.in_flight == 0)

    run(main())


def test_an_answer_that_is_not_read_is_cut_off(run: Run) -> None:
    async def main() -> None:
        reply = Reply(body=b"x" * 32_000_000)
        backend = ScriptedBackend([reply])
        async with (
            serving(backend, bounds=Bounds(unread_s=0.05)) as (served, _),
            unread(port_of(served), BODY),
        ):
            await until(lambda: len(backend.sends) == 1)
            await until(lambda: served.in_flight == 0)

    run(main())


# Clients that are too many.


def test_no_more_at_once_than_allowed(run: Run) -> None:
    async def main() -> None:
        backend = Told()
        bounds = Bounds(most_requests=2, grace_s=0.05)
        async with (
            front.Front(backend, bounds=bounds) as served,
            aiohttp.ClientSession() as session,
        ):
            asking = [asyncio.create_task(ask(served, session)) for _ in range(2)]
            await until(lambda: backend.in_flight == 2)
            third = asyncio.create_task(ask(served, session))
            await until(lambda: third.done() or backend.in_flight == 3)
            assert third.done()
            status, body, headers = await third
            assert (status, body["error"]["code"]) == (503, "overloaded")
            assert headers["retry-after"] == "1"
            async with session.get(f"{root(served)}/health") as reply:
                assert reply.status == 200
            backend.go.set()
            assert [(await each)[0] for each in asking] == [200, 200]
            assert (await ask(served, session))[0] == 200

    run(main())


def test_a_long_answer_counts_until_its_client_has_it(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[int] = []
    hold, drop = ReplyMemory.hold, ReplyMemory.drop

    def noted(self: ReplyMemory, size_bytes: int) -> Any:
        held.append(size_bytes)
        return hold(self, size_bytes)

    def dropped(self: ReplyMemory, size_bytes: int) -> None:
        held.append(-size_bytes)
        drop(self, size_bytes)

    monkeypatch.setattr(ReplyMemory, "hold", noted)
    monkeypatch.setattr(ReplyMemory, "drop", dropped)

    async def handle(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(answer(chat("x" * 100_000)))

    async def main() -> None:
        async with RawServer(handle) as server:
            backend = HttpBackend(Endpoint(base_url=server.base_url))
            try:
                async with front.Front(backend) as served, aiohttp.ClientSession() as session:
                    assert (await ask(served, session))[0] == 200
                    await until(lambda: served.in_flight == 0)
                    assert max(held) > 100_000
                    assert sum(held) == 0
            finally:
                await backend.aclose()

    run(main())


# Clients that are there when it closes.


@pytest.fixture(autouse=True)
def few_last_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spares the tests most of the wait for clients that do not read."""
    monkeypatch.setattr(door, "_LAST_WORDS_S", 0.2)


def test_what_is_in_flight_may_end_and_nothing_new_begins(run: Run) -> None:
    async def main() -> None:
        backend = Told("a")
        served = front.Front(backend)
        await served.start()
        async with aiohttp.ClientSession() as session:
            url = f"{served.base_url}/chat/completions"
            # A second connection, which is kept.
            waiting = [asyncio.create_task(ask(served, session, body)) for body in (BODY, BODY)]
            await until(lambda: backend.in_flight == 2)
            backend.go.set()
            await asyncio.gather(*waiting)
            backend.go.clear()
            stream = await session.post(url, json=STREAM)
            await until(lambda: backend.in_flight == 1)
            closing = asyncio.create_task(served.aclose())
            await asyncio.sleep(0)
            status, body, headers = await ask(served, session)
            assert (status, body["error"]["code"]) == (503, "shutting_down")
            assert headers["connection"] == "close"
            with pytest.raises(aiohttp.ClientConnectorError):
                await ask(served, session)
            assert not closing.done()
            backend.go.set()
            assert (await stream.read()).endswith(b"data: [DONE]\n\n")
            await closing
        assert (served.in_flight, backend.cancelled) == (0, 0)

    run(main())


def test_an_answer_given_while_it_closes_ends_its_connection(run: Run) -> None:
    async def main() -> None:
        backend = Told()
        served = front.Front(backend)
        await served.start()
        async with aiohttp.ClientSession() as session:
            asking = asyncio.create_task(ask(served, session))
            await until(lambda: backend.in_flight == 1)
            closing = asyncio.create_task(served.aclose())
            await asyncio.sleep(0)
            backend.go.set()
            status, _, headers = await asking
            assert (status, headers["connection"]) == (200, "close")
            await closing

    run(main())


def test_what_does_not_end_in_time_is_told_so(run: Run) -> None:
    async def main() -> None:
        backend = Told("a")
        served = front.Front(backend, bounds=BRIEF)
        await served.start()
        async with aiohttp.ClientSession() as session:
            url = f"{served.base_url}/chat/completions"
            asking = asyncio.create_task(ask(served, session))
            stream = await session.post(url, json=STREAM)
            reading = asyncio.create_task(read_until_broken(stream))
            late = await asyncio.open_connection("127.0.0.1", port_of(served))
            late[1].write(raw_request(BODY)[:-1])
            await until(lambda: served.in_flight == 3)
            await served.aclose()
            status, body, _ = await asking
            assert (status, body["error"]["code"]) == (503, "shutting_down")
            assert (await late[0].read()).startswith(b"HTTP/1.1 503 ")
            raw = await reading
            assert b"shutting_down" in raw
            assert b"[DONE]" not in raw
            late[1].close()
            await late[1].wait_closed()
        assert (served.in_flight, backend.cancelled) == (0, 2)

    run(main())


@pytest.mark.parametrize("body", [BODY, STREAM])
def test_a_client_that_does_not_read_does_not_hold_it_up(run: Run, body: Any) -> None:
    async def main() -> None:
        backend: Any = Told(*[CHUNK] * 512)
        if body is BODY:
            backend = ScriptedBackend([Reply(body=b"x" * 32_000_000)])
        served = front.Front(backend, bounds=BRIEF)
        await served.start()
        async with unread(port_of(served), body):
            await until(lambda: served.in_flight == 1)
            await served.aclose()
        assert served.in_flight == 0

    run(main())


def test_a_backend_that_is_deaf_does_not_hold_it_up(run: Run) -> None:
    async def main() -> None:
        backend = Told(deaf_to=3)
        served = front.Front(backend, bounds=BRIEF)
        await served.start()
        async with aiohttp.ClientSession() as session:
            asking = asyncio.create_task(ask(served, session))
            await until(lambda: backend.in_flight == 1)
            await served.aclose()
            with pytest.raises(aiohttp.ClientError):
                await asking
        backend.go.set()
        await until(lambda: served.in_flight == 0)

    run(main())


def test_a_timeout_of_the_backends_own_is_not_taken_for_the_end(run: Run) -> None:
    class Broken(Told):
        async def send(self, request: Request, call: Call, sink: Any = None) -> Outcome:
            raise TimeoutError

    async def main() -> None:
        async with (
            serving(Broken()) as (served, session),
            session.post(f"{served.base_url}/chat/completions", json=BODY) as reply,
        ):
            # A backend raises nothing, so this one is broken.
            assert reply.status == 500

    run(main())


def test_idle_connections_end_with_it(run: Run) -> None:
    async def main() -> None:
        async def hi(_: Any) -> str:
            return "hi"

        served = front.Front(FunctionBackend(hi), bounds=Bounds(grace_s=3600.0))
        await served.start()
        async with aiohttp.ClientSession() as session:
            assert (await ask(served, session))[0] == 200
            reader, writer = await asyncio.open_connection("127.0.0.1", port_of(served))
            writer.write(b"HEAD /health HTTP/1.1\r\nHost: x\r\n\r\n")
            await reader.readuntil(b"\r\n\r\n")
            await served.aclose()
            assert await reader.read() == b""
            writer.close()
            await writer.wait_closed()

    run(main())
