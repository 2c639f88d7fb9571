"""Runs one keep-alive HTTP/1.1 connection: writes requests as bytes, parses responses with llhttp.

  state     meaning                                        may change to
  idle      it is up and has no exchange                   due, closed
  due       it has an exchange, but nothing is written     waiting, idle, closed
  waiting   the request is written                         head, done, closed
  head      the response's first bytes have arrived        body, closed
  body      the response's headers are read                done, closed
  done      the response is complete                       idle, closed
  closed    it can no longer be used

A short response of a form that the connection has seen is read in one step, from waiting to done;
see answer_form.py. Chunks of a relayed stream may be passed on unchanged. llhttp reads everything
else.

Bytes that a server sends without a request, or after its response, end the connection: the next
response on it could belong to another request. Before a request is written, the socket is polled
for such bytes once more.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import cast

import httptools

from redline.calls.wire.answer_form import AnswerForm, form_of
from redline.calls.wire.chunks import CHUNK_END
from redline.calls.wire.deadlines import Deadline, Stops
from redline.calls.wire.exchange import Exchange, answer_headers
from redline.calls.wire.inflate import cut_short, damaged, inflate_for
from redline.calls.wire.reply_memory import LONG_BYTES, ReplyMemory
from redline.calls.wire.reuse import WHOLE_BYTES, Trace, trace_of
from redline.errors import BadReply, CallError, Disconnected
from redline.inflate import BadCompressionError, Inflate

# The most bytes before a body, or between its chunks; usual servers send far less (nginx: 8 KB).
MOST_HEADER_BYTES = 128 * 1024
# The most interim responses (1xx) before the final one, in case a server sends them endlessly.
_MOST_INTERIM = 32
# The socket is not read while the reader of a stream has more than this number of bytes to take.
_MOST_WAITING_BYTES = 256 * 1024
# The event loops read this many bytes at once (uvloop; asyncio 262,144).
_FULL_READ_BYTES = 256_000
# A longer body is written in parts of this size, each once the server has taken most of the earlier
# parts. Otherwise the event loop would immediately copy, and TLS encrypt, all bytes that the socket
# does not take.
_PART_BYTES = 256 * 1024
# If a body has more parts than this, they are gathered: a part takes about 40 bytes besides its
# data, and a chunk may be very short. A body of 64 MiB has about 250 parts, one for each read.
_MOST_PARTS = 1024
# After this number of forms, stop learning: the server may lay out each response differently.
_MOST_FORMS = 8
_NOTHING = memoryview(b"")


class Connection(asyncio.Protocol):
    """A connection with one exchange at a time. on_lost: called once, when it becomes unusable.

    intake: bounds the memory of long bodies. most_bytes: the longest body of a response; None for
    the largest answer of `intake`.

    is_used: whether a request has been written on it. is_kept, asked, last_asked, last_answer: see
    Kept. unasked: what the server sent without an open request, or the read in which it sent more
    than its response; b"" for none. is_done: whether the response is complete, or no request was
    written. body: the body of a complete response that is not streamed; None before. is_stale:
    whether the last request was not written, because the connection was lost or had unread bytes.
    fd: the file descriptor of its socket, -1 for none.
    """

    # An object with more than 30 attributes in a dict is slow to use (CPython 3.11).
    __slots__ = (
        *("_alarm", "_bare_bytes", "_error", "_due", "_exchange", "_form", "_forms_left"),
        *("_has_unread", "_inflate", "_intake", "_interim", "_is_between_chunks"),
        *("_is_clogged", "_is_lost", "_is_paused", "_is_reusable", "_is_streamed"),
        *("_most_bytes", "_on_lost", "_pairs", "_parser", "_parts", "_refusal", "_short_bytes"),
        *("_size", "_take_chunks", "_transport", "_unwritten", "_waiter", "_waiting"),
        *("asked", "body", "fd", "headers", "is_done", "is_kept", "is_stale", "is_used"),
        *("last_answer", "last_asked", "status", "unasked"),
    )

    def __init__(
        self,
        on_lost: Callable[[Connection], None],
        intake: ReplyMemory,
        stops: Stops,
        most_bytes: int | None = None,
    ) -> None:
        self._on_lost = on_lost
        self._intake = intake
        self._most_bytes = intake.most_bytes if most_bytes is None else most_bytes
        self._form: AnswerForm | None = None
        self._forms_left = _MOST_FORMS
        self._short_bytes = min(LONG_BYTES, self._most_bytes)
        # The alarm of the exchange; the connection keeps it, so that no call has to create one.
        self._alarm = Deadline(stops, self.time_is_up)
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._exchange: Exchange | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._error: BaseException | None = None
        self._refusal: CallError | None = None  # the error that a callback of the parser raised
        self.fd = -1
        self._has_unread = False
        self._is_reusable = True
        self._is_lost = False
        self._unwritten = _NOTHING  # the rest of a long body
        self._is_clogged = False  # the transport has asked to pause writing
        self.is_stale = False
        self._due: Exchange | None = None  # the exchange whose request is not yet written
        self.is_used = self.is_kept = False
        self.asked: Trace = b""
        self.last_asked: Trace = b""
        self.last_answer: Trace | None = None
        self.unasked = b""
        self.headers: Mapping[str, str] = {}
        self.status = 0  # of the response; 0 until its headers have arrived
        self.is_done = True
        self.body: bytes | None = None
        self._pairs: list[tuple[bytes, bytes]] = []
        self._bare_bytes = 0  # bytes read since the last read with body bytes
        self._interim = 0
        self._parts: list[bytes | bytearray] = []
        self._size = 0  # of the body so far
        self._waiting = 0  # bytes of the body that the reader of a stream has not taken
        self._inflate: Inflate | None = None
        self._is_paused = False
        self._is_streamed = False
        self._is_between_chunks = False  # in a streamed body, before the next chunk
        # Passes on the next bytes, if they are whole chunks of a known form.
        self._take_chunks: Callable[[bytes], int] | None = None

    @property
    def is_open(self) -> bool:
        """Whether a request may be written: the connection is up, without unrequested bytes."""
        return not self._is_lost and not (self.is_used and unread((self,)))

    @property
    def has_head(self) -> bool:
        """Whether the headers of the exchange's response have arrived."""
        return self.status != 0

    def open(self, exchange: Exchange, is_streamed: bool) -> asyncio.Future[None]:
        """Assigns the connection to an exchange, which `leave` begins.

        Returns a future that is done once the response is complete, or once its headers have
        arrived if is_streamed, or once the exchange fails.
        """
        self._exchange = self._due = exchange
        self._is_streamed = is_streamed
        # The loop's `create_future` takes twice as long.
        waiter = self._waiter = asyncio.Future()
        return waiter

    def was_due(self, due_s: float) -> None:
        """Records since when the request has waited for results to be saved."""
        if self._due is not None:
            self._due.was_due(due_s)

    def found_unread(self) -> None:
        """Records unread bytes, or the end of input, so that no request is written here."""
        self._has_unread = True

    def leave(self) -> None:
        """Records the send time and writes the request, unless the exchange has been given up.

        If the exchange raises an error, the error is passed on, and the request is not written.
        """
        exchange, waiter = self._due, self._waiter
        # A cancelled task continues only in the next turn of the loop, but its waiter is done now.
        if exchange is None or waiter is None or waiter.done():
            return
        self._due = None
        transport = self._transport
        if self._is_lost or self._has_unread:
            self.is_stale = True
            self._is_reusable = False
            self._wake()
            return
        assert transport is not None
        exchange.leave(self._alarm)
        self.is_kept = self.is_used
        self.is_used = True
        self.is_done = False
        self.status = 0
        body = exchange.body
        if len(body) <= WHOLE_BYTES:
            self.asked = body
            transport.write(exchange.head + body)
        else:
            self._write_long(exchange, transport)

    def refuse(self, error: BaseException) -> None:
        """Ends the exchange with `error`; its request is not written."""
        self._due = None
        self._error = error
        self._wake()

    def _write_long(self, exchange: Exchange, transport: asyncio.Transport) -> None:
        body = exchange.body
        self.asked = trace_of(body)
        exchange.drop_body()
        if len(body) <= _PART_BYTES:
            transport.writelines((exchange.head, body))
        else:
            transport.write(exchange.head)
            self._unwritten = memoryview(body)
            self._write_on()

    async def whole(self) -> bytes:
        """Waits for the whole body of the response and returns it. Raises CallError."""
        while not self.is_done:
            await self._change()
        if self._error is not None:
            raise self._error
        if self.body is None:
            self._join()
            assert self.body is not None
        return self.body

    def _join(self) -> None:
        self.body = b"".join(self._parts)
        self._parts.clear()

    async def head(self) -> None:
        """Waits for the headers of the response. Raises CallError."""
        if self._error is not None:
            raise self._error
        while not self.has_head:
            await self._change()

    async def chunk(self) -> bytes:
        """Returns the next part of the body; empty at the body's end. Raises CallError."""
        parts = self._parts
        while not parts and not self.is_done:
            await self._next_change()
            if self._error is not None:
                raise self._error
        chunk = b"".join(parts)
        parts.clear()
        self._waiting = 0
        if self._is_paused:
            self._resume()
        return chunk

    def rest(self) -> None:
        """Stops streaming: the body must be read as a whole after all."""
        self._is_streamed = False
        self._resume()

    def release(self) -> bool:
        """Ends the exchange; returns whether another one may follow."""
        # The exchange's alarm may still ring, but then ends nothing.
        self._exchange = self._waiter = self.body = None
        if self._error is not None:
            self._error = self._refusal = None
        if self._size:
            self._forget_body()
        transport = self._transport
        return (
            self._is_reusable
            and self.is_done
            and transport is not None
            and not (self._is_paused or transport.is_closing())
            # Otherwise the server has responded without having read the whole request.
            and not (self._unwritten or transport.get_write_buffer_size())
        )

    def _forget_body(self) -> None:
        self._parts.clear()
        self._take_chunks = None
        size, self._size, self._waiting = self._size, 0, 0
        if size > LONG_BYTES:
            if self.is_done and not self._is_streamed:
                # The read that ended the body also paused the connection.
                self._resume()
            self._intake.leave(self)

    def fail(self, error: CallError) -> None:
        """Ends the exchange with `error`, and the connection, unless the response is complete."""
        if self.is_done:
            return
        if self._error is None:
            self._error = error
        self.close()
        self._wake()

    def time_is_up(self) -> None:
        """Ends the exchange, if there is one, with its timeout error."""
        if self._exchange is not None:
            self.fail(self._exchange.timed_out())

    def close(self) -> None:
        """Closes the connection at once."""
        self._is_reusable = False
        if self._transport is not None:
            # If the event loop is closed, the socket is closed once nothing refers to it.
            with suppress(RuntimeError):
                self._transport.abort()
        self._lose()

    def pause(self) -> None:
        """Pauses reading, because other answers fill the memory; streams pause by themselves."""
        exchange = self._exchange
        if exchange is None or self.is_done or self._is_streamed or self._is_paused:
            return
        if self._transport is not None and not self._is_lost:
            self._is_paused = True
            self._transport.pause_reading()
            exchange.pause()

    def resume(self) -> None:
        """Resumes reading after `pause`."""
        is_held = self._is_paused and not self._is_streamed and not self._is_lost
        if is_held and self._exchange is not None:
            self._exchange.resume()
            self._resume()

    async def _change(self) -> None:
        await self._next_change()
        if self._error is not None:
            raise self._error

    def _next_change(self) -> asyncio.Future[None]:
        """Returns a future of the next change, which may be an error; raises an existing error."""
        if self._error is not None:
            raise self._error
        waiter = self._waiter
        if waiter is None or waiter.done():
            waiter = self._waiter = asyncio.Future()
        return waiter

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _resume(self) -> None:
        if self._is_paused and self._transport is not None and not self._is_lost:
            self._transport.resume_reading()
        self._is_paused = False

    def _write_on(self) -> None:
        transport = self._transport
        assert transport is not None
        while self._unwritten and not self._is_clogged and not transport.is_closing():
            part, self._unwritten = self._unwritten[:_PART_BYTES], self._unwritten[_PART_BYTES:]
            transport.write(part)

    def _lose(self) -> None:
        if not self._is_lost:
            self._is_lost, self._is_reusable = True, False
            self.fd = -1  # the next connection may get the same descriptor
            self._unwritten = _NOTHING
            self.is_stale = self.is_stale or self._due is not None
            self._wake()
            self._alarm.leave()
            self._on_lost(self)

    # The event loop calls these.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not asyncio's classes, but have the same methods.
        self._transport = cast(asyncio.Transport, transport)
        connected = transport.get_extra_info("socket")
        self.fd = -1 if connected is None else connected.fileno()

    def pause_writing(self) -> None:
        self._is_clogged = True

    def resume_writing(self) -> None:
        self._is_clogged = False
        self._write_on()

    def data_received(self, data: bytes) -> None:
        exchange = self._exchange
        if exchange is None or self.is_done:
            self.unasked = data
            self.close()
            self._wake()
            return
        if exchange.first_byte_s is not None:
            take_chunks = self._take_chunks
            if take_chunks is not None and self._size < self._most_bytes:
                # llhttp does not see these bytes; after them, it would again be between two chunks.
                taken = take_chunks(data)
                if taken:
                    self._size += taken
                    return
            self._parse(data)
            return
        exchange.headers_came()
        form = self._form
        if form is not None and len(data) <= self._short_bytes and not self._is_streamed:
            found = form.read(data)
            if found is not None:
                self.headers, self.body = found
                self.is_done = True
                self.status = 200
                waiter = self._waiter
                if waiter is not None and not waiter.done():
                    waiter.set_result(None)
                return
        self._parse(data)
        if self.is_done and self._forms_left:
            self._learn_form(data)

    def _parse(self, data: bytes) -> None:
        size_bytes = len(data)
        self._is_between_chunks = False
        self._take_chunks = None
        self._bare_bytes += size_bytes
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if self.is_done:
                # The server sent more than its response.
                self._is_reusable = False
                self.unasked = data
                return
            self.fail(self._refusal or BadReply(_fault(error)))
        else:
            if self.is_done:
                self._bare_bytes = 0
                if size_bytes >= _FULL_READ_BYTES:
                    # The socket may have further bytes, which have not been checked.
                    self._is_reusable = False
            elif self._bare_bytes > MOST_HEADER_BYTES:
                self.fail(_too_long_headers())
            # A part of the next size line may have arrived after the chunk.
            elif self._is_between_chunks and data.endswith(CHUNK_END):
                self._find_taker()

    def _find_taker(self) -> None:
        """Gets the function that passes on the next chunks, unless earlier bytes are unread."""
        exchange = self._exchange
        if exchange is None or exchange.chunk_taker is None:
            return
        if not self._parts and self._inflate is None:
            self._take_chunks = exchange.chunk_taker()

    def _learn_form(self, data: bytes) -> None:
        """Learns the form of a response that came whole in one read, to read later ones."""
        if self._is_reusable and self.body is not None and len(data) <= self._short_bytes:
            self._forms_left -= 1
            form = form_of(self._pairs)
            if form is not None and form.read(data) == (self.headers, self.body):
                self._form = form

    def eof_received(self) -> None:
        self._end_of_input()
        self.close()

    def connection_lost(self, error: Exception | None) -> None:
        self._end_of_input(error)
        self._lose()

    def _end_of_input(self, error: Exception | None = None) -> None:
        self._is_reusable = False
        if self._exchange is None or self.is_done:
            return
        # A body without a length is complete when the server closes the connection.
        is_end = self.has_head and error is None and not self._is_lost
        if not is_end or not self._ends_with_connection():
            self.fail(_broken(error, has_begun=self._exchange.first_byte_s is not None))
        elif self._inflate is not None and not self._inflate.is_whole:
            self.fail(cut_short())
        else:
            self.is_done = True
            self._wake()

    def _ends_with_connection(self) -> bool:
        names = {name.lower() for name, _ in self._pairs}
        return b"content-length" not in names and b"transfer-encoding" not in names

    # The parser calls these. It replaces an error that they raise with its own, whose __context__
    # is unreliable if the loop runs inside an `except` block, so they also save their errors.

    def on_message_begin(self) -> None:
        if self.is_done:
            self._is_reusable = False
        else:
            self._pairs = []

    def on_header(self, name: bytes, value: bytes) -> None:
        # Trailers arrive too late to change what was read from headers (RFC 9110, 6.5.1).
        self._pairs.append((name, value))

    def on_headers_complete(self) -> None:
        if self.has_head:
            return
        status = self._parser.get_status_code()
        try:
            if self._bare_bytes > MOST_HEADER_BYTES:
                self._check_size()
            if status < 200:
                self._check_interim(status)
                return
            headers = answer_headers(self._pairs)
            if (version := self._parser.get_http_version()) != "1.1":
                self._check_version(version, headers)
            self._inflate = inflate_for(headers)
        except CallError as error:
            self._refusal = error
            raise
        self.status = status
        self.headers = headers
        self._bare_bytes = self._interim = 0
        is_head = self._exchange is not None and self._exchange.head.startswith(b"HEAD ")
        if is_head:
            # httptools cannot tell llhttp that the request is a HEAD, so llhttp would take the next
            # response for the body.
            self.is_done, self._is_reusable = True, False
        if is_head or self._is_streamed:
            self._wake()

    def _check_size(self) -> None:
        # Some of the bytes may belong to the body.
        if sum(len(name) + len(value) for name, value in self._pairs) > MOST_HEADER_BYTES:
            raise _too_long_headers()

    def _check_interim(self, status: int) -> None:
        self._interim += 1
        if status == 101:
            raise BadReply("the server switched to another protocol (HTTP 101)")
        if status < 100:
            raise BadReply(f"the response is not valid HTTP: its status is {status}")
        if self._interim > _MOST_INTERIM:
            raise BadReply(
                f"no final response after {self._interim} interim responses (HTTP {status})"
            )

    def _check_version(self, version: str, headers: Mapping[str, str]) -> None:
        if version != "1.0":
            raise BadReply(f"the response is HTTP/{version}, not HTTP/1.0 or HTTP/1.1")
        if "transfer-encoding" in headers:
            # A proxy may have forwarded the coding without decoding it (RFC 9112, 6.1).
            self._is_reusable = False

    def on_body(self, data: bytes) -> None:
        if self.is_done:
            return
        self._bare_bytes = 0
        self._is_between_chunks = False
        if self._inflate is not None and not (data := self._inflated(self._inflate, data)):
            return
        size = self._size = self._size + len(data)
        if size > self._most_bytes:
            self._refusal = BadReply(f"the response is longer than {self._most_bytes:,} bytes")
            raise self._refusal
        if self._is_streamed and not self._parts:
            # Only if no earlier bytes wait for the reader.
            take_now = self._exchange.take_now if self._exchange is not None else None
            if take_now is not None and take_now(data):
                return
        self._parts.append(data)
        if self._is_streamed:
            self._waiting += len(data)
            if self._waiting > _MOST_WAITING_BYTES and self._transport is not None:
                self._is_paused = True
                self._transport.pause_reading()
            self._wake()
        elif size > LONG_BYTES:
            if len(self._parts) > _MOST_PARTS:
                self._gather()
            self._intake.read(self, size)

    def _gather(self) -> None:
        """Moves the parts of a long body into the first of them, a bytearray."""
        first, *rest = self._parts
        gathered = first if isinstance(first, bytearray) else bytearray(first)
        gathered += b"".join(rest)
        self._parts = [gathered]

    def _inflated(self, inflate: Inflate, data: bytes) -> bytes:
        try:
            return inflate.take(data, self._most_bytes - self._size + 1)
        except BadCompressionError as error:
            self._refusal = damaged(error)
            raise self._refusal from None

    def on_chunk_complete(self) -> None:
        self._is_between_chunks = self._is_streamed

    def on_message_complete(self) -> None:
        if self.is_done:
            return
        if not self.has_head:
            # This was a 1xx: the final response follows.
            return
        if self._inflate is not None and not self._inflate.is_whole:
            self._refusal = cut_short()
            raise self._refusal
        if self._is_reusable:
            self._is_reusable = self._parser.should_keep_alive()
        self.is_done = True
        if not self._is_streamed:
            self._join()
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


def unread(connections: Iterable[Connection]) -> list[Connection]:
    """Returns the used connections that have unread bytes or were closed by the server.

    Makes one system call for all of them. Returns none on systems without `poll`.
    """
    # Over TLS, the first bytes on a new connection may be a session ticket.
    by_socket = {connection.fd: connection for connection in connections if connection.is_used}
    by_socket.pop(-1, None)
    if not by_socket or not hasattr(select, "poll"):
        return []
    poll = select.poll()
    for fd in by_socket:
        poll.register(fd, select.POLLIN)
    return [by_socket[fd] for fd, _ in poll.poll(0)]


def _fault(error: Exception) -> str:
    """Returns the message for bytes that the parser refused."""
    if isinstance(error, httptools.HttpParserUpgrade):
        return "the server switched to another protocol without being asked"
    reason = " ".join(str(error).split())
    return f"the response is not valid HTTP: {reason}"


def _too_long_headers() -> BadReply:
    return BadReply(f"the response headers are longer than {MOST_HEADER_BYTES:,} bytes")


def _broken(error: Exception | None, *, has_begun: bool) -> Disconnected:
    """Returns the error of a connection that ended within an exchange."""
    if error is not None:
        text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    elif has_begun:
        text = "the server closed it in the middle of an answer"
    else:
        text = "the server closed it without an answer"
    return Disconnected(f"the connection broke: {text}")
