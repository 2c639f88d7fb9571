"""Serves one connection: llhttp parses its requests, which are answered in order.

state      from                         until
idle       the connection, a response   a head begins to arrive; after idle_s, the connection closes
head       the first bytes of a head    the head ends; after head_s, the response is 408
answering  the end of the head          the response ends; then idle, head or answering
lingering  a response that ended        the client closes, or 2 s have passed; data that arrives is
           before its request           dropped, because unread data would turn the close into a
                                        reset
lost       a close by either side       the end: handlers are cancelled

A head that repeats an earlier one, except for the length of its body, is compared instead of
parsed; see request_form.py.

A handler starts as soon as the head of its request has been read. If it cannot answer at once, a
task awaits it. The connection is read meanwhile, so the task is cancelled if the client leaves.
Requests that arrive meanwhile wait in order; reading pauses while 16 requests, or more than 64 KiB
of a body, are waiting.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from math import inf
from typing import Any, cast

import httptools

from redline.httpserver.bounds import HttpBounds
from redline.httpserver.exchange import BodyError, ClientGoneError, Exchange, State
from redline.httpserver.framing import (
    SHORT_BYTES,
    Fault,
    Fields,
    check_fields,
    coding_of,
    framing_of,
    read_line,
    read_short_line,
)
from redline.httpserver.heads import date_line
from redline.httpserver.request_form import RequestForm

# The parser gets at most this many bytes at once, so few requests are parsed beyond _MOST_WAITING.
_PIECE_BYTES = 16 * 1024
_MOST_WAITING = 16
# After this many forms, no further form is learned: the heads of the client keep changing.
_MOST_FORMS = 8
_LINGER_S = 2.0
_LOOK_S = 0.01
# A client that reads less than this within unread_s counts as stalled.
_LEAST_TAKEN_BYTES = 64 * 1024

_NO_LINE = ("", "/", b"", True)

_OVER = State.OVER

# A function that answers the exchange and returns None, or returns a coroutine that answers it.
Handler = Callable[[Exchange], Coroutine[Any, Any, None] | None]


class _StopError(Exception):
    """Raised in a callback to stop llhttp from parsing."""


class Service:
    """The state that a server's connections share.

    date: the Date header line, renewed at least once a second.
    """

    def __init__(self, handle: Handler, bounds: HttpBounds) -> None:
        self.handle = handle
        self.bounds = bounds
        self.connections: set[Connection] = set()
        self.date = date_line()
        self.is_draining = False
        self.is_over = False
        self._emptied = asyncio.Event()

    def begin_draining(self) -> None:
        """Makes the next response on each connection the last one."""
        self.is_draining = True

    def sweep(self, now_s: float) -> None:
        """Renews `date`, and ends connections and requests that are overdue.

        now_s: the time on the loop's clock.
        """
        self.date = date_line()
        late = [c for c in self.connections if c.read_by_s <= now_s or c.write_by_s <= now_s]
        for connection in late:
            connection.check(now_s)

    def leave(self, connection: Connection) -> None:
        """Forgets a connection that has ended."""
        self.connections.discard(connection)
        if not self.connections:
            self._emptied.set()

    async def first_requests(self, within_s: float) -> None:
        """Returns once every connected client has sent something, or after `within_s`."""
        for _ in range(round(within_s / _LOOK_S)):
            # Connections that the event loop has just accepted appear in its next turns.
            await asyncio.sleep(_LOOK_S)
            if not any(connection.is_silent for connection in self.connections):
                return

    async def end(self, within_s: float) -> None:
        """Cancels every handler and closes every connection.

        within_s: seconds for handlers to end, and again for written data to be sent. Connections
        that are still open after that are aborted.
        """
        self.is_draining = self.is_over = True
        tasks = [c.task for c in self.connections if c.task is not None]
        for connection in [*self.connections]:
            connection.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=within_s)
        if self.connections:
            self._emptied.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(within_s):
                    await self._emptied.wait()
        for connection in [*self.connections]:
            connection.transport.abort()


class Connection(asyncio.Protocol):
    """Parses the requests of one client and runs their handlers.

    read_by_s, write_by_s: when `check` is due, on the loop's clock. write: sends bytes to the
    client; None while the write buffer is full, and after the client has left.
    """

    transport: asyncio.Transport
    # An object with more than 30 attributes in a dict is slow to use (CPython 3.11).
    __slots__ = (
        *("_bare_bytes", "_body_left", "_bounds", "_current", "_drain", "_fields", "_form"),
        *("_form_bytes", "_forms_left", "_framing", "_idle_s", "_incoming", "_is_ending"),
        "_is_in_head",
        *("_is_lingering", "_is_read_paused", "_loop", "_most_head_bytes", "_parser"),
        *("_queue", "_rest", "_target", "_unparsed", "_unread_by_s", "_unwritten"),
        *("_waiter", "is_lost", "is_write_paused", "most_body_bytes", "read_by_s", "service"),
        *("task", "transport", "write", "write_by_s"),
    )

    def __init__(self, service: Service) -> None:
        self.service = service
        self._bounds = service.bounds
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._queue: deque[Exchange] = deque()
        self._incoming: Exchange | None = None  # its body is incomplete
        self._current: Exchange | None = None  # its handler is running
        self._rest: Coroutine[Any, Any, None] | None = None  # of that handler, for the task
        self.task: asyncio.Task[None] | None = None
        self._waiter: asyncio.Future[None] | None = None  # the task waits for `_rest`
        self._drain: asyncio.Future[None] | None = None
        self._target = b""
        self._fields = Fields()
        self._bare_bytes = 0  # received since the last byte of a body, or since a request's end
        self._framing = b""  # the length or coding line of a request that offers an upgrade
        self._unparsed = memoryview(b"")
        self._form: RequestForm | None = None
        self._form_bytes = 0  # the largest body that a request of that form may have
        self._body_left = 0  # bytes of such a body that are still to come; llhttp gets none of them
        self._forms_left = _MOST_FORMS
        self._is_read_paused = False
        self._is_in_head = False
        self._is_ending = False  # no further request is read
        self._is_lingering = False
        self._unwritten = 0
        self.is_lost = False
        self.is_write_paused = False
        self.write: Callable[[bytes], None] | None = None
        self._most_head_bytes = service.bounds.most_head_bytes
        self._idle_s = service.bounds.idle_s
        self.most_body_bytes = service.bounds.most_body_bytes
        # Clients may connect long before they send a request.
        self.read_by_s = self._loop.time() + service.bounds.idle_s
        self.write_by_s = self._unread_by_s = inf

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports behave like asyncio's, but do not inherit from them.
        self.transport = cast(asyncio.Transport, transport)
        self.write = self.transport.write
        service = self.service
        if service.is_over:
            # The connection was accepted just before the listener closed, but created just after.
            self.transport.abort()
            return
        service.connections.add(self)
        if len(service.connections) > service.bounds.most_connections:
            self._refuse(Fault(503, "too many connections"))
            self._advance()

    def data_received(self, data: bytes) -> None:
        if self._is_ending:
            return
        is_in_request = self._bare_bytes or self._is_in_head or self._incoming or self._queue
        is_first = not (is_in_request or self._unparsed)
        form = self._form
        if form is not None and is_first:
            body = form.body(data, self._form_bytes)
            if body is not None:
                exchange = Exchange(self, form.line, form.fields, True, body, len(body))
                self._queue.append(exchange)
                self._advance()
                return
            if self._begin_body(form, data):
                return
        if self._body_left:
            data = self._take_body(data)
            if not data:
                return
        if len(data) > _PIECE_BYTES or self._unparsed:
            self._unparsed = memoryview(bytes(self._unparsed) + data)
            self._parse_on()
        else:
            self._parse(data)
        if self._queue:
            if is_first and self._forms_left:
                self._learn_form(data)
            self._advance()

    def eof_received(self) -> None:
        # A client that stops sending has left. The loop closes the transport once all
        # written data has been sent.
        self._lose()
        self._bound_writing()

    def connection_lost(self, error: Exception | None) -> None:
        self._lose()
        self.service.leave(self)
        # The parser refers back to this connection.
        del self._parser

    def pause_writing(self) -> None:
        self.is_write_paused = True
        self.write = None
        self._bound_writing()

    def resume_writing(self) -> None:
        self.is_write_paused = False
        self.write = None if self.is_lost else self.transport.write
        self.write_by_s = inf
        if self._drain is not None and not self._drain.done():
            self._drain.set_result(None)
        self._advance()

    # What exchanges call.

    async def drained(self) -> None:
        """Returns once most of the written data has been sent."""
        while self.is_write_paused:
            self._drain = asyncio.Future()
            try:
                await self._drain
            finally:
                self._drain = None

    def read_body(self) -> None:
        """Sets the deadline of the body, for which the handler now waits, and resumes reading."""
        if self.read_by_s == inf:
            self.read_by_s = self._loop.time() + self._body_s(self._current)
        self._read_on()

    def close(self) -> None:
        """Closes the connection once all written data has been sent."""
        if not self.is_lost and not self.transport.is_closing():
            self._is_ending = True
            self._bound_writing()
            self.transport.close()

    @property
    def is_silent(self) -> bool:
        """Whether the client seems to have sent nothing yet."""
        has_learned = self._forms_left < _MOST_FORMS
        is_busy = self._queue or self._current or self._incoming or self._is_in_head
        return not (has_learned or is_busy or self._bare_bytes or self._is_ending or self.is_lost)

    def _body_s(self, exchange: Exchange | None) -> float:
        """Returns the seconds for a body to arrive; a larger bound allows proportionally more."""
        most_bytes = None if exchange is None else exchange.most_body_bytes
        share = 1.0 if most_bytes is None else max(1.0, most_bytes / self.most_body_bytes)
        return self._bounds.body_s * share

    def _bound_writing(self) -> None:
        """Sets the deadline by which the client must read the written data."""
        self._unwritten = self.transport.get_write_buffer_size()
        now_s, bounds = self._loop.time(), self._bounds
        self._unread_by_s = now_s + bounds.unread_s
        self.write_by_s = now_s + min(bounds.wanted_s, bounds.unread_s)

    # Called by the service.

    def check(self, now_s: float) -> None:
        """Ends the request or the connection if it is overdue at `now_s`, on the loop's clock."""
        if now_s >= self.write_by_s:
            left = self.transport.get_write_buffer_size()
            if left + _LEAST_TAKEN_BYTES <= self._unwritten:
                self._bound_writing()
            elif now_s >= self._unread_by_s or (self._current and self._current.is_wanted):
                self.transport.abort()
                return
        if now_s < self.read_by_s:
            return
        self.read_by_s = inf
        if self._is_lingering and self.transport.get_write_buffer_size():
            # The rest of the response must be sent first; `write_by_s` bounds that.
            self.read_by_s = now_s + _LINGER_S
        elif self._is_lingering:
            self.transport.abort()
        elif self._current is not None:
            self._is_ending = True
            body_s = self._body_s(self._current)
            self._current.fail(408, f"the body did not arrive within {body_s:g} s")
        elif self._is_in_head:
            self._refuse(Fault(408, "the head of the request did not arrive in time"))
            self._advance()
        else:
            self.close()

    def cancel(self) -> None:
        """Ends the connection and its handler."""
        if self._current is not None and self.task is not None:
            self.task.cancel()
        else:
            self.close()

    # Reading.

    def _learn_form(self, data: bytes) -> None:
        """Learns the form of a request whose head came in one read, to recognize later requests."""
        exchange = self._queue[0]
        if len(self._queue) == 1 and exchange.error is None and exchange.is_kept:
            self._forms_left -= 1
            form = exchange.form(data)
            # One request for a page between many calls must not replace the form of the calls.
            if form is not None and (form.end or self._form is None):
                self._form = form
                self._form_bytes = exchange.most_body_bytes or self.most_body_bytes

    def _begin_body(self, form: RequestForm, data: bytes) -> bool:
        """Begins a request without llhttp, and returns True, if `data` begins one of this form."""
        begun = form.begun(data, self._form_bytes)
        if begun is None:
            return False
        size, part = begun
        self._body_left = size
        self._incoming = exchange = Exchange(self, form.line, form.fields, True, size=size)
        self._allow_body(exchange)
        self._queue.append(exchange)
        if part:
            self._take_body(part)
        self._advance()
        return True

    def _take_body(self, data: bytes) -> bytes:
        """Takes the part of `data` that belongs to the current body, and returns the rest."""
        incoming, left = self._incoming, self._body_left
        assert incoming is not None
        part = data if len(data) <= left else data[:left]
        self._body_left = left - len(part)
        incoming.receive(part)
        if not self._body_left:
            self.on_message_complete()
        elif incoming.is_full:
            self._pause_reading()
        return data[left:]

    def _parse(self, data: bytes | memoryview) -> None:
        was_in_head = self._is_in_head
        while True:
            self._bare_bytes += len(data)
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                # The client offers another protocol, but the connection stays on HTTP/1.1.
                if self._framing:
                    self._parse_body()
                data = memoryview(data)[upgrade.args[0] :]
                if data and not self._is_ending:
                    continue
            except httptools.HttpParserError as error:
                if not self._is_ending:
                    reason = " ".join(str(error).split())
                    self._refuse(Fault(400, f"the request is not HTTP: {reason}"))
            break
        if self._bare_bytes:
            if self._bare_bytes > self._most_head_bytes and not self._is_ending:
                self._refuse(self._too_long_head())
            elif self._incoming is None and not was_in_head:
                self._begin_head()
        # Checked after parsing: a body that is complete by now need not pause reading.
        if self._is_full():
            self._pause_reading()

    def _parse_body(self) -> None:
        """Reads the body of a request that offers an upgrade, which httptools ignores.

        Otherwise the next request would begin inside the body.
        """
        self._parser = httptools.HttpRequestParser(self)
        self._parser.feed_data(b"POST / HTTP/1.1\r\n" + self._framing + b"\r\n\r\n")

    def _begin_head(self) -> None:
        """Sets the deadline of a head that has begun to arrive."""
        self._is_in_head = True
        if self._current is None:
            by_s = self._loop.time() + self._bounds.head_s
            self.read_by_s = min(self.read_by_s, by_s)

    def _parse_on(self) -> None:
        """Parses received data piece by piece, until too much of it waits for handlers."""
        while self._unparsed and not self._is_ending and not self._is_full():
            piece = self._unparsed[:_PIECE_BYTES]
            self._unparsed = self._unparsed[_PIECE_BYTES:]
            self._parse(piece)
        if self._is_ending:
            self._unparsed = memoryview(b"")
        elif self._unparsed:
            self._pause_reading()

    def _is_full(self) -> bool:
        return len(self._queue) >= _MOST_WAITING or (
            self._incoming is not None and self._incoming.is_full
        )

    def _pause_reading(self) -> None:
        if not self._is_read_paused and not self.transport.is_closing():
            self._is_read_paused = True
            self.transport.pause_reading()

    def _read_on(self) -> None:
        """Parses the data that was held back, and resumes reading unless too much waits."""
        if self._unparsed:
            self._parse_on()
        if self._is_read_paused and not self._unparsed and not self._is_full():
            self._is_read_paused = False
            if not self.transport.is_closing():
                self.transport.resume_reading()

    def _refuse(self, fault: Fault) -> None:
        """Stops parsing. A body that is being received fails; otherwise the response is `fault`."""
        self._is_ending = True
        if self._incoming is not None:
            self._incoming.fail(fault.status, fault.reason)
            return
        self._queue.append(Exchange(self, _NO_LINE, Fields(), False, fault=fault))

    def _too_long_head(self) -> Fault:
        most = f"the head of the request is longer than {self._most_head_bytes:,} bytes"
        return Fault(431, most)

    # Callbacks of the parser. They may be called for requests after the last one that is answered.

    def on_message_begin(self) -> None:
        # A request may begin right after the end of another one, in the same read.
        self._is_in_head = True

    def on_url(self, target: bytes) -> None:
        self._target += target

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        value = value.strip(b" \t")
        fields = self._fields
        if name in fields:
            value = fields[name] + b", " + value
        fields[name] = value

    def on_headers_complete(self) -> None:
        parser = self._parser
        target, self._target = self._target, b""
        fields, self._fields = self._fields, Fields()
        self._is_in_head = False
        if self._framing:
            self._framing = b""
            return
        try:
            if self._bare_bytes > self._most_head_bytes:
                # Some of these bytes may belong to a body or to other requests.
                size = len(target) + sum(len(name) + len(fields[name]) + 4 for name in fields)
                if size > self._most_head_bytes:
                    raise self._too_long_head()
            # Reading the version is costly. Without a Connection header, only HTTP/1.1 keeps the
            # connection.
            is_kept = parser.should_keep_alive()
            is_plain = is_kept and b"connection" not in fields
            version = "1.1" if is_plain else parser.get_http_version()
            read = read_short_line if len(target) <= SHORT_BYTES else read_line
            line = read(parser.get_method(), target, version)
            check_fields(fields, is_http_1_1=line[3])
        except Fault as error:
            self._refuse(error)
            raise _StopError from None
        exchange = Exchange(self, line, fields, is_kept)
        self._allow_body(exchange)
        self._bare_bytes = 0
        self._incoming = exchange
        self._queue.append(exchange)
        if b"content-length" in fields or b"content-encoding" in fields:
            self._prepare_body(exchange, fields)
        if b"upgrade" in fields and parser.should_upgrade():
            self._framing = framing_of(fields)

    def _allow_body(self, exchange: Exchange) -> None:
        """Applies the bound of the request's path, if the path has its own bound."""
        bounds = self._bounds.bodies_by_path
        if bounds and exchange.path in bounds:
            exchange.allow_body(bounds[exchange.path])

    def _prepare_body(self, exchange: Exchange, fields: dict[bytes, bytes]) -> None:
        """Refuses a body that is too long or has an unknown coding; sets up decompression."""
        if b"content-encoding" in fields:
            coding = coding_of(fields)
            if isinstance(coding, Fault):
                exchange.fail(coding.status, coding.reason)
            elif coding is not None:
                exchange.inflate(may_be_raw=coding)
        most_bytes = exchange.most_body_bytes or self.most_body_bytes
        if int(fields.get(b"content-length", b"0")) > most_bytes:
            most = f"the body is longer than {most_bytes:,} bytes"
            exchange.fail(413, most)
        if exchange.error is not None:
            self._is_ending = True
            raise _StopError

    def on_body(self, data: bytes) -> None:
        self._bare_bytes = 0
        incoming = self._incoming
        if incoming is None:
            return
        incoming.receive(data)
        if incoming.error is not None:
            self._is_ending = True
            raise _StopError

    def on_message_complete(self) -> None:
        if self._framing:
            return
        self._bare_bytes = 0
        if self._fields:
            # Trailers are dropped: they must not be mistaken for headers (RFC 9110, 6.5.1).
            self._fields = Fields()
        incoming = self._incoming
        if incoming is None:
            return
        self._incoming = None
        incoming.receive_end()
        if incoming is self._current:
            self.read_by_s = inf
        if not incoming.is_kept or incoming.error is not None:
            self._is_ending = True

    # Answering.

    def _advance(self) -> None:
        """Answers waiting requests, up to the first whose handler must be awaited."""
        queue = self._queue
        while queue and self._current is None and not self.is_write_paused:
            exchange = queue.popleft()
            if self._is_read_paused:
                self._read_on()
            try:
                if exchange.fault is None:
                    handle = self.service.handle
                    self._rest = handle(exchange)
                else:
                    exchange.refuse(exchange.fault)
            except Exception as error:
                self._fail(exchange, error)
            if self._rest is not None:
                self._current = exchange
                self.read_by_s = inf
                waiter = self._waiter
                if waiter is not None and not waiter.done():
                    waiter.set_result(None)
                elif self.task is None:
                    self.task = self._loop.create_task(self._answer_rest())
                return
            self._conclude(exchange)

    async def _answer_rest(self) -> None:
        """Awaits one handler after another, until the connection ends."""
        try:
            while True:
                while self._rest is None:
                    self._waiter = asyncio.Future()
                    await self._waiter
                exchange, rest = self._current, self._rest
                self._rest = None
                assert exchange is not None
                try:
                    await rest
                except Exception as error:
                    self._fail(exchange, error)
                self._current = None
                self._conclude(exchange)
                if self._queue:
                    self._advance()
        except asyncio.CancelledError:
            self.transport.abort()
            raise
        finally:
            self.task = None

    def _conclude(self, exchange: Exchange) -> None:
        """Ends the exchange of a handler that has returned, with 500 if there is no response.

        Then ends the connection, or sets the deadline for the next request.
        """
        if exchange.state is not _OVER:
            exchange.refuse(Fault(500, "the request was not answered"))
        if not exchange.is_kept or self.is_lost:
            self._queue.clear()
            if exchange.is_complete:
                self.close()
            elif not self.is_lost and not self.transport.is_closing():
                self._linger()
        elif self._queue:
            self.read_by_s = inf
        else:
            wait_s = self._bounds.head_s if self._is_in_head else self._idle_s
            self.read_by_s = self._loop.time() + wait_s

    def _fail(self, exchange: Exchange, error: Exception) -> None:
        """Answers a request whose handler has raised an exception."""
        if isinstance(error, BodyError):
            exchange.refuse(error)
        elif isinstance(error, ClientGoneError):
            exchange.break_off()
        else:
            self._loop.call_exception_handler(
                {"message": "a handler of the HTTP server failed", "exception": error}
            )
            exchange.refuse(Fault(500, "the request could not be answered"))

    def _linger(self) -> None:
        """Drops the data that still arrives, until the client has read the response and closes."""
        self._is_ending = self._is_lingering = True
        self.read_by_s = self._loop.time() + _LINGER_S
        self._bound_writing()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        if self._is_read_paused:
            self._is_read_paused = False
            self.transport.resume_reading()

    def _lose(self) -> None:
        if not self.is_lost:
            self.is_lost = self._is_ending = True
            self.read_by_s = self.write_by_s = inf
            self._queue.clear()
            self.resume_writing()
            if self.task is not None:
                self.task.cancel()
            if self._rest is not None:
                # The task has not begun to await this coroutine.
                self._rest.close()
                self._rest = None
