"""Hostile clients of `sim`, of the engine's server, and of `redline sim` as a program."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from redline.calls import Reply
from redline.serve.http import Front
from redline.sim import SimSettings
from redline.sim.server import Sim
from redline.testing import ScriptedBackend
from support.http_peer import Peer
from support.smuggling import NEXT, REFUSED

pytestmark = [pytest.mark.real, pytest.mark.timeout(60)]

CHAT = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hello"}]}).encode()
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
GOOD = HEAD % len(CHAT) + CHAT
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
    """Sends every request that is to be refused, and others that end too early."""
    for name, data in REFUSED.items():
        async with peer(port) as client:
            await client.send(data + NEXT)
            found = await client.answer()
            # Those with a path that does not exist may be refused for that first.
            assert 400 <= found.status <= 505, name
            assert found.headers["connection"] == "close", name
            assert await client.rest() == b"", name
    for data in (b"", b"G", GOOD[:-1], GOOD[:40], GOOD + GOOD[:40], GOOD * 100, bytes(300)):
        for is_reset in (False, True):
            async with peer(port) as client:
                client.writer.write(data)
                await asyncio.sleep(0)
                if is_reset:
                    client.writer.transport.abort()
    async with peer(port) as client:
        for _ in range(3):
            assert (await client.ask(GOOD)).status == 200


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


def test_the_program_outlives_hostile_clients() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "NO_COLOR": "1"},
    ) as program:
        assert program.stdout is not None
        url = program.stdout.readline().strip()
        asyncio.run(attack(port_of(url)))
        program.send_signal(signal.SIGINT)
        _, err = program.communicate(timeout=20)
    assert program.returncode == 0
    # What is simulated, and what was seen: no warning and no traceback.
    assert len(err.splitlines()) == 2, err
