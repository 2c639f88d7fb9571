"""HTTP/1.1 to one endpoint over keep-alive connections: TCP or TLS, straight or through a proxy."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from functools import lru_cache
from string import punctuation
from urllib.parse import quote, urlsplit

import msgspec

from redline._version import __version__
from redline.calls.wire.connection import Connection
from redline.calls.wire.deadlines import Deadline, Deadlines
from redline.calls.wire.dialer import Dialer
from redline.calls.wire.endpoint import Endpoint, proxy_of
from redline.calls.wire.exchange import EVENTS, Answer, Exchange, Repeat, StaleConnection, Wire
from redline.calls.wire.pool import Pool
from redline.calls.wire.proxy import (
    ascii_name,
    is_for_proxy,
    no_connection,
    proxy_at,
    unauthorized,
)
from redline.calls.wire.reply_memory import ReplyMemory
from redline.calls.wire.reuse import Reuse
from redline.clock import Clock
from redline.errors import BadRow, CallError

_MOST_STALE = 8
_WITH_BODY = frozenset(("POST", "PUT", "PATCH"))


class Transport:
    """The exchanges of one endpoint, on as many connections as there are exchanges at once.

    proxy: its URL, None for none. intake: what bounds the answers. on_handshake: gets the seconds
    that a connection took, of some of them. Raises ConfigError for a proxy that cannot be used.
    """

    def __init__(
        self, endpoint: Endpoint, clock: Clock, on_handshake: Callable[[float], None]
    ) -> None:
        self._endpoint = endpoint
        parts = urlsplit(endpoint.base_url)
        self._host = ascii_name(parts.netloc)
        self._most_bytes = endpoint.max_reply_bytes
        self.intake = ReplyMemory(endpoint.max_reply_bytes)
        self._reuse = Reuse()
        self._deadlines = Deadlines(clock)
        self.proxy = proxy_of(endpoint)
        proxy = None if self.proxy is None else proxy_at(self.proxy, endpoint.headers)
        is_tls = parts.scheme == "https"
        self._is_tunnelled = is_tls and proxy is not None
        # The proxy that reads and forwards the requests themselves.
        self._forwarder = None if is_tls else proxy
        dialer = Dialer(endpoint, proxy, self._deadlines, on_handshake)
        self._pool = Pool(dialer, self.intake, self._reuse)
        # The head of the last request without its length: most rows of a run have the same.
        self._headed: Wire | None = None
        self._head_bytes = b""
        self.target = lru_cache(maxsize=1024)(self._target)

    async def exchange(
        self,
        wire: Wire,
        exchange: Exchange,
        take: Callable[[bytes], Awaitable[None]] | None = None,
        kind: str = EVENTS,
    ) -> Answer:
        """The whole answer to `wire`. Raises CallError, and Repeat if the exchange may.

        take: gets what is of this kind as it comes, awaited. The answer's body is then empty; an
        answer of another type or status is read whole.
        """
        connection = self._written_now(wire, exchange) or await self._written(wire, exchange)
        if wire.method == "HEAD":
            connection.expect_no_body()
        # Its body must not wait here for the answer.
        del wire
        alarm = self._begun(connection, exchange)
        try:
            if take is not None and await _handed_on(connection, take, kind):
                self._reuse.answered()
                return Answer(connection.status, connection.headers, b"")
            body = await connection.whole()
            answer = Answer(connection.status, connection.headers, body)
            self._reuse.own(answer, exchange, connection)
            return answer
        except (CallError, Repeat) as error:
            self._end(connection, exchange, error)
            raise
        finally:
            alarm.stop()
            self._pool.give_back(connection)

    def check(self, answer: Answer) -> None:
        """Raises Refused if the answer is the proxy's, which wants a user and a password."""
        if answer.status == 407 and self._forwarder is not None:
            raise unauthorized(407, answer.headers.get("proxy-authenticate", ""), self._forwarder)

    async def aclose(self) -> None:
        """Closes every connection."""
        self._pool.close()
        self._deadlines.close()

    def _end(self, connection: Connection, exchange: Exchange, error: Exception) -> None:
        """Ends a connection whose exchange has failed. Raises Repeat if that is to follow."""
        has_head = connection.has_head
        connection.close()
        if isinstance(error, CallError):
            self._reuse.check(error, exchange, has_head=has_head)

    def _begun(self, connection: Connection, exchange: Exchange) -> Deadline:
        """The clock of an exchange whose request is written."""
        alarm = connection.alarm or connection.set_alarm(self._deadlines)
        exchange.written(alarm, is_kept=connection.was_used)
        return alarm

    def _written_now(self, wire: Wire, exchange: Exchange) -> Connection | None:
        """As `_written`, if there is nothing to wait for, as most often; None otherwise."""
        if wire.deadline_s != math.inf or self.intake.is_full or exchange.needs_new:
            return None
        head = self._head_of(wire)
        connection = self._pool.take()
        if connection is None:
            return None
        is_ready = False
        try:
            is_ready = exchange.pass_gate_now()
        finally:
            if not is_ready:
                # Nothing was written on it.
                self._pool.give_back(connection)
        if not is_ready:
            return None
        connection.write(head, wire.body, exchange, self._most_bytes)
        return connection

    async def _written(self, wire: Wire, exchange: Exchange) -> Connection:
        """A connection on which the request has been written just now."""
        head = self._head_of(wire)
        await exchange.get_ready()
        if wire.deadline_s == math.inf:
            exchange.start(math.inf)
            connection = await self._ready(exchange)
        else:
            try:
                async with self._deadlines.timeout() as alarm:
                    exchange.start(wire.deadline_s, alarm)
                    connection = await self._ready(exchange)
            except TimeoutError:
                raise exchange.timed_out() from None
        connection.write(head, wire.body, exchange, self._most_bytes)
        return connection

    async def _ready(self, exchange: Exchange) -> Connection:
        """An open connection, with the grant for the write and its stamp."""
        if self.intake.is_full:
            exchange.waiting()
            await self.intake.room()
        for _ in range(_MOST_STALE):
            connection = None if exchange.needs_new else self._pool.take()
            if connection is None:
                exchange.connecting()
                try:
                    connection = await self._pool.connect()
                except TimeoutError:
                    raise exchange.timed_out() from None
            try:
                await exchange.pass_gate(connection)
            except BaseException as error:
                # Nothing was written on it.
                self._pool.give_back(connection)
                if isinstance(error, StaleConnection):
                    continue
                raise
            return connection
        raise no_connection("the server closes its connections at once", hint="")

    def _head_of(self, wire: Wire) -> bytes:
        """Request line and headers. Raises BadRow for what no header can carry."""
        body, known = wire.body, self._headed
        if (
            known is None
            or known.headers is not wire.headers
            or known.target != wire.target
            or known.method != wire.method
        ):
            self._head_bytes = self._make_head(wire)
            self._headed = msgspec.structs.replace(wire, body=None)
        if body is None and wire.method not in _WITH_BODY:
            return self._head_bytes + b"\r\n"
        return b"%bContent-Length: %d\r\n\r\n" % (self._head_bytes, len(body or b""))

    def _make_head(self, wire: Wire) -> bytes:
        wire.check()
        headers = {
            "Host": self._host,
            "User-Agent": f"redline/{__version__}",
            "Accept-Encoding": "gzip, deflate",
        }
        given = dict(wire.headers)
        target = wire.target
        if self._is_tunnelled:
            given = {name: value for name, value in given.items() if not is_for_proxy(name)}
        elif self._forwarder is not None:
            target = f"http://{self._host}{target}"
            headers |= self._forwarder.headers
        names = {name.lower() for name in given}
        if "host" in names and self._forwarder is not None:
            raise BadRow(
                "the request cannot be sent: a proxy takes the host from the URL",
                hint="leave the Host header out",
            )
        headers = {name: value for name, value in headers.items() if name.lower() not in names}
        headers |= given
        lines = [f"{wire.method} {target} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        return ("\r\n".join(lines) + "\r\n").encode()

    def _target(self, path: str) -> str:
        """The path and query of the URL of a request's path. Raises ConfigError for no path."""
        url = self._endpoint.url_of(path).partition("#")[0]
        parts = urlsplit(url)
        target = url[len(parts.scheme) + 3 + len(parts.netloc) :] or "/"
        # Percent signs stay as they are: only characters that no server takes are quoted.
        is_plain = target.isascii() and " " not in target
        return target if is_plain else quote(target, safe=punctuation)


async def _handed_on(
    connection: Connection, take: Callable[[bytes], Awaitable[None]], kind: str
) -> bool:
    """Gives `take` an answer of this kind as it comes; False for any other, which is unread."""
    await connection.head()
    found = connection.headers.get("content-type") or ""
    if connection.status != 200 or not found.startswith(kind):
        connection.rest()
        return False
    while chunk := await connection.chunk():
        await take(chunk)
    return True
