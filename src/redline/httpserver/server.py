"""An HTTP server on an address of its own.

state     from    a new request                   one being answered
open      start   is answered                     continues until its client leaves
draining  aclose  on an open connection, is       may end within what `_drain` allows, and is the
                  answered; others are refused    last one of its connection
closed    the end no connection                   is cancelled
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import socket
import struct
import sys
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from contextlib import suppress
from functools import partial
from itertools import starmap
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from redline.errors import ConfigError, RedlineError
from redline.httpserver.bounds import HttpBounds
from redline.httpserver.connection import Connection, Service
from redline.httpserver.exchange import Exchange
from redline.process import keep_alive

if TYPE_CHECKING:
    from ssl import SSLContext

# Thousands of connections may be opened at once; the kernel lowers this to its own bound.
_BACKLOG = 4096
# Hints for an address that cannot be listened on; for other errors, the host is the cause.
_HINTS = {
    errno.EADDRINUSE: (
        "stop the process that listens there, or choose another port: 0 picks a free one"
    ),
    errno.EACCES: "only root may use a port below 1024; 0 picks a free one",
}
_OTHER_HINT = (
    "the host must be an address of this machine, such as 127.0.0.1; 0.0.0.0 listens on all of them"
)
# Time to send what was written, and for handlers that are cancelled.
_LAST_WORDS_S = 1.0
# Byte 13 of a TCP header has its flags, and SYN is 2 of them. The codes are from linux/filter.h.
_NO_SYN = ((0x30, 0, 0, 13), (0x45, 0, 1, 2), (0x06, 0, 0, 0), (0x06, 0, 0, 0xFFFFFFFF))
_SO_ATTACH_FILTER = 26  # asm-generic/socket.h
# For the first request of a client that has just connected, when the server closes.
_FIRST_WORDS_S = 1.0


def cannot_listen(name: str, address: tuple[str, int], error: OSError) -> ConfigError:
    """Why a server of this name cannot listen there, and what to do."""
    host, port = address
    number = error.errno or 0
    # asyncio has a sentence about the address around the system's words.
    reason = os.strerror(number) if number > 0 else error.strerror or str(error)
    return ConfigError(
        f"{name} cannot listen: {reason}",
        where=f"{host}:{port}",
        hint=_HINTS.get(number, _OTHER_HINT),
    )


def _take_no_more(listening: socket.socket) -> None:
    """Makes the kernel begin no more connections, but complete those that it has begun.

    A client tries again after a second, and then finds the address closed.
    """
    if sys.platform != "linux" or listening.family == socket.AF_UNIX:
        return
    # A classic BPF program: load the flags of the TCP header, and drop what has SYN set.
    program = b"".join(starmap(struct.Struct("HBBI").pack, _NO_SYN))
    held = ctypes.create_string_buffer(program, len(program))
    filtered = struct.pack("HP", len(_NO_SYN), ctypes.addressof(held))
    # Some sandboxes have no filters.
    with suppress(OSError):
        listening.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, filtered)


async def stop_accepting(listener: asyncio.Server) -> list[socket.socket]:
    """Closes a listener in the loop's next turn; returns what only the kernel has accepted by then.

    What asyncio has accepted becomes a connection in the next turn. If the listener is closed by
    then, that fails with an AssertionError in the log, and its socket stays open (CPython 3.11).
    The kernel resets the connections that it holds for a listener when that is closed, though their
    clients may have sent a request by then.
    """
    loop = asyncio.get_running_loop()
    # Sockets of uvloop have neither `accept` nor `setsockopt`.
    listening = [socket.socket(fileno=os.dup(one.fileno())) for one in listener.sockets]
    for one in listening:
        one.setblocking(False)
        _take_no_more(one)
    for one in listener.sockets:
        loop.remove_reader(one.fileno())
    await asyncio.sleep(0)
    accepted = list[socket.socket]()
    for one in listening:
        # An error usually means that there are no more.
        with one, suppress(OSError):
            while True:
                accepted.append(one.accept()[0])
    listener.close()
    return accepted


class Address(NamedTuple):
    """Where a server listens. port: 0 for a free one.

    is_shared: other processes listen there, too. door: a Unix socket beside it, without TLS.
    """

    host: str
    port: int
    is_shared: bool = False
    door: str = ""


class HttpServer(ABC):
    """Serves while it is entered, or from `start` to `aclose`; starts once.

    Runs inside the loop that starts it. name: in messages. address: an Address, or its host and
    port. ssl: makes it an HTTPS server.
    """

    def __init__(
        self,
        name: str,
        address: tuple[str, int] | Address,
        *,
        bounds: HttpBounds | None = None,
        ssl: SSLContext | None = None,
    ) -> None:
        self._name = name
        self._address = Address(*address)
        self._ssl = ssl
        self._service = Service(self._handle, bounds or HttpBounds())
        self._listeners: list[asyncio.Server] = []
        self._sweep: asyncio.TimerHandle | None = None
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

    @property
    def connections(self) -> int:
        """How many are open."""
        return len(self._service.connections)

    @property
    def is_draining(self) -> bool:
        """`aclose` has begun."""
        return self._service.is_draining

    async def start(self) -> None:
        """Listens. Returns once connections are accepted. Raises ConfigError for the address."""
        if self._base_url:
            raise RedlineError(f"{self._name} has already been started")
        loop = asyncio.get_running_loop()
        host, port, is_shared, door = self._address
        connect, tls = partial(Connection, self._service), self._tls()
        try:
            listener = await loop.create_server(
                connect,
                host,
                port,
                backlog=_BACKLOG,
                reuse_port=is_shared or None,
                **tls,
            )
        except OSError as error:
            raise cannot_listen(self._name, (host, port), error) from error
        for listening in listener.sockets:
            # Its connections inherit the options.
            keep_alive(listening)
        self._listeners.append(listener)
        if door:
            with suppress(FileNotFoundError):
                # Of a process that was killed.
                os.unlink(door)
            self._listeners.append(await loop.create_unix_server(connect, door))
        self._sweep_on(loop)
        scheme = "http" if self._ssl is None else "https"
        shown = f"[{host}]" if ":" in host else host
        port = listener.sockets[0].getsockname()[1]
        self._base_url = f"{scheme}://{shown}:{port}/v1"

    async def aclose(self) -> None:
        """Stops listening and ends every connection. A second call does nothing."""
        listeners, self._listeners = self._listeners, []
        if not listeners:
            return
        self._service.begin_draining()
        try:
            for listener in listeners:
                await self._take_last(await stop_accepting(listener))
            await self._service.first_requests(_FIRST_WORDS_S)
            await self._drain()
        finally:
            await self._service.end(_LAST_WORDS_S)
            if self._sweep is not None:
                self._sweep.cancel()
        for listener in listeners:
            await listener.wait_closed()

    def _tls(self) -> dict[str, Any]:
        """asyncio's arguments for TLS; empty without it, when asyncio refuses a handshake time."""
        if self._ssl is None:
            return {}
        return {"ssl": self._ssl, "ssl_handshake_timeout": self._service.bounds.head_s}

    async def _take_last(self, accepted: list[socket.socket]) -> None:
        """Makes connections of what the kernel had accepted when the server closed."""
        loop, connect = asyncio.get_running_loop(), partial(Connection, self._service)
        taken = (
            loop.connect_accepted_socket(
                connect, one, **({} if one.family == socket.AF_UNIX else self._tls())
            )
            for one in accepted
        )
        # A client may have left, or fail at TLS.
        await asyncio.gather(*taken, return_exceptions=True)

    @abstractmethod
    def _handle(self, exchange: Exchange) -> Coroutine[Any, Any, None] | None:
        """Answers one request, at once or in the coroutine that it returns; usually `async`."""

    @abstractmethod
    async def _drain(self) -> None:
        """Waits for requests in flight, as long as they may take when the server closes."""

    def _sweep_on(self, loop: asyncio.AbstractEventLoop) -> None:
        """Looks for overdue connections four times in the shortest bound, at least once a second.

        One timer for all connections: one of its own would cost each request more than this.
        """
        self._service.sweep(loop.time())
        bounds = self._service.bounds
        shortest_s = min(
            bounds.head_s, bounds.body_s, bounds.idle_s, bounds.unread_s, bounds.wanted_s
        )
        wait_s = min(1.0, max(0.005, shortest_s / 4))
        self._sweep = loop.call_later(wait_s, self._sweep_on, loop)
