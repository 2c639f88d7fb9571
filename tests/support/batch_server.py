"""Files and batches in a process of its own: `python batch_server.py STATE ENDPOINT IN_FLIGHT`."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from redline.calls import Endpoint, HttpBackend
from redline.limits import Limits
from redline.process import run_until_told
from redline.serve.batches import Batches
from redline.serve.http import Relay, Routes


class Server(NamedTuple):
    """The process, and the base URL of what it serves."""

    process: subprocess.Popen[str]
    base_url: str


@contextmanager
def batch_server(state: Path, endpoint: str, in_flight: int) -> Iterator[Server]:
    """Serves while it is entered, unless it is ended before."""
    command = [sys.executable, __file__, str(state), endpoint, str(in_flight)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield Server(process, process.stdout.readline().strip())
    finally:
        process.kill()
        process.communicate(timeout=60)


async def _serve(stop: asyncio.Event) -> None:
    _, state, url, in_flight = sys.argv
    backend = HttpBackend(Endpoint(base_url=url, limits=Limits(concurrency=int(in_flight))))
    batches = Batches(Path(state), backend)
    async with batches, Relay(backend, routes=Routes(batches.routes)) as relay:
        print(relay.base_url, flush=True)
        await stop.wait()
    await backend.aclose()


if __name__ == "__main__":
    run_until_told(_serve)
