"""Speaks HTTP/1.1 to one endpoint over keep-alive connections: TCP or TLS, direct or via a proxy.

An exchange gets a connection and then its grant, and waits in the outbox for the end of the event
loop's turn. Then the results that must be saved first are flushed once, and all due requests get
their send times and are written.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping
from functools import lru_cache
from string import punctuation
from urllib.parse import quote, urlsplit
from weakref import WeakSet

from redline.calls.wire.connection import Connection, unread
from redline.calls.wire.deadlines import Stops, TaskTimeout
from redline.calls.wire.dialer import Dialer
from redline.calls.wire.endpoint import Endpoint, proxy_of
from redline.calls.wire.exchange import (
    EVENTS,
    Answer,
    Exchange,
    Repeat,
    TooLate,
    do_nothing,
)
from redline.calls.wire.pool import Pool
from redline.calls.wire.proxy import (
    CHECK,
    ascii_name,
    is_for_proxy,
    no_connection,
    proxy_at,
    unauthorized,
)
from redline.calls.wire.reply_memory import ReplyMemory
from redline.calls.wire.request_head import request_head
from redline.calls.wire.reuse import Reuse
from redline.clock import SYSTEM, Clock
from redline.errors import BadRow, CallError, ConfigError

_MOST_STALE = 8
# Requests leave sooner than this after the last one of their turn was due, unless a disk is slow.
_LONG_S = 0.005
# Rows may have their own urls, but a run has few different ones.
_MOST_HEADS = 256
# The lengths of most bodies differ little.
_MOST_ENDS = 4096
_WITH_BODY = frozenset(("POST", "PUT", "PATCH"))


class Outbox:
    """Sends all requests that are due in one turn of the event loop together.

    before_write: called once before the requests get their send times and are written. If it takes
    long to save results, the exchanges record since when they have waited.
    """

    def __init__(self, before_write: Callable[[], None], clock: Clock = SYSTEM) -> None:
        self._before_write = before_write
        self._now_s = clock.now_s
        self._due: list[Connection] = []
        self._due_s = 0.0  # when the last one was due
        self._pools = WeakSet[Pool]()
        self._loop: asyncio.AbstractEventLoop | None = None

    def serve(self, pool: Pool) -> None:
        """Adds a pool, which is notified when requests come from another event loop."""
        self._pools.add(pool)

    def add(self, connection: Connection) -> None:
        """Adds a connection whose request is due."""
        if not self._due:
            loop = asyncio.get_running_loop()
            # Once per turn, not per request: getting the loop is a system call in CPython 3.11.
            if loop is not self._loop:
                self._enter(loop)
            loop.call_soon(self._leave)
        self._due.append(connection)
        # Counted from the last request: the results may have been saved earlier in this turn.
        self._due_s = self._now_s()

    def _enter(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        for pool in self._pools:
            pool.enter(loop)

    def _leave(self) -> None:
        due, self._due = self._due, []
        connection = due[0]
        try:
            self._before_write()
            if self._now_s() - self._due_s >= _LONG_S:
                for late in due:
                    late.was_due(self._due_s)
            for kept in unread(due):
                kept.found_unread()
            for connection in due:
                try:
                    connection.leave()
                except Exception as error:
                    connection.refuse(error)
        except Exception as error:
            for each in due:
                each.refuse(error)
        except BaseException as error:
            # A signal handler raised the error while the event loop was blocked. The task whose
            # request was being written gets the error; the other requests are due in the next turn,
            # unless they are cancelled first.
            connection.refuse(error)
            for each in due[due.index(connection) + 1 :]:
                self.add(each)


class Transport:
    """Exchanges with one endpoint over keep-alive connections, one for each concurrent exchange.

    proxy: the proxy's URL, None for no proxy. intake: bounds the memory of answers. on_handshake:
    called with the seconds that some connections took to make; see Dialer. Raises ConfigError for a
    proxy that cannot be used.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        clock: Clock,
        on_handshake: Callable[[float], None],
        intake: ReplyMemory | None = None,
        outbox: Outbox | None = None,
    ) -> None:
        self._endpoint = endpoint
        parts = urlsplit(endpoint.base_url)
        self._host = ascii_name(parts.netloc)
        self.proxy = proxy_of(endpoint)
        proxy = None if self.proxy is None else proxy_at(self.proxy, endpoint.headers)
        is_tls = parts.scheme == "https"
        self._is_tunnelled = is_tls and proxy is not None
        # The proxy that reads and forwards the requests themselves.
        self._forwarder = None if is_tls else proxy
        self._connect_hint = "" if proxy is None else f"through the proxy {proxy.server}: {CHECK}"
        self.intake = intake or ReplyMemory(endpoint.max_reply_bytes)
        self._headers = _default_headers(endpoint)
        # The heads of requests without headers of their own; the body's length is left out.
        self._heads: dict[tuple[str, str], bytes] = {}
        self._outbox = outbox or Outbox(do_nothing, clock)
        self._reuse = Reuse()
        self._stops = Stops(clock)
        dialer = Dialer(endpoint, proxy, self._stops, on_handshake)
        self._pool = Pool(dialer, self.intake, self._reuse, self._stops, endpoint.max_reply_bytes)
        self._outbox.serve(self._pool)

    def head(self, method: str, path: str, headers: Mapping[str, str], body: bytes | None) -> bytes:
        """Returns the head of a request: the request line and the headers.

        headers: take precedence over those of the endpoint. body: None for no body. Raises BadRow
        for an invalid method, path or header.
        """
        head = None if headers else self._heads.get((method, path))
        if head is None:
            head = self._make_head(method, path, headers)
        if body is None:
            return head + (_end(0) if method in _WITH_BODY else b"\r\n")
        return head + _end(len(body))

    async def exchange(
        self,
        exchange: Exchange,
        take: Callable[[bytes], Awaitable[None]] | None = None,
        kind: str = EVENTS,
    ) -> Answer:
        """Sends the request of `exchange` and returns the response.

        take: awaited with each part of the body as it arrives, if the response has status 200 and
        media type `kind`; the returned body is then empty. Any other response is read whole. Raises
        CallError, and Repeat if the exchange allows it.
        """
        stale = 0
        while True:
            connection = self._pool.take_now(exchange) or await self._ready(exchange)
            try:
                self._outbox.add(connection)
                await connection.open(exchange, take is not None)
                if connection.is_stale:
                    stale += 1
                    if stale == _MOST_STALE:
                        raise no_connection(
                            "the server closes every connection right away", hint=""
                        )
                    continue
                if take is not None and await _handed_on(exchange, connection, take, kind):
                    self._reuse.answered()
                    return Answer(connection.status, connection.headers, b"")
                body = connection.body
                if body is None:
                    body = await connection.whole()
                answer = Answer(connection.status, connection.headers, body)
                self._reuse.own(answer, exchange, connection)
                return answer
            except TooLate:
                # Nothing was written: the exchange waits for another grant.
                continue
            except (CallError, Repeat) as error:
                self._end(connection, exchange, error)
                raise
            finally:
                self._pool.give_back(connection)

    def check(self, answer: Answer) -> None:
        """Raises Refused if the response is a 407 of the proxy, which asks for a password."""
        if answer.status == 407 and self._forwarder is not None:
            raise unauthorized(407, answer.headers.get("proxy-authenticate", ""), self._forwarder)

    def close_latest(self) -> None:
        """Closes the connection that became idle last.

        For a task whose exchange is over and that has not waited since.
        """
        self._pool.close_latest()

    async def aclose(self) -> None:
        """Closes every connection. Current and later exchanges end with Disconnected."""
        self._pool.close()

    async def _ready(self, exchange: Exchange) -> Connection:
        """Waits for a connection and the exchange's grant. Raises CallError."""
        await exchange.get_ready()
        if exchange.deadline_s == math.inf:
            return await self._connected(exchange)
        try:
            async with TaskTimeout(self._stops) as alarm:
                exchange.follow(alarm)
                return await self._connected(exchange)
        except TimeoutError:
            raise exchange.timed_out() from None

    async def _connected(self, exchange: Exchange) -> Connection:
        if self.intake.is_full:
            exchange.waiting()
            await self.intake.room()
        pool = self._pool
        taken = pool.take() if exchange.failed is None else None
        if taken is not None:
            connection, since = taken
        else:
            exchange.connecting()
            try:
                connection, since = await pool.connect(), pool.sweeps
            except TimeoutError:
                raise exchange.timed_out(self._connect_hint) from None
        try:
            await exchange.wait_for_grant()
        except BaseException:
            pool.give_back(connection, since)
            raise
        return connection

    def _end(self, connection: Connection, exchange: Exchange, error: Exception) -> None:
        """Closes a connection whose exchange failed. Raises Repeat to send the request again."""
        if isinstance(error, CallError) and connection.is_done:
            # The request was not written, or its response is complete.
            return
        connection.close()
        if isinstance(error, CallError):
            self._reuse.check(error, exchange, connection)

    def _make_head(self, method: str, path: str, headers: Mapping[str, str]) -> bytes:
        target, given = self._target(path), self._headers
        if headers:
            given = {**given, **headers}
        if self._is_tunnelled:
            given = {name: value for name, value in given.items() if not is_for_proxy(name)}
        elif self._forwarder is not None:
            target = f"http://{self._host}{target}"
            if "host" in map(str.lower, given):
                raise BadRow(
                    "the request cannot be sent: a proxy takes the host from the URL",
                    hint="leave the Host header out",
                )
            given = {**self._forwarder.headers, **given}
        head = request_head(method, target, self._host, given)
        if not headers:
            if len(self._heads) >= _MOST_HEADS:
                self._heads.clear()
            self._heads[method, path] = head
        return head

    def _target(self, path: str) -> str:
        """Returns the path and query for a row's url. Raises BadRow if the url is not a path."""
        try:
            url = self._endpoint.url_of(path).partition("#")[0]
        except ConfigError as error:
            raise BadRow(error.what, hint=error.hint) from error
        parts = urlsplit(url)
        target = url[len(parts.scheme) + 3 + len(parts.netloc) :] or "/"
        # Percent signs stay as they are: only characters that no server accepts are quoted.
        is_plain = target.isascii() and " " not in target
        return target if is_plain else quote(target, safe=punctuation)


# Formatting the number would cost more than all other work on a head.
@lru_cache(maxsize=_MOST_ENDS)
def _end(size: int) -> bytes:
    """Returns the end of the head of a request whose body has this length."""
    return b"Content-Length: %d\r\n\r\n" % size


def _default_headers(endpoint: Endpoint) -> dict[str, str]:
    """Returns the headers of each request to the endpoint."""
    headers = {"Content-Type": "application/json", "Accept": "application/json"}
    if endpoint.api_key:
        headers["Authorization"] = f"Bearer {endpoint.api_key}"
    return headers | dict(endpoint.headers)


async def _handed_on(
    exchange: Exchange,
    connection: Connection,
    take: Callable[[bytes], Awaitable[None]],
    kind: str,
) -> bool:
    """Passes a body of this kind to `take` as it arrives; returns False for any other body."""
    await connection.head()
    found = connection.headers.get("content-type") or ""
    if connection.status != 200 or not found.lower().startswith(kind):
        connection.rest()
        return False
    exchange.on_streamed(connection.status, connection.headers)
    while chunk := await connection.chunk():
        await take(chunk)
    return True
