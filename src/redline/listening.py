"""An HTTP server on an address of its own, and a program that serves until it is told to end."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, NamedTuple

from aiohttp import web

from redline.errors import ConfigError

if sys.platform != "win32":
    import uvloop

# Thousands of connections may be opened at once; the kernel lowers this to its own bound.
_BACKLOG = 4096


class Listening(NamedTuple):
    """A server that accepts connections. base_url: `http://HOST:PORT/v1`."""

    web: web.Server
    listener: asyncio.Server
    base_url: str


async def listen(
    handle: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
    address: tuple[str, int],
    *,
    most_body_bytes: int,
    name: str,
) -> Listening:
    """Listens at host and port, 0 for a free one. Raises ConfigError, which says whose `name`."""
    loop = asyncio.get_running_loop()
    host, port = address
    server = web.Server(
        handle,
        request_factory=partial(web.BaseRequest, loop=loop, client_max_size=most_body_bytes),
        # A client that leaves ends its request; without this it would go on for nobody.
        handler_cancellation=True,
        access_log=None,
    )
    try:
        listener = await loop.create_server(server, host, port, backlog=_BACKLOG)
    except OSError as error:
        raise ConfigError(
            f"{name} cannot listen: {error.strerror or error}",
            where=f"{host}:{port}",
            hint="port 0 picks a free one",
        ) from error
    shown = f"[{host}]" if ":" in host else host
    port = listener.sockets[0].getsockname()[1]
    return Listening(server, listener, f"http://{shown}:{port}/v1")


def on_signals(told: Callable[[int], object]) -> None:
    """From now on the running event loop calls it with the number of a Ctrl-C or SIGTERM."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        if sys.platform == "win32":
            signal.signal(number, lambda found, _: loop.call_soon_threadsafe(told, found))
        else:
            loop.add_signal_handler(number, told, number)


def end_at_once(number: int) -> None:
    """Ends the process as the signal of this number would, whatever its threads are in."""
    os._exit(128 + number)


def run_until_told(main: Callable[[asyncio.Event], Coroutine[Any, Any, None]]) -> None:
    """Runs `main` to its end; its event is set by Ctrl-C or SIGTERM."""

    async def told() -> None:
        stop = asyncio.Event()
        on_signals(lambda _: stop.set())
        await main(stop)

    if sys.platform == "win32":
        asyncio.run(told())
        return
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(told())
