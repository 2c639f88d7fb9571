"""Many connections at once: all of them are used, none is left, and too few files are told of."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import uvloop

from redline.calls import Call, Endpoint, HttpBackend, Request
from redline.httpserver import Exchange
from support.http_peer import Served

ROOT = Path(__file__).parents[2]
CONNECTIONS, ROWS = 1000, 1100

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]


@pytest.mark.slow
def test_a_thousand_connections_at_once(tmp_path: Path) -> None:
    """bench/connections.py in its small form; it says so by its status where one is left open."""
    flags = ["--connections", str(CONNECTIONS), "--rows", str(ROWS), "--latency", "3"]
    command = [sys.executable, str(ROOT / "bench" / "connections.py"), *flags]
    done = subprocess.run(
        [*command, "--results", str(tmp_path)], capture_output=True, text=True, timeout=110
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path / "connections.json").read_text())
    assert result["raw"]["client"]["succeeded"] == ROWS
    assert result["raw"]["client"]["most_in_flight"] == CONNECTIONS
    assert result["raw"]["server"]["answered"] >= ROWS
    assert CONNECTIONS <= result["summary"]["most_files"] < CONNECTIONS + 30
    assert result["summary"]["files_after"] == result["summary"]["files_before"]
    # A worker and its task, a connection and its transport, a row.
    assert result["summary"]["kb_per_connection"] < 40


def test_a_limit_on_open_files_that_is_too_low_is_told_before_anything_is_sent(
    tmp_path: Path,
) -> None:
    (tmp_path / "rows.jsonl").write_text('{"prompt":"x"}\n')
    words = ["run", "rows.jsonl", "--model", "m", "--endpoint", "sim", "-c", "1000", "-o", "o"]
    done = subprocess.run(
        [sys.executable, "-m", "redline", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=110,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (300, 300)),
    )
    assert done.returncode == 2
    assert done.stderr == (
        "error: concurrency 1,000 needs 1,064 open files, but this process may open only 300\n"
        "\n"
        "hint: lower --concurrency to 236, or raise `ulimit -Hn`\n"
    )


def connections_of(port: int) -> Iterator[socket.socket]:
    """The connections to and from this port that this process has open."""
    for name in os.listdir("/dev/fd"):
        with suppress(OSError), socket.socket(fileno=os.dup(int(name))) as one:
            if one.family == socket.AF_INET and port in (
                one.getsockname()[1],
                one.getpeername()[1],
            ):
                yield one


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_silent_connection_is_probed_from_both_ends(
    loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    found: list[tuple[bool, int]] = []
    # macOS has a name of its own.
    idle = getattr(socket, "TCP_KEEPIDLE", None) or getattr(socket, "TCP_KEEPALIVE", 0)

    async def main() -> None:
        async def look(exchange: Exchange) -> None:
            for one in connections_of(server.port):
                is_on = one.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) != 0
                found.append((is_on, one.getsockopt(socket.IPPROTO_TCP, idle)))
            exchange.respond(200, b"{}")

        async with Served(look) as server:
            backend = HttpBackend(Endpoint(base_url=server.base_url, proxy=""))
            await backend.send(Request(method="GET", url="/look"), Call())
            await backend.aclose()

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(main())
    assert found == [(True, 60), (True, 60)]
