"""One request and its response, as a handler sees them.

state      from              the handler may
WAITING    the request       `respond`, or `begin` a stream
STREAMING  `begin`           `write`, then `end` it
OVER       the response      do nothing more on this connection
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

# From here on a body is written on its own and not copied behind its head.
_LARGE_BYTES = 64 * 1024
# More of a body is not read before the handler takes it.
_WAITING_BYTES = 64 * 1024
_MOST_QUERY_FIELDS = 1000
_END = b"\r\n"


class State(Enum):
    """How far the response has come."""

    WAITING = 1
    STREAMING = 2
    OVER = 3


# An enum's members are slow to look up.
_WAITING, _STREAMING, _OVER = State


class BodyError(Fault):
    """The body of a request cannot be read."""


class ClientGoneError(ConnectionError):
    """The client left before its response was written."""


class Shared(Protocol):
    """The state that the exchanges of one server share. date: the header line."""

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
    """One request, and the means to answer it.

    method: upper-case. path: decoded. Made by the connection, for one handler.

    is_kept: the connection serves another request after this one. body, size: of a request of a
    known form, see request_form.py: the body, if it is complete, and its size in bytes. fault: why
    the request is refused without a handler.
    """

    # Of a path with large bodies; None for the bound of the connection.
    most_body_bytes: int | None = None
    _received = 0
    _inflated = 0
    error: BodyError | None = None
    _waiter: asyncio.Future[None] | None = None
    _inflate: Inflate | None = None
    _is_whole_wanted = False
    _unsent_head = b""
    _is_chunked = True
    is_wanted: Callable[[], bool] = bool

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
        # The body of the request has been received to its end.
        self.is_complete = body is not None
        self._size = size

    # The request.

    @cached_property
    def headers(self) -> Mapping[str, str]:
        """Values by lower-case name; those of a repeated header are joined by commas."""
        fields = self._fields
        headers = {name.decode("latin-1"): fields[name].decode("latin-1") for name in fields}
        if self._size is not None and "content-length" in headers:
            headers["content-length"] = str(self._size)
        return headers

    def header(self, name: bytes) -> str | None:
        """The value of one header, by its name in lower case; quicker than all of them."""
        value = self._fields.get(name)
        return None if value is None else value.decode("latin-1")

    @property
    def kept(self) -> Any:
        """The object kept for requests with the same header fields; None if there is none."""
        return self._fields.kept

    def keep(self, found: object) -> None:
        """Keeps what the handler has read of the header fields, for requests with the same.

        Most clients send the same fields with each request of a connection. The length is not one
        of them.
        """
        self._fields.kept = found

    @property
    def target(self) -> str:
        """The path and the query, as a request for the same target would state them."""
        query = self._query.decode("latin-1")
        return quote(self.path) + (f"?{query}" if query else "")

    @cached_property
    def query(self) -> Mapping[str, str]:
        """The fields of the query; the first one of each name. Raises BodyError for too many."""
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
        """The rest of the body, decompressed. It can be read once. Raises BodyError."""
        if not self.is_complete or self.error is not None:
            self._is_whole_wanted = True
            while not self.is_complete or self.error is not None:
                await self._change()
        return self.received()

    def received(self) -> bytes:
        """The body received since the last read; all of it if `is_complete`."""
        body, self._body = self._body, b""
        return body if isinstance(body, bytes) else bytes(body)

    async def part(self) -> bytes:
        """The next part of the body, decompressed; empty at its end. Raises BodyError."""
        while self.error is not None or not (self._body or self.is_complete):
            await self._change()
        return self.received()

    async def _change(self) -> None:
        """Waits for more of the body."""
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
        """Whether the client has left; what is written does not reach it."""
        return self._channel.is_lost

    @property
    def transport(self) -> asyncio.Transport:
        """The transport of the connection, for responses that `respond` would not send."""
        return self._channel.transport

    def respond(
        self, status: int, body: bytes = b"", fields: bytes = JSON, *, is_last: bool = False
    ) -> None:
        """Sends the whole response in one write. Never waits; see `drained`.

        fields: header lines, such as `header_lines` makes, without a length and a date. is_last:
        the connection closes after it. Sends nothing to a client that is gone.
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
        """The head that `respond` sends before a body of this size, and `body` behind it."""
        service = self._channel.service
        # The rest of a body that was not read may still be on its way.
        if is_last or not self.is_complete or service.is_draining:
            self.is_kept = False
        size = b"" if status in BODILESS else length_line(size_bytes)
        end = _END if self.is_kept and self._is_http_1_1 else self._head_end()
        return b"".join((status_line(status), fields, size, service.date, end, body))

    def respond_in_one_chunk(self, status: int, body: bytes, fields: bytes = JSON) -> None:
        """The same for a body whose length is not stated, as that of a stream that has ended."""
        self._begin(status, fields)
        self.state = _OVER
        if self._channel.is_lost:
            self.is_kept = False
        else:
            self._channel.transport.write(self._unsent_head + self._framed(body) + self._last())
            self._unsent_head = b""

    async def begin(self, status: int, fields: bytes = JSON, data: bytes = b"") -> None:
        """Begins a response of any length.

        fields: as for `respond`. data: of the body. Without it, the head waits for the first write,
        so that both leave together. Raises ClientGoneError; cancelled when the client leaves.
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
        head = (status_line(status), fields, framing, service.date, self._head_end())
        self._unsent_head = b"".join(head)

    async def write(self, data: bytes) -> None:
        """Sends the next part of the body. Returns once the client has room for more.

        Raises ClientGoneError; cancelled when the client leaves.
        """
        self._send(self._framed(data))
        if self._channel.is_write_paused:
            await self._channel.drained()

    def write_now(self, data: bytes) -> bool:
        """Sends the next part of the body, which is not empty, and waits for nothing.

        False if it was not sent: the client has left or has no room, or nothing was sent before.
        """
        outlet = self.outlet
        if outlet is None or outlet.write is None:
            return False
        outlet.write(b"%x\r\n%b\r\n" % (len(data), data))
        return True

    @property
    def outlet(self) -> Channel | None:
        """The channel for the next parts of the body, as chunks; None if it takes none.

        Its `write` is None while the client has no room or has left. To be used until `end`.
        """
        if self.state is not _STREAMING or self._unsent_head or not self._is_chunked:
            return None
        return self._channel

    async def end(self, data: bytes = b"") -> None:
        """Sends the last part of the body, and its end. Raises ClientGoneError."""
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
        """Returns once the client has taken what was written, but for 64 KiB at most."""
        if self._channel.is_write_paused:
            await self._channel.drained()

    def holds(self, is_wanted: Callable[[], bool]) -> None:
        """The response holds a resource to its end. is_wanted: whether others wait for it now.

        A client that is slow to take the response then has `wanted_s` of HttpBounds.
        """
        self.is_wanted = is_wanted

    def break_off(self) -> None:
        """Ends the connection so that what was written never passes for a whole response."""
        if self._unsent_head and not self._channel.is_lost:
            self._channel.transport.write(self._unsent_head)
        self.state = _OVER
        self.is_kept = False
        if self._is_chunked:
            self._channel.close()
        else:
            self.reset()

    def close(self) -> None:
        """Ends the connection in order, once what was written has been sent."""
        self.state = _OVER
        self.is_kept = False
        self._channel.close()

    def reset(self) -> None:
        """Resets the connection: the client sees RST, and not an orderly end."""
        self.state = _OVER
        self.is_kept = False
        transport = self._channel.transport
        if self._channel.is_lost or transport.is_closing():
            return
        # Lingering for zero seconds makes the kernel send RST.
        lingering = struct.pack("ii", 1, 0)
        transport.get_extra_info("socket").setsockopt(SOL_SOCKET, SO_LINGER, lingering)
        transport.abort()

    def refuse(self, fault: Fault) -> None:
        """Answers with an error in plain text, and ends the connection."""
        if self.state is _WAITING:
            self.respond(fault.status, shown(fault.status, fault.reason), TEXT, is_last=True)
        else:
            self.break_off()

    def _head_end(self) -> bytes:
        """The end of a head: whether the connection is kept, and the empty line."""
        if self.is_kept:
            return _END if self._is_http_1_1 else b"connection: keep-alive\r\n\r\n"
        return b"connection: close\r\n\r\n"

    def _last(self) -> bytes:
        """The last chunk of a chunked body, otherwise nothing."""
        return b"0\r\n\r\n" if self._is_chunked and self.method != "HEAD" else b""

    def _framed(self, data: bytes) -> bytes:
        if not data or self.method == "HEAD":
            return b""
        return b"%x\r\n%b\r\n" % (len(data), data) if self._is_chunked else data

    # What the connection calls.

    def allow_body(self, most_bytes: int) -> None:
        """The body may be longer than others of the connection."""
        self.most_body_bytes = most_bytes

    def inflate(self, *, may_be_raw: bool) -> None:
        """The body is compressed."""
        self._inflate = Inflate(may_be_raw=may_be_raw)

    def receive(self, data: bytes) -> None:
        """Takes a part of the body."""
        most_bytes = self.most_body_bytes or self._channel.most_body_bytes
        self._received += len(data)
        size_bytes = self._received
        if self._inflate is not None:
            try:
                data = self._inflate.take(data, most_bytes - self._inflated + 1)
            except BadCompressionError as error:
                self.fail(400, f"the compressed body is damaged: {error}")
                return
            # Much compressed data may decompress to none.
            self._inflated += len(data)
            size_bytes = max(size_bytes, self._inflated)
        if size_bytes > most_bytes:
            self.fail(413, f"the body is longer than {most_bytes:,} bytes")
            return
        if not self._body:
            self._body = data
        else:
            # Not a list of parts: a chunk of one byte would take 40.
            if isinstance(self._body, bytes):
                self._body = bytearray(self._body)
            self._body += data
        if not self._is_whole_wanted:
            self._wake()

    def form(self, data: bytes) -> RequestForm | None:
        """The form of this request, which came as `data`; see `form_of`."""
        line = (self.method, self.path, self._query, self._is_http_1_1)
        return form_of(data, line, self._fields)

    def receive_end(self) -> None:
        """The body is whole."""
        if self._inflate is not None and not self._inflate.is_whole:
            self.fail(400, "the compressed body is cut short")
            return
        self.is_complete = True
        if self._waiter is not None:
            self._wake()

    def fail(self, status: int, reason: str) -> None:
        """The body cannot be read to its end."""
        if self.error is None and not self.is_complete:
            self.error = BodyError(status, reason)
            self._body = b""
            self._wake()

    @property
    def is_full(self) -> bool:
        """Whether no more of the body should be read before the handler takes some."""
        return not self._is_whole_wanted and len(self._body) > _WAITING_BYTES

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
