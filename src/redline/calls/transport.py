"""HTTP over aiohttp: one exchange, its phases timed, its errors translated.

aiohttp takes a connection and then calls `ClientRequest.send`. The gate stands exactly there: the
connection is up, nothing is written. So the limits are waited for with the connection in hand, and
the send stamp is the time of the write.

Phases of an exchange: connect -> row (at the gate, only the row's deadline counts) -> first_byte ->
attempt.
"""

from __future__ import annotations

import asyncio
import errno
import math
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
import msgspec
from aiohttp.client_proto import ResponseHandler
from aiohttp.client_reqrep import ClientRequest, ClientResponse
from aiohttp.connector import Connection
from yarl import URL

from redline._version import __version__
from redline.calls.endpoint import Endpoint, Timeouts
from redline.clock import Clock
from redline.errors import BadReply, CallError, Disconnected, Rejected, TimedOut
from redline.limits.opening import AnyGrant

# Servers close idle connections after 5 s (uvicorn) to 75 s (nginx). One that was closed meanwhile
# costs a reconnect and no attempt, so this only bounds idle sockets.
_KEEP_ALIVE_S = 60.0
_MOST_STALE = 8


class Wire(msgspec.Struct, frozen=True):
    """A request as bytes. `deadline_s`: monotonic time at which it is given up."""

    method: str
    url: URL
    headers: Mapping[str, str]
    body: bytes | None
    deadline_s: float


class Answer(msgspec.Struct):
    """An HTTP answer; `headers` finds a name in any case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Exchange:
    """One exchange's clocks and grant.

    acquire: waits for the limits. on_sent: told the time of the write and the seconds waited.
    The grant is the caller's to release or to settle.
    """

    def __init__(
        self,
        timeouts: Timeouts,
        clock: Clock,
        acquire: Callable[[], Awaitable[AnyGrant]],
        on_sent: Callable[[float, float], None],
    ) -> None:
        self._timeouts = timeouts
        self._clock = clock
        self._acquire = acquire
        self._on_sent = on_sent
        self._timer: asyncio.Timeout | None = None
        self._deadline_s = math.inf
        self._is_spent = False  # the grant was used for a write
        self.phase = "connect"
        self.grant: AnyGrant | None = None
        self.sent_s: float | None = None
        self.first_byte_s: float | None = None

    def start(self, timer: asyncio.Timeout, deadline_s: float) -> None:
        """The exchange begins now, under `timer`."""
        self._timer = timer
        self._deadline_s = deadline_s
        self.connecting()

    def connecting(self) -> None:
        """A connection is wanted: the first one, or one in place of a stale one."""
        self._enter("connect", self._clock.now_s() + self._timeouts.connect_s)

    async def pass_gate(self, conn: Connection) -> None:
        """Waits for the grant; returns when the request may be written, which is stamped."""
        if self._is_spent:
            # aiohttp repeats an idempotent request by itself when its connection breaks: a second
            # write needs a second grant.
            self.grant = None
            self._is_spent = False
        _check_open(conn)
        if self.grant is None:
            self._enter("row", math.inf)
            self.grant = await self._acquire()
        _check_open(conn)
        self.sent_s = self._clock.now_s()
        self.grant.sent(self.sent_s)
        self._is_spent = True
        self._on_sent(self.sent_s, self.grant.waited_s)
        bound_s = min(self._timeouts.first_byte_s, self._timeouts.attempt_s)
        is_short = self._timeouts.first_byte_s < self._timeouts.attempt_s
        self._enter("first_byte" if is_short else "attempt", self.sent_s + bound_s)

    def headers_came(self) -> None:
        """The first byte of the answer is here."""
        self.first_byte_s = self._clock.now_s()
        if self.phase == "first_byte" and self.sent_s is not None:
            self._enter("attempt", self.sent_s + self._timeouts.attempt_s)

    def timed_out(self) -> TimedOut:
        """The error of the phase whose clock ran out."""
        if self.phase == "row":
            return TimedOut("row")
        return TimedOut(self.phase, getattr(self._timeouts, f"{self.phase}_s"))

    def _enter(self, phase: str, until_s: float) -> None:
        self.phase = phase if until_s < self._deadline_s else "row"
        until_s = min(until_s, self._deadline_s)
        if self._timer is not None:
            in_s = until_s - self._clock.now_s()
            loop_s = asyncio.get_running_loop().time()
            self._timer.reschedule(None if in_s == math.inf else loop_s + in_s)


class _StaleConnection(Exception):
    """The server closed the connection before anything was written on it."""


def _check_open(conn: Connection) -> None:
    if conn.transport is None or conn.transport.is_closing():
        raise _StaleConnection


_EXCHANGE: ContextVar[Exchange] = ContextVar("redline_exchange")


class _GatedRequest(ClientRequest):
    async def send(self, conn: Connection) -> ClientResponse:
        await _EXCHANGE.get().pass_gate(conn)
        return await super().send(conn)


class _TimingConnector(aiohttp.TCPConnector):
    """Tells how long a connection took that was the only one in the making.

    Several at once wait for each other's turn on the event loop, which says nothing of the network.
    """

    def __init__(self, on_handshake: Callable[[float], None]) -> None:
        super().__init__(limit=0, keepalive_timeout=_KEEP_ALIVE_S, ttl_dns_cache=60)
        self._on_handshake = on_handshake
        self._making = 0
        self._begun = 0

    async def _create_connection(
        self, req: ClientRequest, traces: list[Any], within: aiohttp.ClientTimeout
    ) -> ResponseHandler:
        self._begun += 1
        number, others = self._begun, self._making
        self._making += 1
        begun_s = time.monotonic()
        try:
            made = await super()._create_connection(req, traces, within)
        finally:
            self._making -= 1
        if others == 0 and self._begun == number:
            self._on_handshake(time.monotonic() - begun_s)
        return made


class Transport:
    """Keep-alive connections to one endpoint; as many as there are exchanges at once.

    on_handshake: told the seconds that a connection took, of some of them.
    """

    def __init__(self, endpoint: Endpoint, on_handshake: Callable[[float], None]) -> None:
        self._endpoint = endpoint
        self._on_handshake = on_handshake
        is_stated = endpoint.proxy is not None
        self.proxy = (endpoint.proxy or None) if is_stated else _env_proxy(endpoint.base_url)
        self._session: aiohttp.ClientSession | None = None
        self.url = lru_cache(maxsize=1024)(self._url)

    async def exchange(self, wire: Wire, exchange: Exchange) -> Answer:
        """The whole answer to `wire`. Raises CallError."""
        return await self._answered(wire, exchange, self._read)

    async def stream(
        self, wire: Wire, exchange: Exchange, take: Callable[[bytes], Awaitable[None]]
    ) -> Answer:
        """As `exchange`, but an event stream's bytes go to `take` as they come, awaited.

        The answer's body is then empty; an answer of another type or status is read whole.
        """

        async def consume(response: ClientResponse) -> bytes:
            kind = response.headers.get("content-type", "")
            if response.status != 200 or not kind.startswith("text/event-stream"):
                return await self._read(response)
            size = 0
            while chunk := await response.content.readany():
                size = self._bounded(size + len(chunk))
                await take(chunk)
            return b""

        return await self._answered(wire, exchange, consume)

    async def aclose(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def _answered(
        self,
        wire: Wire,
        exchange: Exchange,
        consume: Callable[[ClientResponse], Awaitable[bytes]],
    ) -> Answer:
        response: ClientResponse | None = None
        try:
            async with asyncio.timeout(None) as timer:
                exchange.start(timer, wire.deadline_s)
                response = await self._open(wire, exchange)
                exchange.headers_came()
                body = await consume(response)
                return Answer(response.status, response.headers, body)
        except TimeoutError:
            raise exchange.timed_out() from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise _translate(error, was_sent=exchange.sent_s is not None) from error
        finally:
            if response is not None:
                # A connection whose answer was not read to its end is closed, not reused.
                response.release()

    async def _open(self, wire: Wire, exchange: Exchange) -> ClientResponse:
        session = self._connected()
        _EXCHANGE.set(exchange)
        for _ in range(_MOST_STALE):
            try:
                return await session.request(
                    wire.method,
                    wire.url,
                    data=wire.body,
                    headers=wire.headers,
                    proxy=self.proxy,
                    allow_redirects=False,
                )
            except _StaleConnection:
                exchange.connecting()
        raise aiohttp.ServerDisconnectedError("the server closes its connections at once")

    def _connected(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=_TimingConnector(self._on_handshake),
                cookie_jar=aiohttp.DummyCookieJar(),
                request_class=_GatedRequest,
                # Redline's own clocks know their phases; see Exchange.
                timeout=aiohttp.ClientTimeout(),
                headers={"User-Agent": f"redline/{__version__}"},
            )
        return self._session

    def _url(self, path: str) -> URL:
        """The whole URL of a path. Raises ConfigError for what is none."""
        # `encoded` keeps percent signs as they are; characters that need quoting were refused by
        # the server anyway, so quote only where they occur.
        url = self._endpoint.url_of(path)
        return URL(url, encoded=url.isascii() and " " not in url)

    async def _read(self, response: ClientResponse) -> bytes:
        body = await response.content.readany()
        size = self._bounded(len(body))
        if response.content.at_eof():
            return body
        parts = [body]
        while chunk := await response.content.readany():
            size = self._bounded(size + len(chunk))
            parts.append(chunk)
        return b"".join(parts)

    def _bounded(self, size: int) -> int:
        """The size of an answer so far. Raises BadReply above the endpoint's bound."""
        if size > self._endpoint.max_reply_bytes:
            raise BadReply(f"the answer is longer than {self._endpoint.max_reply_bytes:,} bytes")
        return size


def _env_proxy(base_url: str) -> str | None:
    """The proxy that HTTP(S)_PROXY and NO_PROXY name for this URL, read once."""
    parts = urlsplit(base_url)
    proxy = getproxies().get(parts.scheme)
    # With the port, because NO_PROXY may name one.
    host = parts.netloc.rpartition("@")[2]
    return None if proxy is None or proxy_bypass(host) else proxy


_HINTS = {
    errno.EMFILE: "too many open files: raise `ulimit -n` or lower --concurrency",
    errno.ECONNREFUSED: "nothing listens there: check --base-url, and that the server runs",
}


def _translate(error: Exception, *, was_sent: bool) -> CallError:
    """The one place where aiohttp's and the socket's errors become redline's."""
    text = " ".join(_reason(error).split()) or type(error).__name__
    if isinstance(error, aiohttp.InvalidURL):
        return Rejected(f"not a URL: {text}", hint="check --url and --base-url")
    if isinstance(error, ValueError) and not was_sent:
        return Rejected(f"the request cannot be sent: {text}", hint="check its method and headers")
    is_proxy = isinstance(error, aiohttp.ClientHttpProxyError)
    if isinstance(error, (aiohttp.ClientResponseError, ValueError)) and not is_proxy:
        return BadReply(f"the answer is not HTTP: {text}")
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        hint = "the server's certificate is not trusted: check --base-url"
    else:
        number = error.errno if isinstance(error, OSError) else None
        hint = _HINTS.get(number or 0, "")
    what = "the connection broke" if was_sent else "no connection"
    disconnected = Disconnected(f"{what}: {text}", hint=hint)
    disconnected.was_sent = was_sent
    return disconnected


def _reason(error: Exception) -> str:
    """The error in the system's words where there are some, without aiohttp's wrapping."""
    if not isinstance(error, aiohttp.ClientConnectorError):
        return str(error)
    # A failed name look-up has a negative number and a text of its own.
    number = error.os_error.errno or 0
    reason = os.strerror(number) if number > 0 else error.os_error.strerror
    return f"{error.host}:{error.port}: {reason or error.os_error}"
