"""Keep-alive connections to one host, made when they are wanted and kept while they are good."""

from __future__ import annotations

import asyncio
import errno
import math
import os
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from redline.calls.wire.connection import Connection
from redline.calls.wire.deadlines import Deadlines
from redline.calls.wire.endpoint import Endpoint
from redline.calls.wire.reply_memory import ReplyMemory
from redline.calls.wire.reuse import Reuse
from redline.errors import CallError, Disconnected

# Servers close idle connections after 5 s (uvicorn) to 75 s (nginx). One that was closed meanwhile
# costs a reconnect and no attempt, so this only bounds idle sockets.
KEEP_ALIVE_S = 60.0
_RESOLVED_FOR_S = 60.0
# By then the event loop has read what a socket held.
_READ_S = 0.1
# An address that does not answer must leave time for the next one.
_LEAST_CONNECT_S = 1.0

HINTS = {
    errno.EMFILE: "too many open files: raise `ulimit -n` or lower --concurrency",
    errno.ECONNREFUSED: "nothing listens there: check --base-url, and that the server runs",
}
UNTRUSTED = "the server's certificate is not trusted: check --base-url"

_Address = tuple[socket.AddressFamily, str, int]


class Pool:
    """The connections to an endpoint's host.

    on_handshake: see Handshakes. intake: what bounds their answers. reuse: whether a connection may
    carry more than one request. deadlines: the clocks of connections in the making.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        on_handshake: Callable[[float], None],
        intake: ReplyMemory,
        reuse: Reuse,
        deadlines: Deadlines,
    ) -> None:
        parts = urlsplit(endpoint.base_url)
        self._host = parts.hostname or ""
        self._is_tls = parts.scheme == "https"
        self._port = parts.port or (443 if self._is_tls else 80)
        self._connect_s = endpoint.timeouts.connect_s
        self._deadlines = deadlines
        self._handshakes = Handshakes(on_handshake)
        self._context: ssl.SSLContext | None = None
        self._idle: dict[Connection, float] = {}  # since when; the last one in goes out first
        self._all: set[Connection] = set()
        self._intake = intake
        self._reuse = reuse
        intake.follow(self._all)
        self._addresses: list[_Address] = []
        self._resolved_s = -float("inf")
        self._sweeper: asyncio.TimerHandle | None = None

    def take(self) -> Connection | None:
        """A connection that stands and is not in use; None where there is none."""
        while self._idle:
            connection, _ = self._idle.popitem()
            if not connection.is_open:
                # What has come on it is read first, for it tells something of the server.
                asyncio.get_running_loop().call_later(_READ_S, connection.close)
            elif self._reuse.is_allowed or not connection.is_used:
                return connection
            else:
                connection.close()
        return None

    def give_back(self, connection: Connection) -> None:
        """The connection's exchange is over."""
        is_reusable = connection.release()
        if not is_reusable or (not self._reuse.is_allowed and connection.is_used):
            connection.close()
            return
        self._idle[connection] = time.monotonic()
        if self._sweeper is None:
            self._sweep_later()

    async def connect(self) -> Connection:
        """A new connection. Raises Disconnected, and TimeoutError after connect_s."""
        try:
            with self._handshakes.timed():
                async with self._deadlines.timeout(self._connect_s):
                    connection = await self._first_that_answers()
        except (OSError, ValueError) as error:
            if isinstance(error, TimeoutError):
                raise
            raise self._unconnected(error) from error
        if connection.is_open:
            self._all.add(connection)
        return connection

    def close(self) -> None:
        """Closes every connection."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        self._idle.clear()
        for connection in list(self._all):
            connection.close()

    async def _first_that_answers(self) -> Connection:
        """A connection to the first of the host's addresses that takes one."""
        # A copy: another connection in the making may move an address meanwhile.
        addresses = list(await self._resolve())
        part_s = max(_LEAST_CONNECT_S, self._connect_s / len(addresses))
        for number, address in enumerate(addresses):
            is_last = number == len(addresses) - 1
            try:
                async with self._deadlines.timeout(math.inf if is_last else part_s):
                    connection = await self._connect_to(address)
            except (OSError, TimeoutError) as error:
                if is_last or isinstance(error, ssl.SSLError):
                    # Forgotten, for a name may stand for another host by now.
                    self._resolved_s = -float("inf")
                    raise
            else:
                if number and address in self._addresses:
                    self._addresses.remove(address)
                    self._addresses.insert(0, address)
                return connection
        raise AssertionError("a host has at least one address")

    async def _connect_to(self, address: _Address) -> Connection:
        family, host, port = address
        _, connection = await asyncio.get_running_loop().create_connection(
            lambda: Connection(self._lost, self._intake),
            host,
            port,
            family=family,
            ssl=self._tls(),
            server_hostname=self._host if self._is_tls else None,
        )
        return connection

    async def _resolve(self) -> list[_Address]:
        now_s = time.monotonic()
        if now_s - self._resolved_s > _RESOLVED_FOR_S:
            found = await asyncio.get_running_loop().getaddrinfo(
                self._host, self._port, type=socket.SOCK_STREAM
            )
            if not found:
                raise OSError("it has no address")
            addresses = [(family, str(place[0]), self._port) for family, _, _, _, place in found]
            self._addresses = list(dict.fromkeys(addresses))
            self._resolved_s = now_s
        return self._addresses

    def _unconnected(self, error: Exception) -> CallError:
        hint = HINTS.get(getattr(error, "errno", None) or 0, "")
        if isinstance(error, ssl.SSLCertVerificationError):
            hint = UNTRUSTED
        text = " ".join(reason_of(error).split()) or type(error).__name__
        disconnected = Disconnected(f"no connection: {self._host}:{self._port}: {text}", hint=hint)
        disconnected.was_sent = False
        return disconnected

    def _tls(self) -> ssl.SSLContext | None:
        if self._is_tls and self._context is None:
            self._context = trusting()
        return self._context

    def _lost(self, connection: Connection) -> None:
        self._all.discard(connection)
        self._idle.pop(connection, None)
        if connection.unasked:
            self._reuse.unasked(connection.unasked)

    def _sweep_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._sweeper = loop.call_later(KEEP_ALIVE_S / 2, self._sweep)

    def _sweep(self) -> None:
        """Closes what nobody has used for long; the oldest come first."""
        self._sweeper = None
        since_s = time.monotonic() - KEEP_ALIVE_S
        for connection, idle_s in list(self._idle.items()):
            if idle_s > since_s:
                break
            connection.close()
        if self._idle:
            self._sweep_later()


class Handshakes:
    """Tells how long a connection took that was the only one in the making.

    Several at once wait for each other's turn on the event loop, which says nothing of the network.
    """

    def __init__(self, told: Callable[[float], None]) -> None:
        self._told = told
        self._making = 0
        self._begun = 0

    @contextmanager
    def timed(self) -> Iterator[None]:
        """One connection is made meanwhile."""
        self._begun += 1
        number, others = self._begun, self._making
        self._making += 1
        begun_s = time.monotonic()
        try:
            yield
        finally:
            self._making -= 1
        if others == 0 and self._begun == number:
            self._told(time.monotonic() - begun_s)


def reason_of(error: Exception) -> str:
    """Why a connection could not be made, in the system's words where there are some."""
    number = getattr(error, "errno", None) or 0
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    if number > 0 and not isinstance(error, ssl.SSLError):
        return os.strerror(number)
    # A failed name look-up has a negative number and a text of its own.
    return getattr(error, "strerror", None) or str(error)


def trusting() -> ssl.SSLContext:
    """The system's trusted roots, or those that SSL_CERT_FILE names; names are checked.

    HTTP/1.1 alone is offered.
    """
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context
