"""Decides whether kept connections may carry another request, and which responses to doubt.

HTTP/1.1 matches a response to its request only by order. The first response on a connection belongs
to the first request, but a later one may be left over from an earlier request. So whatever arrives
on a reused connection may have nothing to do with the request that was written on it. The request
is then sent once more, on a new connection, if this arrives:

  on a reused connection                       because
  its end, before any byte of a response       the server closed it as idle, or is restarting
  bytes that are not HTTP                      they belong to no request
  a final 4xx that ends the connection,        servers send 400 or 408 on idle connections
  except 429
  the previous answer again, with its id       it was sent twice, unless the server repeats ids
  a response, and then more bytes              one of the two belongs to another request

Each of these except the last takes credit from the kept connections, and responses earn it back;
without credit, each request gets a new connection. So in the long run at most about one request in
32 is sent twice. After the last of these, and after anything that a server has sent without a
request, except a 4xx or 5xx, each later request gets a new connection.
"""

from __future__ import annotations

import math
import re
from typing import Protocol

from redline.calls.wire.exchange import Answer, Exchange, Repeat
from redline.errors import BadReply, CallError, Disconnected

_MOST_CREDIT = 8.0
# All connections may fail at once before the first failure is noticed.
_MOST_DEBT = 64.0
_EARNED = 1 / 32
# Of longer requests and responses, only the length and both ends are kept and compared.
WHOLE_BYTES = 4096
_END_BYTES = 512
_ID = b'"id"'
_GOODBYE = re.compile(rb"\s*HTTP/1\.[01] [45]\d\d ")


# The part of a request's or a response's body that is kept for comparison.
Trace = bytes | tuple[int, bytes, bytes]


def trace_of(body: bytes) -> Trace:
    """Returns the value by which bodies are compared: length and both ends if they are long."""
    size = len(body)
    if size <= WHOLE_BYTES:
        return body
    return size, body[:_END_BYTES], body[-_END_BYTES:]


class Kept(Protocol):
    """A connection that may carry another request.

    is_kept: whether other requests were written on it before the current one. has_head: whether the
    headers of its response have arrived. asked: the trace of the request's body, b"" for none.
    last_asked, last_answer: the traces of the previous request and response; last_answer is None if
    there was none.
    """

    is_kept: bool
    asked: Trace
    last_asked: Trace
    last_answer: Trace | None

    @property
    def is_open(self) -> bool:
        """Whether a request may be written: the connection is up and has no unread bytes."""

    @property
    def has_head(self) -> bool: ...

    @property
    def unasked(self) -> object:
        """Truthy if more than the response may have arrived, such as the bytes themselves."""


class Reuse:
    """Decides whether to reuse connections to one endpoint, as learned from their responses."""

    def __init__(self) -> None:
        self._credit = _MOST_CREDIT
        self._repeats_itself = False
        # The latest first request and response of a connection.
        self._first: tuple[Trace, Trace] = (b"", b"")
        # A connection that has carried a request may carry another one.
        self.is_allowed = True

    def own(self, answer: Answer, exchange: Exchange, connection: Kept) -> None:
        """Raises Repeat if the response may belong to another request. Call once per response."""
        body = answer.body
        is_kept = connection.is_kept and exchange.may_repeat
        if answer.status == 200:
            if not self._repeats_itself:
                found = body if len(body) <= WHOLE_BYTES else trace_of(body)
                if not is_kept:
                    self._learn(connection, body, found)
                elif connection.last_answer == found:
                    self._compare(connection, body)
                connection.last_asked = connection.asked
                connection.last_answer = found
            if exchange.failed is not None and exchange.doubted and exchange.doubted == body:
                # The server gives the same id to the answers to different requests.
                self._repeats_itself = True
        elif is_kept:
            self._check_refusal(answer, connection)
        if connection.unasked and is_kept:
            self._set(-math.inf)
            raise Repeat(BadReply("an unexpected second response arrived on a reused connection"))
        if self._credit < _MOST_CREDIT:
            self.answered()

    def _learn(self, connection: Kept, body: bytes, found: Trace) -> None:
        """Learns from first responses whether the server repeats ids: they are never doubtful."""
        if not connection.is_kept and _ID in body:
            asked, answered = self._first
            self._repeats_itself = answered == found and asked != connection.asked
            self._first = connection.asked, found

    def _compare(self, connection: Kept, body: bytes) -> None:
        """Raises Repeat if the answer has an id and has already answered a different request."""
        # Answers without ids, such as a classifier's, are often identical.
        if connection.last_asked != connection.asked and _ID in body:
            raise self._doubted("the previous answer came again", body)

    def _check_refusal(self, answer: Answer, connection: Kept) -> None:
        """Raises Repeat for a refusal that ends the connection."""
        status = answer.status
        if 400 <= status < 500 and status != 429 and _is_last(answer, connection):
            raise self._doubted(f"HTTP {status} on a reused connection", b"")

    def answered(self) -> None:
        """Adds credit for an exchange that got its own response."""
        self._set(min(self._credit + _EARNED, _MOST_CREDIT))

    def check(self, error: CallError, exchange: Exchange, connection: Kept) -> None:
        """Raises Repeat if the error of an exchange may have nothing to do with its request."""
        if not (exchange.may_repeat and connection.is_kept) or connection.has_head:
            return
        is_unanswered = isinstance(error, Disconnected) and exchange.first_byte_s is None
        if is_unanswered or isinstance(error, BadReply):
            self._take_credit()
            raise Repeat(error) from error

    def unasked(self, data: bytes) -> None:
        """Records bytes that arrived on a connection without an open request."""
        if not _GOODBYE.match(data):
            self._set(-math.inf)

    def _take_credit(self) -> None:
        self._set(max(self._credit - 1, min(self._credit, -_MOST_DEBT)))

    def _set(self, credit: float) -> None:
        self._credit = credit
        self.is_allowed = credit >= 1

    def _doubted(self, what: str, body: bytes) -> Repeat:
        self._take_credit()
        return Repeat(BadReply(what), body)


def _is_last(answer: Answer, connection: Kept) -> bool:
    """Whether the server ends the connection after the response."""
    return "close" in answer.headers.get("connection", "").lower() or not connection.is_open
