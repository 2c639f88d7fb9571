"""One keep-alive HTTP/1.1 connection: bytes go out as they are, answers are parsed by llhttp.

  state     meaning                                        may turn to
  idle      stands, nothing is asked                       waiting, closed
  waiting   a request is written                           head, closed
  head      the answer's first bytes are here              body, closed
  body      its headers are read                           done, closed
  done      the answer is whole                            idle, closed
  closed    it is of no use any more

What a server sends while nothing was asked, or behind its answer, ends the connection: the next
answer on it could be that of another request. It is looked for once more before a request is
written, in what the socket holds unread.
"""

from __future__ import annotations

import asyncio
import select
from collections import deque
from collections.abc import Callable, Mapping
from typing import cast

import httptools

from redline.calls.wire.deadlines import Deadline, Deadlines
from redline.calls.wire.exchange import Exchange, answer_headers
from redline.calls.wire.inflate import Inflate, cut_short, inflate_for
from redline.calls.wire.reply_memory import LONG_BYTES, ReplyMemory
from redline.calls.wire.reuse import WHOLE_BYTES, Trace, trace_of
from redline.errors import BadReply, CallError, Disconnected

# A server that sends more than this before a body, or between its chunks, is not one of ours
# (nginx: 8 KB).
MOST_HEADER_BYTES = 128 * 1024
# A 1xx is followed by the answer; a server that sends them forever is stopped.
_MOST_INTERIM = 32
# Streamed bytes that wait for their reader; the socket is not read meanwhile.
_MOST_WAITING_BYTES = 256 * 1024
# The event loops read this much at once (uvloop; asyncio 262,144).
_FULL_READ_BYTES = 256_000
# A longer body is written in parts of this size, each when the server has taken most of those
# before: the event loops copy what the socket does not take, and TLS encrypts it, all at once.
_PART_BYTES = 256 * 1024


class Connection(asyncio.Protocol):
    """One connection; one exchange at a time. on_lost: told once, when it is of no use any more.

    is_used: a request has been written on it; was_used: one had been before the last one. asked,
    last: see Kept. unasked: what the server sent while no request was open.
    """

    def __init__(self, on_lost: Callable[[Connection], None], intake: ReplyMemory) -> None:
        self._on_lost = on_lost
        self._intake = intake
        self._loop = asyncio.get_running_loop()
        # The clock of the exchange; it is the connection's, so that a call makes none of its own.
        self.alarm: Deadline | None = None
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._exchange: Exchange | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._error: CallError | None = None
        self._refusal: CallError | None = None  # what a callback of the parser raised
        self._unread: select.poll | None = None  # tells whether the socket has bytes for us
        self._is_reusable = True
        self._is_bodyless = False
        self._is_lost = False
        self._unwritten = memoryview(b"")  # of a long body
        self._is_clogged = False  # the transport holds enough for now
        self.is_used = False
        self.was_used = False
        self.asked: Trace = b""
        self.last: tuple[Trace, Trace] | None = None
        self.unasked = b""
        self.headers: Mapping[str, str] = {}
        self._forget()
        self._is_done = True

    def _forget(self) -> None:
        self._pairs: list[tuple[bytes, bytes]] = []
        self._bare_bytes = 0  # since the last byte of a body
        self._interim = 0
        self._parts: deque[bytes] = deque()
        self._size = 0  # of the body so far
        self._waiting = 0  # what of it the reader of a stream has not taken
        self._most_bytes = 0
        self._inflate: Inflate | None = None
        # The headers of the exchange's answer are here.
        self.has_head = False
        self._is_done = False
        self._is_paused = False
        self._is_streamed = False
        self.status = 0

    @property
    def is_open(self) -> bool:
        """A request may be written: it is up, and nothing has come that no request asked for."""
        if self._is_lost or self._transport is None:
            return False
        unread = self._unread
        # Over TLS, the first bytes may be a session's ticket.
        return unread is None or not self.is_used or not unread.poll(0)

    @property
    def is_reusable(self) -> bool:
        """What was asked on it is answered to the end, and the server keeps the connection."""
        return self._is_reusable and self._is_done and not self._is_lost

    def set_alarm(self, deadlines: Deadlines) -> Deadline:
        """The clock of its exchanges, made for the first of them."""
        self.alarm = alarm = deadlines.alarm(self.time_is_up)
        return alarm

    def write(self, head: bytes, body: bytes | None, exchange: Exchange, most_bytes: int) -> None:
        """Sends a request. most_bytes: a longer answer is an error."""
        assert self._transport is not None
        self._forget()
        self._exchange = exchange
        self.was_used, self.is_used = self.is_used, True
        self._most_bytes = most_bytes
        if body is None:
            self.asked = b""
            self._transport.write(head)
            return
        size_bytes = len(body)
        self.asked = body if size_bytes <= WHOLE_BYTES else trace_of(body)
        if size_bytes <= _PART_BYTES:
            self._transport.write(head + body)
        else:
            self._transport.write(head)
            self._unwritten = memoryview(body)
            self._write_on()

    def expect_no_body(self) -> None:
        """The request is a HEAD: its answer ends with its headers, and so does the connection."""
        # httptools has no way to say so to llhttp, which would read the next answer as the body.
        self._is_bodyless = True

    async def whole(self) -> bytes:
        """The answer's body, once all of it is there. Raises CallError."""
        while not self._is_done:
            # As in _change, without a coroutine of its own: this is where most calls wait.
            if self._error is None:
                waiter = self._waiter = self._loop.create_future()
                try:
                    await waiter
                finally:
                    self._waiter = None
            if self._error is not None:
                raise self._error
        parts = self._parts
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def head(self) -> None:
        """Returns once the answer's headers are there. Raises CallError."""
        self._is_streamed = True
        while not self.has_head:
            await self._change()

    async def chunk(self) -> bytes:
        """The next part of the body; empty at its end. Raises CallError."""
        while not self._parts and not self._is_done:
            await self._change()
        if not self._parts:
            return b""
        chunk = self._parts.popleft()
        self._waiting -= len(chunk)
        if self._is_paused and self._waiting < _MOST_WAITING_BYTES:
            self._resume()
        return chunk

    def rest(self) -> None:
        """The whole of the body is wanted after all."""
        self._is_streamed = False
        self._resume()

    def release(self) -> bool:
        """The exchange is over. True where another one may follow."""
        self._exchange = None
        self._error = self._refusal = None
        self._parts.clear()
        if self._size > LONG_BYTES:
            if self._is_done and not self._is_streamed:
                # Its end came with what filled the intake.
                self._resume()
            self._intake.leave(self)
        transport = self._transport
        if transport is None or self._is_paused or transport.is_closing():
            self._is_reusable = False
        elif self._unwritten or transport.get_write_buffer_size():
            # The server has answered without having read all of the request.
            self._is_reusable = False
        return self.is_reusable

    def fail(self, error: CallError) -> None:
        """Ends the exchange with `error`, and the connection with it. A whole answer stays."""
        if self._is_done:
            return
        if self._error is None:
            self._error = error
        self.close()
        self._wake()

    def time_is_up(self) -> None:
        """Ends the exchange, whose clock has run out."""
        if self._exchange is not None:
            self.fail(self._exchange.timed_out())

    def close(self) -> None:
        """The connection is not needed any more."""
        self._is_reusable = False
        if self._transport is not None:
            self._transport.abort()
        self._lose()

    def pause(self) -> None:
        """Does not read on, for other answers leave no room. A stream's reader sees to that."""
        exchange = self._exchange
        if exchange is None or self._is_done or self._is_streamed or self._is_paused:
            return
        if self._transport is not None and not self._is_lost:
            self._is_paused = True
            self._transport.pause_reading()
            exchange.pause()

    def resume(self) -> None:
        """Reads on after `pause`."""
        is_held = self._is_paused and not self._is_streamed and not self._is_lost
        if is_held and self._exchange is not None:
            self._exchange.resume()
            self._resume()

    async def _change(self) -> None:
        if self._error is not None:
            raise self._error
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None
        if self._error is not None:
            raise self._error

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
            self._is_lost = True
            self._unwritten = memoryview(b"")
            self._wake()
            if self.alarm is not None:
                self.alarm.leave()
            self._on_lost(self)

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are none of asyncio's, though they do the same.
        self._transport = cast(asyncio.Transport, transport)
        self._unread = unread(transport)

    def pause_writing(self) -> None:
        self._is_clogged = True

    def resume_writing(self) -> None:
        self._is_clogged = False
        self._write_on()

    def data_received(self, data: bytes) -> None:
        exchange = self._exchange
        if exchange is None or self._is_done:
            self.unasked = data
            self.close()
            self._wake()
            return
        if exchange.first_byte_s is None:
            exchange.headers_came()
        self._bare_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            if self._is_done:
                # It sent more than its answer.
                self._is_reusable = False
                self.unasked = data
                return
            reason = " ".join(str(error).split())
            self.fail(self._refusal or BadReply(f"the answer is not HTTP: {reason}"))
        else:
            if self._is_done:
                if len(data) >= _FULL_READ_BYTES:
                    # The socket may hold what follows, which nobody has looked at.
                    self._is_reusable = False
            elif self._bare_bytes > MOST_HEADER_BYTES:
                self.fail(_too_long_headers())

    def eof_received(self) -> None:
        self._end_of_input()
        self.close()

    def connection_lost(self, error: Exception | None) -> None:
        self._end_of_input(error)
        self._lose()

    def _end_of_input(self, error: Exception | None = None) -> None:
        self._is_reusable = False
        if self._exchange is None or self._is_done:
            return
        # A body without a length ends with its connection, if it is the server that ends it.
        is_end = self.has_head and error is None and not self._is_lost
        if not is_end or not self._ends_with_connection():
            self.fail(_broken(error, has_begun=self._exchange.first_byte_s is not None))
        elif self._inflate is not None and not self._inflate.is_whole:
            self.fail(cut_short())
        else:
            self._is_done = True
            self._wake()

    def _ends_with_connection(self) -> bool:
        names = {name.lower() for name, _ in self._pairs}
        return b"content-length" not in names and b"transfer-encoding" not in names

    # What the parser calls. It replaces what they raise by an error of its own, and its __context__
    # is another one when the loop runs inside an `except` block: so they keep what they raise.

    def on_message_begin(self) -> None:
        if self._is_done:
            self._is_reusable = False

    def on_header(self, name: bytes, value: bytes) -> None:
        # Trailers are left out: they must not change what was read from headers (RFC 9110, 6.5.1).
        if not self.has_head:
            self._pairs.append((name, value))

    def on_headers_complete(self) -> None:
        if self.has_head:
            return
        try:
            if self._bare_bytes > MOST_HEADER_BYTES:
                # Some of the bytes may be the body's.
                size = sum(len(name) + len(value) for name, value in self._pairs)
                if size > MOST_HEADER_BYTES:
                    raise _too_long_headers()
            status = self._parser.get_status_code()
            if status < 200:
                self._interim += 1
                if status == 101:
                    raise BadReply("the server answers with another protocol (HTTP 101)")
                if status < 100:
                    raise BadReply(f"the answer is not HTTP: its status is {status}")
                if self._interim > _MOST_INTERIM:
                    raise BadReply(f"the server sends HTTP {status} again and again, and no answer")
                return
            self.status = status
            headers = self.headers = answer_headers(self._pairs)
            self._inflate = inflate_for(headers)
        except CallError as error:
            self._refusal = error
            raise
        self.has_head = True
        self._bare_bytes = 0
        if self._is_bodyless:
            self._is_done, self._is_reusable = True, False
            self._wake()
        elif self._is_streamed:
            self._wake()

    def on_body(self, data: bytes) -> None:
        if self._is_done:
            return
        self._bare_bytes = 0
        try:
            if self._inflate is not None:
                data = self._inflate.take(data, self._most_bytes - self._size + 1)
                if not data:
                    return
            size = self._size = self._size + len(data)
            if size > self._most_bytes:
                raise BadReply(f"the answer is longer than {self._most_bytes:,} bytes")
        except CallError as error:
            self._refusal = error
            raise
        self._parts.append(data)
        if self._is_streamed:
            self._waiting += len(data)
            if self._waiting > _MOST_WAITING_BYTES and self._transport is not None:
                self._is_paused = True
                self._transport.pause_reading()
            self._wake()
        elif size > LONG_BYTES:
            self._intake.read(self, size)

    def on_message_complete(self) -> None:
        if self._is_done:
            return
        if not self.has_head:
            # A 1xx: the answer follows.
            self._pairs = []
            return
        if self._inflate is not None and not self._inflate.is_whole:
            self._refusal = cut_short()
            raise self._refusal
        self._is_reusable = self._is_reusable and self._parser.should_keep_alive()
        self._is_done = True
        self._wake()


def unread(transport: asyncio.BaseTransport) -> select.poll | None:
    """Tells by `poll(0)` whether the transport's socket holds unread bytes, or has been closed.

    None if that cannot be told.
    """
    connected = transport.get_extra_info("socket")
    if connected is None or not hasattr(select, "poll"):
        return None
    poll = select.poll()
    poll.register(connected.fileno(), select.POLLIN)
    return poll


def _too_long_headers() -> BadReply:
    return BadReply(f"the answer's headers are longer than {MOST_HEADER_BYTES:,} bytes")


def _broken(error: Exception | None, *, has_begun: bool) -> Disconnected:
    """The connection ended within an exchange."""
    if error is not None:
        text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    elif has_begun:
        text = "the server closed it within its answer"
    else:
        text = "the server closed it without an answer"
    disconnected = Disconnected(f"the connection broke: {text}")
    disconnected.was_sent = True
    return disconnected
