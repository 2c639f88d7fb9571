"""Hostile clients of `sim`, of a front and of `redline sim` as a program.

test_engine.py has those of `redline engine`.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import pytest

from redline.calls import Reply
from redline.httpserver import HttpBounds
from redline.serve.http import Front
from redline.sim import SimSettings
from redline.sim.server import Sim
from redline.testing import ScriptedBackend
from support.http_peer import Peer
from support.smuggling import CHUNKED, ENDLESS, NEXT, REFUSED, TAKEN, post

pytestmark = [pytest.mark.real, pytest.mark.timeout(60)]

CHAT = json.dumps(
    {"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 1}
).encode()
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
GOOD = HEAD % len(CHAT) + CHAT
# Zeros, more of them than the front takes; sim takes them, and finds no JSON.
BOMB = gzip.compress(bytes(40 * 2**20), 1, mtime=0)
PROGRAM = "import sys; from redline.cli import main; main(['sim', *sys.argv[1:]])"


def port_of(url: str) -> int:
    return int(url.removesuffix("/v1").rpartition(":")[2])


@asynccontextmanager
async def peer(port: int) -> AsyncIterator[Peer]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield Peer(reader, writer)
    finally:
        writer.close()
        try:
            await writer.wait_closed()
        except ConnectionError:
            pass


async def attack(port: int) -> None:
    """All that hostile clients send; the server must answer the next client as ever."""
    await refused(port)
    await taken(port)
    await compressed(port)
    await cut_short(port)
    await unread(port)
    async with peer(port) as client:
        for _ in range(3):
            assert (await client.ask(GOOD)).status == 200


async def refused(port: int) -> None:
    """Requests that are refused, alone and behind a good one; what follows is not answered."""
    for name, data in {**REFUSED, **ENDLESS}.items():
        for before in (b"", GOOD):
            async with peer(port) as client:
                sending = asyncio.create_task(client.send(before + data + NEXT))
                if before:
                    assert (await client.answer()).status == 200, name
                found = await client.answer()
                # Those with a path that does not exist may be refused for that first.
                assert 400 <= found.status <= 505, name
                assert found.headers["connection"] == "close", name
                assert await client.rest() == b"", name
                await asyncio.wait([sending])
                # The server may have closed before all was sent.
                assert isinstance(sending.exception(), ConnectionError | None), name


async def taken(port: int) -> None:
    """Odd requests that are right: each has one answer, and so has the next."""
    for name, (data, method, *_) in TAKEN.items():
        async with peer(port) as client:
            found = await client.ask(data + GOOD, method)
            assert found.status in (200, 404, 405, 400), name
            if found.headers.get("connection") != "close":
                assert (await client.answer()).status == 200, name
    for path, status in (("/v1/models", 200), ("/nothing", 404)):
        async with peer(port) as client:
            ask = f"HEAD {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
            found = await client.ask(ask, "HEAD")
            assert (found.status, found.body) == (status, b""), path
            assert (await client.ask(GOOD)).status == 200, path


async def compressed(port: int) -> None:
    """A body that is small on the wire only, and one that is compressed twice."""
    for coding in (b"gzip", b"gzip, gzip"):
        lines = (b"Content-Encoding: %b\r\n" % coding, b"Content-Length: %d\r\n" % len(BOMB))
        ask = post(*lines, body=BOMB).replace(b"/first", b"/v1/chat/completions")
        async with peer(port) as client:
            found = await client.ask(ask)
            assert found.status in (400, 413, 415), coding
            if found.headers.get("connection") == "close":
                assert await client.rest() == b"", coding
            else:
                assert (await client.ask(GOOD)).status == 200, coding


async def cut_short(port: int) -> None:
    """Requests that end too early, by a close, by the end of sending, and by a reset."""
    expecting = GOOD.replace(b"Host: x", b"Host: x\r\nExpect: 100-continue")
    chunks = post(CHUNKED, body=b"5\r\nhello\r\n5\r\nhel")
    halves = (b"", b"G", GOOD[:-1], GOOD[:40], GOOD + GOOD[:40], GOOD * 100, bytes(300), chunks)
    for data in (*halves, expecting[: -len(CHAT)], expecting[:-1]):
        for end in ("close", "half-close", "reset"):
            async with peer(port) as client:
                client.writer.write(data)
                await asyncio.sleep(0)
                if end == "half-close":
                    client.writer.write_eof()
                    await client.reader.read()
                elif end == "reset":
                    client.writer.transport.abort()
    async with peer(port) as client:
        await client.send(expecting[: -len(CHAT)])
        assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        await client.send(CHAT)
        assert (await client.answer()).status == 200


async def unread(port: int) -> None:
    """A client that asks much and reads nothing, and one that sends byte by byte."""
    loop = asyncio.get_running_loop()
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        await loop.sock_connect(client, ("127.0.0.1", port))
        sending = asyncio.create_task(loop.sock_sendall(client, GOOD * 200_000))
        _, running = await asyncio.wait([sending], timeout=0.2)
        # It is not read without end.
        assert running
        sending.cancel()
        await asyncio.wait([sending])
    async with peer(port) as client:
        await client.send(GOOD, step=1)
        assert (await client.answer()).status == 200


METRICS = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
# What a late client sends at first, the bound on what it does not send, and what it goes on with.
LATE = (
    (b"G", "head_s", b""),
    (b"POST /v1/cha", "head_s", b" "),
    (GOOD[: GOOD.index(b"\r\nContent")], "head_s", b" "),
    (HEAD % 100, "body_s", b" "),
    (HEAD % 100 + b"{", "body_s", b""),
)


async def late(port: int) -> None:
    """Clients that never end a head or a body, or read nothing, are cut off; others are answered.

    That takes as long as `HttpBounds` says for a body.
    """
    clocks, loop = HttpBounds(), asyncio.get_running_loop()

    async def never_ends(data: bytes, most_s: float, drop: bytes) -> None:
        async with peer(port) as client, asyncio.timeout(most_s + 10):
            began_s = loop.time()
            await client.send(data)
            dripping = asyncio.create_task(drip(client, drop))
            found = await client.answer()
            dripping.cancel()
            assert (found.status, found.headers["connection"]) == (408, "close"), data
            assert loop.time() - began_s > most_s - 1, data

    async def drip(client: Peer, drop: bytes) -> None:
        while drop:
            await asyncio.sleep(3)
            client.writer.write(drop)

    async def reads_nothing() -> None:
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.setblocking(False)
            await loop.sock_connect(client, ("127.0.0.1", port))
            began_s = loop.time()
            async with asyncio.timeout(clocks.unread_s + 10):
                with suppress(ConnectionError):
                    while True:
                        await loop.sock_sendall(client, METRICS * 100)
            assert loop.time() - began_s > clocks.unread_s - 1

    async def asks_on() -> None:
        while True:
            async with peer(port) as client, asyncio.timeout(30):
                assert (await client.ask(GOOD)).status == 200
            await asyncio.sleep(1)

    async with asyncio.TaskGroup() as group:
        asking = group.create_task(asks_on())
        waiting = [group.create_task(reads_nothing())]
        for data, bound, drop in LATE:
            waiting.append(group.create_task(never_ends(data, getattr(clocks, bound), drop)))
        await asyncio.wait(waiting)
        asking.cancel()


async def settled(sim: Sim) -> dict[str, Any]:
    """The counters, once nothing is in flight."""
    while sim.stats()["in_flight"] or sim.connections:  # noqa: ASYNC110 - plain numbers
        await asyncio.sleep(0.002)
    return sim.stats()


async def test_sim_counts_every_request_of_hostile_clients_once() -> None:
    async with Sim(SimSettings()) as sim:
        await attack(port_of(sim.base_url))
        async with asyncio.timeout(20):
            shown = await settled(sim)
        classes = ("answered", "rejected", "faults", "refused", "overloaded", "abandoned")
        assert shown["received"] == sum(shown[name] for name in classes)
        assert shown["answered"] >= 3


async def test_the_front_answers_after_hostile_clients() -> None:
    backend = ScriptedBackend([Reply(output="hi")] * 2_000)
    async with Front(backend) as front:
        await attack(port_of(front.base_url))
        async with asyncio.timeout(20):
            while front.in_flight or front.connections:  # noqa: ASYNC110 - plain numbers
                await asyncio.sleep(0.002)


@contextmanager
def program() -> Iterator[int]:
    """The port of a `redline sim`, which says no more than it should and ends as it should."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "NO_COLOR": "1"},
    ) as process:
        assert process.stdout is not None
        try:
            yield port_of(process.stdout.readline().strip())
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=20)
        finally:
            process.kill()
    assert process.returncode == 0
    # What is simulated, and what was seen: no warning and no traceback.
    assert len(err.splitlines()) == 2, err


def test_the_program_outlives_hostile_clients() -> None:
    with program() as port:
        asyncio.run(attack(port))


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_the_program_cuts_off_late_clients() -> None:
    with program() as port:
        asyncio.run(late(port))
