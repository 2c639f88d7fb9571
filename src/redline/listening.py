"""An HTTP server on an address of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import NamedTuple

from aiohttp import web

from redline.errors import ConfigError

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
