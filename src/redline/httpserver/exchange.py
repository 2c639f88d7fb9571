"""Presents one request and its response to a handler.

state      from                        the handler may
WAITING    the request                 `respond`, or `begin` a stream
STREAMING  `begin`                     `write` to the stream, then `end` it
OVER       the end of the response     send nothing more
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cached_property
from socket import SO_LINGER, SOL_SOCKET
from typing import Any, Protocol
from urllib.parse import parse_qsl, quote

from redline.httpserver.framing import Fault, Fields, Line
from redline.httpserver.heads import BODILESS, CONTINUE, JSON, TEXT, length_line, shown, status_line
from redline.httpserver.request_form import RequestForm, form_of
from redline.inflate import BadCompressionError, Inflate

# A body of this size or more is written separately, not copied behind its head.
_LARGE_BYTES = 64 * 1024
# When more of a body than this is buffered, reading pauses until the handler takes it.
_WAITING_BYTES = 64 * 1024
_MOST_QUERY_FIELDS = 1000
_END = b"\r\n"


class State(Enum):
    """The state of a response."""

    WAITING = 1
    STREAMING = 2
    OVER = 3


# An enum's members are slow to look up.
_WAITING, _STREAMING, _OVER = State


class BodyError(Fault):
    """The body or the query of a request cannot be read."""


class ClientGoneError(ConnectionError):
    """The client left before its response was written."""


class Shared(Protocol):
    """The state that the exchanges of one server share. date: the line of the Date header."""

    date: bytes
    is_draining: bool


class Channel(Protocol):
    """The connection of an exchange."""

    transport: asyncio.Transport
    is_lost: bool
    is_write_paused: bool
    most_body_bytes: int
    write: Callable[[bytes], None] | None

    @property
    def service(self) -> Shared: ...

    async def drained(self) -> None: ...
    def read_body(self) -> None: ...
    def close(self) -> None: ...


class Exchange:
    """One request, and the methods that answer it; created by the connection for one handler.

    method: in upper case. path: decoded.

    is_kept: whether the connection may serve another request after this one. body, size: only for a
    request of a known form (see request_form.py): the body if it has arrived whole, and the body's
    size in bytes. fault: the reason to refuse the request without a handler; None to accept it.
    """

    # The bound of a path that has its own; None for the bound of the connection.
    most_body_bytes: int | None = None
    _extra = b""
    _received = 0
    _inflated = 0
    error: BodyError | None = None
    _waiter: asyncio.Future[None] | None = None
    _inflate: Inflate | None = None
    _is_whole_wanted = False
    _unsent_head = b""
    _is_chunked = True
    _find_wanted: Callable[[State], bool] | None = None

    def __init__(
        self,
        channel: Channel,
        line: Line,
        fields: Fields,
        is_kept: bool,
        body: bytes | None = None,
        size: int | None = None,
        fault: Fault | None = None,
    ) -> None:
        self._channel = channel
        self._fields = fields
        self.method, self.path, self._query, self._is_http_1_1 = line
        self.is_kept = is_kept
        self.fault = fault
        self.state = _WAITING
        self._body: bytes | bytearray = body or b""
        # Whether the whole body of the request has been received.
        self.is_complete = body is not None
        self._size = size

    # The request.

    @cached_property
    def headers(self) -> Mapping[str, str]:
        """Values by lower-case name; the values of a repeated header are joined with commas."""
        fields = self._fields
        headers = {name.decode("latin-1"): fields[name].decode("latin-1") for name in fields}
        if self._size is not None and "content-length" in headers:
            headers["content-length"] = str(self._size)
        return headers

    def header(self, name: bytes) -> str | None:
        """Returns the value of the header with this lower-case name; cheaper than `headers`."""
        value = self._fields.get(name)
        return None if value is None else value.decode("latin-1")

    @property
    def kept(self) -> Any:
        """The object kept for requests with the same header fields; None if there is none."""
        return self._fields.kept

    def keep(self, found: object) -> None:
        """Keeps what the handler read from the header fields, for requests with the same fields.

        Most clients send the same fields, apart from the length, with each request of a connection.
        """
        self._fields.kept = found

    @property
    def target(self) -> str:
        """The path and the query, encoded as in a request line."""
        query = self._query.decode("latin-1")
        return quote(self.path) + (f"?{query}" if query else "")

    @cached_property
    def query(self) -> Mapping[str, str]:
        """The first value of each field of the query. Raises BodyError for too many fields."""
        try:
            pairs = parse_qsl(
                self._query.decode("ascii"),
                keep_blank_values=True,
                max_num_fields=_MOST_QUERY_FIELDS,
            )
        except ValueError:
            raise BodyError(400, "the query has too many fields") from None
        return dict(reversed(pairs))

    async def body(self) -> bytes:
        """Returns the rest of the body, decompressed; works only once. Raises BodyError."""
        if not self.is_complete or self.error is not None:
            self._is_whole_wanted = True
            while not self.is_complete or self.error is not None:
                await self._change()
        return self.received()

    def received(self) -> bytes:
        """Returns what was received since the last read; if `is_complete`, the rest of the body."""
        body, self._body = self._body, b""
        return body if isinstance(body, bytes) else bytes(body)

    async def part(self) -> bytes:
        """Returns the next part of the body, decompressed; b"" at its end. Raises BodyError."""
        while self.error is not None or not (self._body or self.is_complete):
            await self._change()
        return self.received()

    async def _change(self) -> None:
        """Waits until more of the body, or its end, has arrived. Raises BodyError."""
        if self.error is not None:
            raise self.error
        if not self._received and self._is_http_1_1 and not self._channel.is_lost:
            expect = self._fields.get(b"expect")
            if expect is not None and expect.lower() == b"100-continue":
                self._channel.transport.write(CONTINUE)
                del self._fields[b"expect"]
        self._waiter = asyncio.Future()
        self._channel.read_body()
        try:
            await self._waiter
        finally:
            self._waiter = None

    # The response.

    @property
    def is_gone(self) -> bool:
        """Whether the client has left, so that no data reaches it."""
        return self._channel.is_lost

    @property
    def transport(self) -> asyncio.Transport:
        """The transport of the connection, for responses that `respond` cannot send."""
        return self._channel.transport

    def add(self, fields: bytes) -> None:
        """Adds header lines to the response, which must not have begun."""
        self._extra += fields

    def respond(
        self, status: int, body: bytes = b"", fields: bytes = JSON, *, is_last: bool = False
    ) -> None:
        """Sends the whole response in one write. Never waits; see `drained`.

        fields: header lines, such as those from `header_lines`, without length and date. is_last:
        close the connection after the response. Sends nothing to a client that has left.
        """
        if self.state is not _WAITING:
            raise RuntimeError("the response has already begun")
        self.state = _OVER
        channel = self._channel
        if channel.is_lost:
            self.is_kept = False
            return
        size_bytes = len(body)
        if self.method == "HEAD" or status in BODILESS:
            body = b""
        if len(body) < _LARGE_BYTES:
            channel.transport.write(self.head(status, size_bytes, fields, is_last, body))
        else:
            channel.transport.writelines((self.head(status, size_bytes, fields, is_last), body))

    def head(
        self,
        status: int,
        size_bytes: int,
        fields: bytes = JSON,
        is_last: bool = False,
        body: bytes = b"",
    ) -> bytes:
        """Returns the head that `respond` sends before a body of this size, followed by `body`."""
        service = self._channel.service
        # The rest of an unread body may still be on its way.
        if is_last or not self.is_complete or service.is_draining:
            self.is_kept = False
        size = b"" if status in BODILESS else length_line(size_bytes)
        end = _END if self.is_kept and self._is_http_1_1 else self._head_end()
        line = status_line(status)
        return b"".join((line, fields, self._extra, size, service.date, end, body))

    def respond_in_one_chunk(self, status: int, body: bytes, fields: bytes = JSON) -> None:
        """Sends the whole response like a stream that has ended: in one chunk, without a length."""
        self._begin(status, fields)
        self.state = _OVER
        if self._channel.is_lost:
            self.is_kept = False
        else:
            self._channel.transport.write(self._unsent_head + self._framed(body) + self._last())
            self._unsent_head = b""

    async def begin(self, status: int, fields: bytes = JSON, data: bytes = b"") -> None:
        """Begins a response of any length.

        fields: as for `respond`. data: the first part of the body; without it, the head is sent
        together with the first write. Raises ClientGoneError; cancelled when the client leaves.
        """
        self._begin(status, fields)
        if data:
            await self.write(data)

    def _begin(self, status: int, fields: bytes) -> None:
        if self.state is not _WAITING:
            raise RuntimeError("the response has already begun")
        self.state = _STREAMING
        service = self._channel.service
        self._is_chunked = self._is_http_1_1
        framing = b"transfer-encoding: chunked\r\n" if self._is_chunked else b""
        # Without chunks, the end of the connection is the end of the body.
        if not self._is_chunked or not self.is_complete or service.is_draining:
            self.is_kept = False
        line, end = status_line(status), self._head_end()
        self._unsent_head = b"".join((line, fields, self._extra, framing, service.date, end))

    async def write(self, data: bytes) -> None:
        """Sends the next part of the body. Returns once the client has room for more.

        Raises ClientGoneError; cancelled when the client leaves.
        """
        self._send(self._framed(data))
        if self._channel.is_write_paused:
            await self._channel.drained()

    def write_now(self, data: bytes) -> bool:
        """Sends the next part of the body, which must not be empty, without waiting.

        Returns False if it was not sent: the client has left, its buffer is full, the head has not
        been sent yet, or the response has no chunks.
        """
        outlet = self.outlet
        if outlet is None or outlet.write is None:
            return False
        outlet.write(b"%x\r\n%b\r\n" % (len(data), data))
        return True

    @property
    def outlet(self) -> Channel | None:
        """The channel for the next chunks of the body; None while no chunk can be sent.

        It is None before the head has been sent, after `end`, and for a client of HTTP/1.0. Its
        `write` is None while the client's buffer is full, and after the client has left.
        """
        if self.state is not _STREAMING or self._unsent_head or not self._is_chunked:
            return None
        return self._channel

    async def end(self, data: bytes = b"") -> None:
        """Sends `data` as the last part of the body, and ends it. Raises ClientGoneError."""
        self._send(self._framed(data) + self._last())
        self.state = _OVER
        await self.drained()

    def _send(self, framed: bytes) -> None:
        channel = self._channel
        if self.state is not _STREAMING:
            raise RuntimeError("the response has not begun, or is over")
        if channel.is_lost:
            raise ClientGoneError
        if self._unsent_head:
            framed, self._unsent_head = self._unsent_head + framed, b""
        if framed:
            channel.transport.write(framed)

    async def drained(self) -> None:
        """Returns once at most 64 KiB of the written data, or 512 KiB with TLS, wait to be sent."""
        if self._channel.is_write_paused:
            await self._channel.drained()

    def holds(self, is_wanted: Callable[[State], bool]) -> None:
        """Notes that the response may hold a resource, such as a slot, until it has been read.

        is_wanted: called with the state of the exchange; returns whether the response now holds a
        resource for which other requests wait. While they wait, a slow client has only `wanted_s`
        of HttpBounds to read.
        """
        self._find_wanted = is_wanted

    @property
    def is_wanted(self) -> bool:
        """Whether other requests wait for what the response holds."""
        return self._find_wanted is not None and self._find_wanted(self.state)

    def break_off(self) -> None:
        """Ends the connection so that the client can see that the response is incomplete."""
        if self._unsent_head and not self._channel.is_lost:
            self._channel.transport.write(self._unsent_head)
        self.state = _OVER
        self.is_kept = False
        if self._is_chunked:
            self._channel.close()
        else:
            self.reset()

    def close(self) -> None:
        """Closes the connection normally, once all written data has been sent."""
        self.state = _OVER
        self.is_kept = False
        self._channel.close()

    def reset(self) -> None:
        """Resets the connection: the client sees RST instead of a normal close."""
        self.state = _OVER
        self.is_kept = False
        transport = self._channel.transport
        if self._channel.is_lost or transport.is_closing():
            return
        # With SO_LINGER at zero seconds, the kernel sends RST.
        lingering = struct.pack("ii", 1, 0)
        transport.get_extra_info("socket").setsockopt(SOL_SOCKET, SO_LINGER, lingering)
        transport.abort()

    def refuse(self, fault: Fault) -> None:
        """Responds with the error in plain text, unless a response has begun, and disconnects."""
        if self.state is _WAITING:
            self.respond(fault.status, shown(fault.status, fault.reason), TEXT, is_last=True)
        else:
            self.break_off()

    def _head_end(self) -> bytes:
        """Returns the end of a head: a Connection header if needed, and the empty line."""
        if self.is_kept:
            return _END if self._is_http_1_1 else b"connection: keep-alive\r\n\r\n"
        return b"connection: close\r\n\r\n"

    def _last(self) -> bytes:
        """Returns the last chunk of a chunked body; b"" for any other body."""
        return b"0\r\n\r\n" if self._is_chunked and self.method != "HEAD" else b""

    def _framed(self, data: bytes) -> bytes:
        if not data or self.method == "HEAD":
            return b""
        return b"%x\r\n%b\r\n" % (len(data), data) if self._is_chunked else data

    # What the connection calls.

    def allow_body(self, most_bytes: int) -> None:
        """Sets a bound on this request's body that replaces the bound of the connection."""
        self.most_body_bytes = most_bytes

    def inflate(self, *, may_be_raw: bool) -> None:
        """Notes that the body is compressed. may_be_raw: whether it may be raw deflate."""
        self._inflate = Inflate(may_be_raw=may_be_raw)

    def receive(self, data: bytes) -> None:
        """Takes a part of the body, decompressed if need be; fails a body that is too long."""
        most_bytes = self.most_body_bytes or self._channel.most_body_bytes
        self._received += len(data)
        size_bytes = self._received
        if self._inflate is not None:
            try:
                data = self._inflate.take(data, most_bytes - self._inflated + 1)
            except BadCompressionError as error:
                self.fail(400, f"the compressed body is damaged: {error}")
                return
            # Much compressed data may decompress to very little, so both sizes are bounded.
            self._inflated += len(data)
            size_bytes = max(size_bytes, self._inflated)
        if size_bytes > most_bytes:
            self.fail(413, f"the body is longer than {most_bytes:,} bytes")
            return
        if not self._body:
            self._body = data
        else:
            # Not a list of parts, in which a chunk of one byte would take 40 bytes.
            if isinstance(self._body, bytes):
                self._body = bytearray(self._body)
            self._body += data
        if not self._is_whole_wanted:
            self._wake()

    def form(self, data: bytes) -> RequestForm | None:
        """Returns the form of this request, which arrived as `data`; see `form_of`."""
        line = (self.method, self.path, self._query, self._is_http_1_1)
        return form_of(data, line, self._fields)

    def receive_end(self) -> None:
        """Notes the end of the body; fails a compressed body that is truncated."""
        if self._inflate is not None and not self._inflate.is_whole:
            self.fail(400, "the compressed body is cut short")
            return
        self.is_complete = True
        if self._waiter is not None:
            self._wake()

    def fail(self, status: int, reason: str) -> None:
        """Makes reading the body raise BodyError from now on, unless the body is complete."""
        if self.error is None and not self.is_complete:
            self.error = BodyError(status, reason)
            self._body = b""
            self._wake()

    @property
    def is_full(self) -> bool:
        """Whether reading should pause until the handler takes some of the body."""
        return not self._is_whole_wanted and len(self._body) > _WAITING_BYTES

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
