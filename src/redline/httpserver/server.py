"""Runs an HTTP server on its own address.

state     from            a new request                     a request being answered
open      start           is answered                       continues until its client leaves
draining  aclose          is answered on an open            may finish within the time that
                          connection; a new connection      `_drain` allows, and is the last one
                          is refused                        on its connection
closed    aclose's end    cannot arrive: no connection      has been cancelled
                          is open
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
from contextlib import ExitStack, closing, suppress
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

# Thousands of connections may be opened at once; the kernel lowers this number to its own bound.
_BACKLOG = 4096
# Hints by errno, if the address cannot be used; for all other errors, the host is the cause.
_HINTS = {
    errno.EADDRINUSE: (
        "stop the process that listens there, or choose another port: 0 picks a free one"
    ),
    errno.EACCES: "a port below 1024 usually needs root; 0 picks a free one",
}
_OTHER_HINT = (
    "the host must be an address of this machine, such as 127.0.0.1; 0.0.0.0 means all IPv4 ones"
)
# The time for cancelled handlers to end, and for written data to be sent.
_LAST_WORDS_S = 1.0
# Byte 13 of a TCP header holds the flags; SYN is bit 0x02. The codes are from linux/filter.h.
_NO_SYN = ((0x30, 0, 0, 13), (0x45, 0, 1, 2), (0x06, 0, 0, 0), (0x06, 0, 0, 0xFFFFFFFF))
_SO_ATTACH_FILTER = 26  # asm-generic/socket.h
# The time for the first request of a client that connected just before the server closed.
_FIRST_WORDS_S = 1.0


def check_host(host: str) -> None:
    """Raises ConfigError for an empty host, with which a server would listen on all addresses."""
    if not host:
        raise ConfigError("the host is empty", hint=_OTHER_HINT)


async def check_address(name: str, address: tuple[str, int]) -> None:
    """Raises ConfigError if a server cannot listen at (host, port) at the moment.

    Listens there for an instant; meant to be called before work that takes a long time. name: the
    server, for the error.
    """
    try:
        listener = await asyncio.get_running_loop().create_server(asyncio.Protocol, *address)
    except OSError as error:
        raise cannot_listen(name, address, error) from error
    listener.close()


def cannot_listen(name: str, address: tuple[str, int], error: OSError) -> ConfigError:
    """Returns the error of a server that cannot listen at (host, port), with a hint."""
    host, port = address
    number = error.errno or 0
    # asyncio wraps the system's message in a sentence about the address.
    reason = os.strerror(number) if number > 0 else error.strerror or str(error)
    return ConfigError(
        f"{name} cannot listen: {reason}",
        where=f"{host}:{port}",
        hint=_HINTS.get(number, _OTHER_HINT),
    )


def _take_no_more(listening: socket.socket) -> None:
    """Makes the kernel accept no new connections, but complete the handshakes that have begun.

    Any other client tries again after a second, and then finds the address closed.
    """
    if sys.platform != "linux" or listening.family == socket.AF_UNIX:
        return
    # A classic BPF program: load the flags of the TCP header, and drop packets with SYN set.
    program = b"".join(starmap(struct.Struct("HBBI").pack, _NO_SYN))
    held = ctypes.create_string_buffer(program, len(program))
    filtered = struct.pack("HP", len(_NO_SYN), ctypes.addressof(held))
    # Some sandboxes do not support socket filters.
    with suppress(OSError):
        listening.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, filtered)


async def stop_accepting(listener: asyncio.Server) -> list[socket.socket]:
    """Closes a listener in the loop's next turn; returns the sockets still queued in the kernel.

    A socket that asyncio has accepted becomes a connection in the next turn; if the listener were
    closed before that, asyncio would log an AssertionError and leave the socket open (CPython
    3.11). The queued sockets are accepted first, because closing a listener makes the kernel reset
    them, even if their clients have already sent a request.
    """
    loop = asyncio.get_running_loop()
    accepted = list[socket.socket]()
    # A cancellation closes all of them, too.
    with closing(listener), ExitStack() as copies:
        # uvloop's sockets have neither `accept` nor `setsockopt`.
        listening = [
            copies.enter_context(socket.socket(fileno=os.dup(one.fileno())))
            for one in listener.sockets
        ]
        for one in listening:
            one.setblocking(False)
            _take_no_more(one)
        for one in listener.sockets:
            loop.remove_reader(one.fileno())
        await asyncio.sleep(0)
        for one in listening:
            # An error usually means that the queue is empty.
            with suppress(OSError):
                while True:
                    accepted.append(one.accept()[0])
    return accepted


class Address(NamedTuple):
    """Where a server listens. port: 0 for a free one.

    is_shared: whether other processes listen on the same port. door: the path of a Unix socket to
    listen on as well, without TLS; empty for none.
    """

    host: str
    port: int
    is_shared: bool = False
    door: str = ""


class HttpServer(ABC):
    """A server that runs in an `async with` block, or from `start` to `aclose`; starts only once.

    It runs in the event loop that starts it. name: its name in messages. address: an Address, or
    (host, port). bounds: None for the defaults. ssl: a context for HTTPS; None for HTTP.
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
        """`http://HOST:PORT/v1`, or https with TLS. Raises RedlineError before `start`."""
        if not self._base_url:
            raise RedlineError(f"{self._name} has not been started")
        return self._base_url

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return len(self._service.connections)

    @property
    def is_draining(self) -> bool:
        """Whether `aclose` has begun."""
        return self._service.is_draining

    async def start(self) -> None:
        """Starts listening.

        Raises ConfigError if the address cannot be used, and RedlineError at a second call.
        """
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
            # Connections inherit these socket options.
            keep_alive(listening)
        self._listeners.append(listener)
        if door:
            with suppress(FileNotFoundError):
                # A process that was killed may have left the socket behind.
                os.unlink(door)
            self._listeners.append(await loop.create_unix_server(connect, door))
        self._sweep_on(loop)
        scheme = "http" if self._ssl is None else "https"
        shown = f"[{host}]" if ":" in host else host
        port = listener.sockets[0].getsockname()[1]
        self._base_url = f"{scheme}://{shown}:{port}/v1"

    async def aclose(self) -> None:
        """Stops listening, awaits `_drain`, and ends every connection.

        A second call does nothing.
        """
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
        """Returns asyncio's arguments for TLS; {} without TLS, since asyncio refuses them then."""
        if self._ssl is None:
            return {}
        return {"ssl": self._ssl, "ssl_handshake_timeout": self._service.bounds.head_s}

    async def _take_last(self, accepted: list[socket.socket]) -> None:
        """Makes connections from the sockets that were still queued when listening ended."""
        loop, connect = asyncio.get_running_loop(), partial(Connection, self._service)
        taken = (
            loop.connect_accepted_socket(
                connect, one, **({} if one.family == socket.AF_UNIX else self._tls())
            )
            for one in accepted
        )
        # A client may have left, or its TLS handshake may fail.
        await asyncio.gather(*taken, return_exceptions=True)

    @abstractmethod
    def _handle(self, exchange: Exchange) -> Coroutine[Any, Any, None] | None:
        """Answers one request, either at once or in the returned coroutine; usually `async`."""

    @abstractmethod
    async def _drain(self) -> None:
        """Waits for the requests in flight, for as long as the closing server allows them."""

    def _sweep_on(self, loop: asyncio.AbstractEventLoop) -> None:
        """Checks for overdue connections every quarter of the shortest bound, at most 1 s apart.

        One timer serves all connections, because a timer per connection would cost each request
        more.
        """
        self._service.sweep(loop.time())
        bounds = self._service.bounds
        shortest_s = min(
            bounds.head_s, bounds.body_s, bounds.idle_s, bounds.unread_s, bounds.wanted_s
        )
        wait_s = min(1.0, max(0.005, shortest_s / 4))
        self._sweep = loop.call_later(wait_s, self._sweep_on, loop)
