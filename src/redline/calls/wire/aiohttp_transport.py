"""HTTP over aiohttp, for what redline's own connections decline: proxies and unusual requests.

aiohttp takes a connection and then calls `ClientRequest.send`. The gate stands exactly there: the
connection is up, nothing is written.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from contextvars import ContextVar
from functools import partial
from io import BytesIO
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.client_reqrep import ClientRequest, ClientResponse, ConnectionKey
from aiohttp.connector import Connection
from yarl import URL

from redline._version import __version__
from redline.calls.wire.connection import unread
from redline.calls.wire.deadlines import Deadlines, TaskAlarm
from redline.calls.wire.endpoint import Endpoint
from redline.calls.wire.exchange import (
    EVENTS,
    Answer,
    Exchange,
    Repeat,
    StaleConnection,
    Wire,
    answer_headers,
)
from redline.calls.wire.inflate import cut_short, inflate_for
from redline.calls.wire.pool import (
    HINTS,
    KEEP_ALIVE_S,
    UNTRUSTED,
    Handshakes,
    reason_of,
    trusting,
)
from redline.calls.wire.reply_memory import LONG_BYTES, ReplyMemory
from redline.calls.wire.reuse import Reuse, Trace, trace_of
from redline.clock import Clock
from redline.errors import BadReply, BadRow, CallError, Disconnected

_MOST_STALE = 8


class _Handler(ResponseHandler):
    """aiohttp's connection, but a body without a length is not whole where the connection broke.

    is_used: a request has been written on it. asked, last: see Kept.
    """

    is_used = False
    asked: Trace = b""
    last: tuple[Trace, Trace] | None = None
    _unread: select.poll | None = None

    @property
    def is_open(self) -> bool:
        """A request may be written: it is up, and nothing has come that no request asked for."""
        # It keeps what a server sends while nothing is asked, and would take it for the answer.
        if self.transport is None or self.transport.is_closing() or self.should_close:
            return False
        # Over TLS, the first bytes may be a session's ticket.
        return not self.is_used or self._unread is None or not self._unread.poll(0)

    @property
    def unasked(self) -> bool:
        """More than the answer may have come: aiohttp keeps it to itself."""
        return not self.is_open

    def begin(self, asked: Trace) -> bool:
        """A request is about to be written; whether another one was before."""
        was_used, self.is_used = self.is_used, True
        self.asked = asked
        return was_used

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._unread = unread(transport)

    def connection_lost(self, error: BaseException | None) -> None:
        self._unread = None
        payload = self._payload
        if error is not None and payload is not None and not payload.is_eof():
            payload.set_exception(aiohttp.ClientPayloadError(str(error)))
        super().connection_lost(error)


class _Open:
    """An exchange that aiohttp is to write, and the connection that it has got for it."""

    def __init__(self, wire: Wire, exchange: Exchange, alarm: TaskAlarm) -> None:
        self.asked = trace_of(wire.body or b"")
        self.exchange = exchange
        self.alarm = alarm
        self.handler: _Handler | None = None


_OPEN: ContextVar[_Open] = ContextVar("redline_exchange")


class _GatedRequest(ClientRequest):
    async def send(self, conn: Connection) -> ClientResponse:
        opened = _OPEN.get()
        exchange, handler = opened.exchange, conn.protocol
        if not isinstance(handler, _Handler):
            # It was lost meanwhile.
            raise StaleConnection
        await exchange.pass_gate(handler)
        opened.handler = handler
        is_kept = handler.begin(opened.asked)
        exchange.written(opened.alarm, is_kept=is_kept)
        return await super().send(conn)


class _TimingConnector(aiohttp.TCPConnector):
    """Makes connections whose exchange is in _OPEN, and times them."""

    def __init__(
        self, on_handshake: Callable[[float], None], reuse: Reuse, *, is_tls: bool
    ) -> None:
        # aiohttp's own context is made at its import, before settings may have named the roots.
        context = trusting() if is_tls else True
        super().__init__(limit=0, keepalive_timeout=KEEP_ALIVE_S, ttl_dns_cache=60, ssl=context)
        handler: type[ResponseHandler] = _Handler
        self._factory = partial(handler, loop=self._loop)
        self._handshakes = Handshakes(on_handshake)
        self._reuse = reuse

    async def _get(self, key: ConnectionKey, traces: list[Any]) -> Connection | None:
        if _OPEN.get().exchange.needs_new:
            return None
        return await super()._get(key, traces)

    def _release(
        self, key: ConnectionKey, protocol: ResponseHandler, *, should_close: bool = False
    ) -> None:
        should_close = should_close or not self._reuse.is_allowed
        super()._release(key, protocol, should_close=should_close)

    async def _create_connection(
        self, req: ClientRequest, traces: list[Any], within: aiohttp.ClientTimeout
    ) -> ResponseHandler:
        with self._handshakes.timed():
            return await super()._create_connection(req, traces, within)


class _Turn:
    """When the reader of a long answer may go on."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._is_mine = asyncio.Event()
        self._is_mine.set()

    def pause(self) -> None:
        if self._is_mine.is_set():
            self._is_mine.clear()
            self._exchange.pause()

    def resume(self) -> None:
        if not self._is_mine.is_set():
            self._is_mine.set()
            self._exchange.resume()

    async def come(self) -> None:
        """Returns once it may."""
        await self._is_mine.wait()


class AiohttpTransport:
    """Keep-alive connections to one endpoint, through `proxy` where one is named."""

    def __init__(
        self,
        endpoint: Endpoint,
        clock: Clock,
        on_handshake: Callable[[float], None],
        intake: ReplyMemory,
        reuse: Reuse,
        proxy: str | None,
    ) -> None:
        self._endpoint = endpoint
        self._intake = intake
        self._reuse = reuse
        self._deadlines = Deadlines(clock)
        self._on_handshake = on_handshake
        self._proxy = proxy
        parts = urlsplit(endpoint.base_url)
        self._root = f"{parts.scheme}://{parts.netloc}"
        self._session: aiohttp.ClientSession | None = None

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
        wire.check()
        await exchange.get_ready()
        response: ClientResponse | None = None
        try:
            async with self._deadlines.timeout() as alarm:
                exchange.start(wire.deadline_s, alarm)
                opened = _Open(wire, exchange, alarm)
                response = await self._open(wire, opened)
                exchange.headers_came()
                content_type = response.headers.get("content-type", "")
                if take is None or response.status != 200 or not content_type.startswith(kind):
                    body = await self._read(response, exchange)
                else:
                    body = b""
                    async with aclosing(self._chunks(response)) as chunks:
                        async for chunk in chunks:
                            await take(chunk)
                answer = Answer(response.status, answer_headers(response.raw_headers), body)
                self._check(answer, opened)
                return answer
        except TimeoutError:
            raise exchange.timed_out() from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            found = _translate(error, was_sent=exchange.sent_s is not None)
            self._reuse.check(found, exchange, has_head=response is not None)
            raise found from error
        finally:
            if response is not None:
                # A connection whose answer was not read to its end is closed, not reused.
                response.release()

    async def aclose(self) -> None:
        """Closes every connection."""
        if self._session is not None:
            await self._session.close()
        self._deadlines.close()

    def _check(self, answer: Answer, opened: _Open) -> None:
        """Raises Repeat if the answer may be another request's."""
        assert opened.handler is not None
        try:
            self._reuse.own(answer, opened.exchange, opened.handler)
        except Repeat:
            opened.handler.close()
            raise

    async def _open(self, wire: Wire, opened: _Open) -> ClientResponse:
        exchange = opened.exchange
        session = self._connected()
        if self._intake.is_full:
            exchange.waiting()
            await self._intake.room()
        _OPEN.set(opened)
        for _ in range(_MOST_STALE):
            exchange.connecting()
            try:
                return await session.request(
                    wire.method,
                    URL(self._root + wire.target, encoded=True),
                    data=_payload(wire.body),
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
                connector=_TimingConnector(
                    self._on_handshake, self._reuse, is_tls=self._root.startswith("https:")
                ),
                cookie_jar=aiohttp.DummyCookieJar(),
                request_class=_GatedRequest,
                # Redline's own clocks know their phases; see Exchange.
                timeout=aiohttp.ClientTimeout(),
                headers={
                    "User-Agent": f"redline/{__version__}",
                    "Accept-Encoding": "gzip, deflate",
                },
                # It takes a body that is cut short for a whole one; see inflate.py.
                auto_decompress=False,
            )
        return self._session

    async def _read(self, response: ClientResponse, exchange: Exchange) -> bytes:
        parts: list[bytes] = []
        size = 0
        turn = _Turn(exchange)
        try:
            async with aclosing(self._chunks(response)) as chunks:
                async for chunk in chunks:
                    parts.append(chunk)
                    size += len(chunk)
                    if size > LONG_BYTES:
                        self._intake.read(turn, size)
                        await turn.come()
            return parts[0] if len(parts) == 1 else b"".join(parts)
        finally:
            self._intake.leave(turn)

    async def _chunks(self, response: ClientResponse) -> AsyncGenerator[bytes, None]:
        """The body as it comes, in the clear. Raises BadReply, too above the endpoint's bound."""
        if response.status == 101:
            raise BadReply("the server answers with another protocol (HTTP 101)")
        inflate = inflate_for(answer_headers(response.raw_headers))
        most_bytes = self._endpoint.max_reply_bytes
        size = 0
        while chunk := await response.content.readany():
            if inflate is not None:
                chunk = inflate.take(chunk, most_bytes - size + 1)
            size += len(chunk)
            if size > most_bytes:
                raise BadReply(f"the answer is longer than {most_bytes:,} bytes")
            if chunk:
                yield chunk
        if inflate is not None and not inflate.is_whole:
            raise cut_short()


def _payload(body: bytes | None) -> bytes | BytesIO | None:
    """The body as aiohttp writes it: a long one in parts, so that it warns of nothing."""
    return body if body is None or len(body) <= 1 << 20 else BytesIO(body)


def _translate(error: Exception, *, was_sent: bool) -> CallError:
    """The one place where aiohttp's and the socket's errors become redline's."""
    text = " ".join(_reason(error).split()) or type(error).__name__
    # A certificate's error is a ValueError, too.
    is_bad = isinstance(error, ValueError) and not isinstance(error, OSError)
    if is_bad and not was_sent:
        return BadRow(f"the request cannot be sent: {text}", hint="check its method and headers")
    is_proxy = isinstance(error, aiohttp.ClientHttpProxyError)
    if is_bad or (isinstance(error, aiohttp.ClientResponseError) and not is_proxy):
        return BadReply(f"the answer is not HTTP: {text}")
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        hint = UNTRUSTED
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
    return f"{error.host}:{error.port}: {reason_of(error.os_error) or error.os_error}"
