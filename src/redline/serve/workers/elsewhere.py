"""Forwards requests for files and batches to the one worker that owns them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import httptools
import msgspec

from redline.errors import Disconnected
from redline.httpserver import Exchange, State
from redline.process import end_tasks
from redline.serve.http import Refusal, Route, busy, read_of

_CONNECT_S = 5.0
_PIECE_BYTES = 64 * 1024
# Headers that concern a single connection and are not forwarded (RFC 9110, 7.6.1).
_HOP = {
    *("connection", "keep-alive", "transfer-encoding", "content-length", "te", "trailer"),
    *("upgrade", "expect", "proxy-connection"),
}
# Bodies are forwarded decompressed. This worker checks the Origin, and adds the headers that let a
# web page read the response.
_NOT_SENT = frozenset(_HOP | {"content-encoding", "origin"})
_NOT_GIVEN_BACK = frozenset(_HOP | {"date"})


class Elsewhere:
    """Forwards requests to another worker.

    door: the Unix socket on which that worker serves. routes: the routes that it owns; the
    attribute `routes` has the same routes, with handlers that forward.
    """

    def __init__(self, door: Path, routes: Sequence[Route]) -> None:
        self._door = door
        self.routes = [
            Route(route.method, route.pattern, self._answer, route.most_body_bytes)
            for route in routes
        ]

    async def _answer(self, exchange: Exchange, tenant: str, *ids: str) -> None:
        try:
            async with asyncio.timeout(_CONNECT_S):
                reader, writer = await asyncio.open_unix_connection(str(self._door))
        except (OSError, TimeoutError):
            raise _away() from None
        try:
            await _Passing(exchange, reader, writer).run()
        finally:
            writer.transport.abort()


def _away() -> Refusal:
    return busy("The worker that serves files and batches cannot be reached.", "overloaded")


class _Passing(msgspec.Struct, eq=False):
    """Forwards one request as it arrives, and passes back its response."""

    _exchange: Exchange
    _reader: asyncio.StreamReader
    _writer: asyncio.StreamWriter
    _fields: list[bytes] = []
    _data: bytearray = bytearray()
    _is_head: bool = False
    _is_over: bool = False

    async def run(self) -> None:
        """Returns once the client has the response.

        Raises Refusal if the request's body cannot be read. If the other worker is lost, raises
        Refusal, or breaks off a response that has begun.
        """
        sending = asyncio.ensure_future(self._send())
        answering = asyncio.ensure_future(self._pass_back())
        both = (sending, answering)
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if not answering.done() and isinstance(error := sending.exception(), Refusal):
                raise error
            # A request may be refused before its body is complete.
            await answering
        except (OSError, httptools.HttpParserError, Disconnected):
            if self._exchange.state is State.WAITING:
                raise _away() from None
            self._exchange.break_off()
        finally:
            await end_tasks(*both)

    async def _send(self) -> None:
        exchange, writer = self._exchange, self._writer
        lines = [f"{exchange.method} {exchange.target} HTTP/1.1", "connection: close"]
        headers = exchange.headers
        if "host" not in headers:
            # HTTP/1.0 requests may lack this header, but HTTP/1.1 requires it (RFC 9112, 3.2).
            lines.append("host:")
        lines += [f"{name}: {value}" for name, value in headers.items() if name not in _NOT_SENT]
        length = None if "content-encoding" in headers else headers.get("content-length")
        part = await read_of(exchange.part())
        if length is not None:
            # For an upload, this size is reserved from the tenant's quota; without a length, the
            # maximum is.
            lines.append(f"content-length: {length}")
        elif part:
            lines.append("transfer-encoding: chunked")
        writer.write("\r\n".join([*lines, "", ""]).encode("latin-1"))
        while part:
            writer.write(part if length is not None else b"%x\r\n%b\r\n" % (len(part), part))
            await writer.drain()
            part = await read_of(exchange.part())
            if not part and length is None:
                writer.write(b"0\r\n\r\n")
        await writer.drain()

    async def _pass_back(self) -> None:
        exchange, parser = self._exchange, httptools.HttpResponseParser(self)
        while not self._is_over:
            data = await self._reader.read(_PIECE_BYTES)
            if not data:
                raise Disconnected("the worker has closed the connection")
            parser.feed_data(data)
            if self._is_head and exchange.state is State.WAITING:
                await exchange.begin(parser.get_status_code(), b"".join(self._fields))
            if self._data:
                part, self._data = bytes(self._data), bytearray()
                await exchange.write(part)
        await exchange.end()

    # Callbacks of the parser.

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.decode("latin-1").lower() not in _NOT_GIVEN_BACK:
            self._fields.append(b"%b: %b\r\n" % (name, value))

    def on_headers_complete(self) -> None:
        self._is_head = True

    def on_body(self, body: bytes) -> None:
        self._data += body

    def on_message_complete(self) -> None:
        self._is_over = True
