"""HTTP over aiohttp, for what redline's own connections decline: proxies and unusual requests.

aiohttp takes a connection and then calls `ClientRequest.send`. The gate stands exactly there: the
connection is up, nothing is written.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.client_reqrep import ClientRequest, ClientResponse
from aiohttp.connector import Connection
from yarl import URL

from redline._version import __version__
from redline.calls.endpoint import Endpoint
from redline.calls.exchange import Answer, Exchange, StaleConnection, TaskAlarm, Wire
from redline.calls.pool import HINTS, KEEP_ALIVE_S
from redline.clock import Clock
from redline.errors import BadReply, CallError, Disconnected, Rejected

_MOST_STALE = 8

_EXCHANGE: ContextVar[tuple[Exchange, TaskAlarm]] = ContextVar("redline_exchange")


class _Held:
    """aiohttp's connection, as the gate sees it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @property
    def is_open(self) -> bool:
        transport = self._connection.transport
        return transport is not None and not transport.is_closing()


class _GatedRequest(ClientRequest):
    async def send(self, conn: Connection) -> ClientResponse:
        exchange, alarm = _EXCHANGE.get()
        await exchange.pass_gate(_Held(conn))
        exchange.written(alarm)
        return await super().send(conn)


class _TimingConnector(aiohttp.TCPConnector):
    """Tells how long a connection took that was the only one in the making.

    Several at once wait for each other's turn on the event loop, which says nothing of the network.
    """

    def __init__(self, on_handshake: Callable[[float], None]) -> None:
        super().__init__(limit=0, keepalive_timeout=KEEP_ALIVE_S, ttl_dns_cache=60)
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


class AiohttpTransport:
    """Keep-alive connections to one endpoint, through `proxy` where one is named."""

    def __init__(
        self,
        endpoint: Endpoint,
        clock: Clock,
        on_handshake: Callable[[float], None],
        proxy: str | None,
    ) -> None:
        self._endpoint = endpoint
        self._clock = clock
        self._on_handshake = on_handshake
        self._proxy = proxy
        parts = urlsplit(endpoint.base_url)
        self._root = f"{parts.scheme}://{parts.netloc}"
        self._session: aiohttp.ClientSession | None = None

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
        """Closes every connection."""
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
                alarm = TaskAlarm(timer, self._clock)
                exchange.start(wire.deadline_s, alarm)
                response = await self._open(wire, exchange, alarm)
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

    async def _open(self, wire: Wire, exchange: Exchange, alarm: TaskAlarm) -> ClientResponse:
        session = self._connected()
        _EXCHANGE.set((exchange, alarm))
        for _ in range(_MOST_STALE):
            exchange.connecting()
            try:
                return await session.request(
                    wire.method,
                    URL(self._root + wire.target, encoded=True),
                    data=wire.body,
                    headers=wire.headers,
                    proxy=self._proxy,
                    allow_redirects=False,
                )
            except StaleConnection:
                continue
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


def _translate(error: Exception, *, was_sent: bool) -> CallError:
    """The one place where aiohttp's and the socket's errors become redline's."""
    text = " ".join(_reason(error).split()) or type(error).__name__
    if isinstance(error, ValueError) and not was_sent:
        return Rejected(f"the request cannot be sent: {text}", hint="check its method and headers")
    is_proxy = isinstance(error, aiohttp.ClientHttpProxyError)
    if isinstance(error, (aiohttp.ClientResponseError, ValueError)) and not is_proxy:
        return BadReply(f"the answer is not HTTP: {text}")
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        hint = "the server's certificate is not trusted: check --base-url"
    else:
        number = error.errno if isinstance(error, OSError) else None
        hint = HINTS.get(number or 0, "")
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
