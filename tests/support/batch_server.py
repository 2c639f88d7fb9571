"""Files and batches in a process of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NamedTuple

from redline.calls import Endpoint, HttpBackend
from redline.limits import Limits
from redline.process import run_until_told
from redline.serve.batches import Batches
from redline.serve.http import Relay, Routes
from support import forked


class Server(NamedTuple):
    """The process, and the base URL of what it serves."""

    process: BaseProcess
    base_url: str


@contextmanager
def batch_server(state: Path, endpoint: str, in_flight: int) -> Iterator[Server]:
    """Serves while it is entered, unless it is ended before."""
    process, base_url = forked.started(_serve, state, endpoint, in_flight)
    try:
        yield Server(process, base_url)
    finally:
        process.kill()
        forked.ended(process)


def _serve(state: Path, endpoint: str, in_flight: int) -> None:
    async def main(stop: asyncio.Event) -> None:
        backend = HttpBackend(Endpoint(base_url=endpoint, limits=Limits(concurrency=in_flight)))
        batches = Batches(state, backend)
        async with batches, Relay(backend, routes=Routes(batches.routes)) as relay:
            print(relay.base_url, flush=True)
            await stop.wait()
        await backend.aclose()

    run_until_told(main)
