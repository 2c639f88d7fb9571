"""An HTTP server on an address of its own."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from functools import partial
from typing import Self

from aiohttp import web

from redline.errors import ConfigError, RedlineError

# Thousands of connections may be opened at once; the kernel lowers this to its own bound.
_BACKLOG = 4096


class HttpServer(ABC):
    """Serves while it is entered, or from `start` to `aclose`; starts once.

    Runs inside the loop that starts it. name: in messages. address: host and port, 0 for a free
    one.
    """

    def __init__(self, name: str, address: tuple[str, int], *, most_body_bytes: int) -> None:
        self._name = name
        self._address = address
        self._most_body_bytes = most_body_bytes
        self._web: web.Server | None = None
        self._listener: asyncio.Server | None = None
        self._base_url = ""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    @property
    def base_url(self) -> str:
        """`http://HOST:PORT/v1`. Raises RedlineError before `start`."""
        if not self._base_url:
            raise RedlineError(f"{self._name} has not been started")
        return self._base_url

    async def start(self) -> None:
        """Listens. Returns once connections are accepted. Raises ConfigError for the address."""
        if self._web is not None:
            raise RedlineError(f"{self._name} has already been started")
        loop = asyncio.get_running_loop()
        host, port = self._address
        size = self._most_body_bytes
        server = web.Server(
            self._handle,
            request_factory=partial(web.BaseRequest, loop=loop, client_max_size=size),
            # A client that leaves ends its request; without this it would go on for nobody.
            handler_cancellation=True,
            access_log=None,
        )
        try:
            self._listener = await loop.create_server(server, host, port, backlog=_BACKLOG)
        except OSError as error:
            raise ConfigError(
                f"{self._name} cannot listen: {error.strerror or error}",
                where=f"{host}:{port}",
                hint="port 0 picks a free one",
            ) from error
        self._web = server
        shown = f"[{host}]" if ":" in host else host
        port = self._listener.sockets[0].getsockname()[1]
        self._base_url = f"http://{shown}:{port}/v1"

    @abstractmethod
    async def aclose(self) -> None:
        """Stops listening, and ends what is in flight. A second call does nothing."""

    @abstractmethod
    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answers one request."""
