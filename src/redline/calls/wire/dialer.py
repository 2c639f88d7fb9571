"""Connects to an endpoint's host: addresses, TLS, and tunnels through a proxy."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

from redline.calls.wire.connection import Connection
from redline.calls.wire.deadlines import Stops, TaskTimeout
from redline.calls.wire.endpoint import Endpoint
from redline.calls.wire.proxy import (
    CHECK,
    SETTINGS,
    Connect,
    Proxy,
    Server,
    no_connection,
    server_of,
)
from redline.errors import Disconnected
from redline.process import in_thread, keep_alive

_RESOLVED_FOR_S = 60.0
# Each address gets at least this long; one that does not answer must leave time for the others.
_LEAST_CONNECT_S = 1.0

_MANY_FILES = "too many open files: raise `ulimit -n` or lower --concurrency"

_Address = tuple[socket.AddressFamily, str, int]
_Make = Callable[[], Connection]


class Dialer:
    """Makes connections to one endpoint, through `proxy` if there is one.

    stops: shared by the clocks of the endpoint. on_handshake: called with the seconds that a
    connection took to make, if no other was made at the same time: several at once wait for each
    other on the event loop, so their times say nothing about the network.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        proxy: Proxy | None,
        stops: Stops,
        on_handshake: Callable[[float], None],
    ) -> None:
        self._target = server_of(endpoint.base_url)
        self._proxy = proxy
        # The server at the other end of the TCP connection.
        self._first = self._target if proxy is None else proxy.server
        self._connect_s = endpoint.timeouts.connect_s
        self._stops = stops
        self._on_handshake = on_handshake
        self._begun = self._making = 0
        self._context: ssl.SSLContext | None = None
        self._addresses: list[_Address] = []
        self._good: _Address | None = None  # answered after others did not; it is tried first
        self._resolved_s = -float("inf")
        self._lookup: asyncio.Future[list[_Address]] | None = None

    async def connect(self, make: _Make) -> Connection:
        """Opens a connection. make: creates the protocol, which is returned.

        Raises Disconnected; Refused if a proxy asks for credentials that it was not given, or does
        not accept them; and TimeoutError after connect_s.
        """
        try:
            with self._timed():
                async with TaskTimeout(self._stops, self._connect_s):
                    return await self._first_that_answers(make)
        except TimeoutError:
            raise
        except (OSError, ValueError) as error:
            raise self._unconnected(self._first, error) from error

    @contextmanager
    def _timed(self) -> Iterator[None]:
        """Times the connection that is made inside the block, for `on_handshake`."""
        self._begun += 1
        number, others = self._begun, self._making
        self._making += 1
        begun_s = time.monotonic()
        try:
            yield
        finally:
            self._making -= 1
        if others == 0 and self._begun == number:
            self._on_handshake(time.monotonic() - begun_s)

    async def _first_that_answers(self, make: _Make) -> Connection:
        """Connects to the first of the host's addresses that accepts a connection."""
        # Of an address that drops packets, only a timeout shows that it is dead.
        addresses = sorted(await self._resolve(), key=lambda address: address != self._good)
        part_s = max(_LEAST_CONNECT_S, self._connect_s / len(addresses))
        for number, address in enumerate(addresses):
            is_last = number == len(addresses) - 1
            try:
                async with nullcontext() if is_last else TaskTimeout(self._stops, part_s):
                    connection = await self._connect_to(address, make)
            except (OSError, TimeoutError) as error:
                if is_last or isinstance(error, ssl.SSLError):
                    # Forget the addresses: the name may have other addresses by now.
                    self._resolved_s = -float("inf")
                    raise
            else:
                if number:
                    self._good = address
                return connection
        raise AssertionError("a host has at least one address")

    async def _connect_to(self, address: _Address, make: _Make) -> Connection:
        loop = asyncio.get_running_loop()
        family, host, port = address
        first, proxy = self._first, self._proxy
        context = self._tls() if first.is_tls else None
        name = first.host if first.is_tls else None
        if proxy is None or not self._target.is_tls:
            direct, connection = await loop.create_connection(
                make, host, port, family=family, ssl=context, server_hostname=name
            )
            keep_alive(direct.get_extra_info("socket"))
            return connection
        transport, connect = await loop.create_connection(
            lambda: Connect(proxy, self._target),
            host,
            port,
            family=family,
            ssl=context,
            server_hostname=name,
        )
        keep_alive(transport.get_extra_info("socket"))
        try:
            await connect.open(transport)
            return await self._secured(transport, make())
        except BaseException:
            transport.abort()
            raise

    async def _secured(self, tunnel: asyncio.Transport, connection: Connection) -> Connection:
        """Starts TLS with the endpoint's host through the tunnel, and returns the connection."""
        loop = asyncio.get_running_loop()
        host = self._target.host
        try:
            secure = await loop.start_tls(tunnel, connection, self._tls(), server_hostname=host)
        except TimeoutError:
            raise
        except (OSError, ValueError) as error:
            raise self._unconnected(self._target, error) from error
        assert secure is not None
        # `start_tls` does not call `connection_made`.
        connection.connection_made(secure)
        return connection

    async def _resolve(self) -> list[_Address]:
        """Returns the host's addresses; connections that begin during a lookup share its result."""
        if time.monotonic() - self._resolved_s <= _RESOLVED_FOR_S:
            return self._addresses
        lookup = self._lookup
        # A lookup that another event loop began would never end here.
        if lookup is None or lookup.get_loop() is not asyncio.get_running_loop():
            lookup = self._lookup = in_thread(_look_up, self._first.host, self._first.port)
            lookup.add_done_callback(self._resolved)
        # If one connection is given up, the others still wait for the lookup.
        return await asyncio.shield(lookup)

    def _resolved(self, lookup: asyncio.Future[list[_Address]]) -> None:
        if lookup is self._lookup:
            self._lookup = None
        if not lookup.cancelled() and lookup.exception() is None:
            self._addresses = lookup.result()
            self._resolved_s = time.monotonic()

    def _unconnected(self, server: Server, error: Exception) -> Disconnected:
        """Returns the error of a connection to `server` that was refused or whose TLS failed."""
        is_proxy = server is not self._target
        number = getattr(error, "errno", None) or 0
        hint = CHECK if is_proxy else ""
        if isinstance(error, ssl.SSLCertVerificationError):
            whose, where = ("proxy", SETTINGS) if is_proxy else ("server", "the base URL")
            hint = (
                f"the {whose}'s certificate is not trusted: check {where}, or set SSL_CERT_FILE to "
                "the file of its CA"
            )
        elif isinstance(error, ssl.SSLError) and is_proxy:
            hint = "write its URL with http://, which most proxies need even for https endpoints"
        elif isinstance(error, ssl.SSLError):
            hint = "if the server does not use TLS, write http:// in the base URL"
        elif isinstance(error, socket.gaierror) and not is_proxy:
            hint = "check the host in the base URL, and the network"
        elif number == errno.EMFILE:
            hint = _MANY_FILES
        elif number == errno.ECONNREFUSED:
            where = SETTINGS if is_proxy else "the base URL, and that the server is running"
            hint = f"nothing listens there: check {where}"
        text = " ".join(_reason_of(error).split()) or type(error).__name__
        return no_connection(f"{'the proxy ' if is_proxy else ''}{server}: {text}", hint)

    def _tls(self) -> ssl.SSLContext:
        """Returns the TLS context: certificates are verified, and only HTTP/1.1 is offered.

        The trusted roots are those of the system, or of the file in SSL_CERT_FILE.
        """
        if self._context is None:
            self._context = ssl.create_default_context()
            self._context.set_alpn_protocols(["http/1.1"])
        return self._context


def _look_up(host: str, port: int) -> list[_Address]:
    """Returns the addresses of a host, without repetitions. Raises OSError if it has none."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    if not found:
        raise OSError("the host has no address")
    addresses = [(family, str(place[0]), port) for family, _, _, _, place in found]
    return list(dict.fromkeys(addresses))


def _reason_of(error: Exception) -> str:
    """Returns why a connection could not be made, in the operating system's words if possible."""
    number = getattr(error, "errno", None) or 0
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    if number > 0 and not isinstance(error, ssl.SSLError):
        return os.strerror(number)
    # A failed name lookup has a negative number and its own text.
    return getattr(error, "strerror", None) or str(error)
