"""Follows one request and its response on the wire: the bytes, the timeouts, the grant.

Phases of an exchange: connect -> row (only the row's deadline counts) -> first_byte -> attempt. In
the second phase the connection is up but nothing is written: the exchange waits for the limits, so
that the send time is the time of the write.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol

import msgspec

from redline.clock import Clock
from redline.errors import CallError, ConfigError, TimedOut
from redline.limits import Grant
from redline.structs import check_types, mutable

# The media type of a stream of events: a response of this type is streamed.
EVENTS = "text/event-stream"
# A server has a few layouts; the bound is for servers with new header names in every response.
_MOST_LAYOUTS = 256
# No header value contains a line break: the parsers refuse it (RFC 9110, 5.5).
_BETWEEN = b"\n"


class Timeouts(msgspec.Struct, frozen=True, kw_only=True):
    """The timeouts of one attempt, in seconds, each above 0 and at most 86,400.

    connect_s: until the connection is made, TLS included.
    first_byte_s: from the write of the request to the first byte of the response.
    attempt_s: from the write of the request to the end of the response.
    Time spent waiting for a limit does not count.
    """

    connect_s: float = 10.0
    first_byte_s: float = 600.0
    attempt_s: float = 600.0

    def __post_init__(self) -> None:
        check_types(self)
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if not 0 < value <= 86_400:
                raise ConfigError(f"{name} must be above 0 and at most 86,400 s, not {value:g}")


class Answer(msgspec.Struct, gc=False):
    """An HTTP response. Header names are in lower case; repeated headers are joined by commas."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def do_nothing(*_: object) -> None:
    """Does nothing: the default of callbacks such as `before_write`."""


class Alarm(Protocol):
    """A clock that ends an exchange whose time is up."""

    def ring_at(self, when_s: float) -> None:
        """Sets the clock to ring at `when_s` (monotonic time); inf for never."""


class Timing:
    """The clock and the timeouts of the exchanges with one endpoint.

    on_sent: called with an exchange and its send time just before the request is written. first:
    the phase that begins with the write, and its timeout in seconds.
    """

    def __init__(
        self,
        timeouts: Timeouts,
        clock: Clock,
        on_sent: Callable[[Any, float], None] = do_nothing,
    ) -> None:
        self.timeouts = timeouts
        self.now_s = clock.now_s
        self.on_sent = on_sent
        self.first = ("attempt", timeouts.attempt_s)
        if timeouts.first_byte_s < timeouts.attempt_s:
            self.first = ("first_byte", timeouts.first_byte_s)


class Repeat(Exception):
    """Raised to send a request once more, on a new connection; see reuse.py.

    error: why the first response is not used. body: the body of a doubted response, b"" if none.
    """

    def __init__(self, error: CallError, body: bytes = b"") -> None:
        super().__init__(error.what)
        self.error = error
        self.body = body


class TooLate(Exception):
    """Raised instead of writing if the grant has expired; the exchange needs another grant."""


@mutable
class Exchange(msgspec.Struct, eq=False):
    """One exchange, with its timeouts and its grant, which the caller releases or settles.

    deadline_s: when it times out, in monotonic time. may_repeat: whether the transport may raise
    Repeat. grant: for one write. due_s: since when the request waited for results to be saved, if
    it did. failed: the error because of which the request is written again, on a new connection;
    failed_sent_s: when it was first written. doubted: the body of the response that caused the
    repetition. on_write: called just before the request gets its send time and is written; if it
    raises a CallError, the request is not written. take_now: takes a part of a streamed body
    without waiting; returns whether it did. chunk_taker: returns a function that passes on chunks
    as they are on the wire; this function returns the number of bytes in their bodies, or 0 if it
    has not passed them on. chunk_taker returns None while there is no such function.
    """

    # A Struct, because an object with attributes in a dict would need a dict for each attempt:
    # CPython 3.11 and 3.12 do not share keys that are first set after many objects were made.
    timing: Timing
    deadline_s: float = math.inf
    may_repeat: bool = False
    head: bytes = b""
    body: bytes = b""
    alarm: Alarm | None = None
    phase: str = "connect"
    held_up_s: float = 0.0  # how long redline itself has paused reading since the write
    paused: tuple[str, float] | None = None  # the phase that was paused, and since when
    grant: Grant | None = None
    due_s: float | None = None
    sent_s: float | None = None
    first_byte_s: float | None = None
    failed: CallError | None = None
    failed_sent_s: float = 0.0
    doubted: bytes = b""
    on_write: Callable[[], None] | None = None
    take_now: Callable[[bytes], bool] | None = None
    chunk_taker: Callable[[], Callable[[bytes], int] | None] | None = None

    @abstractmethod
    def may_leave(self) -> bool:
        """Takes the grant if it is available at once; returns whether the exchange has it."""

    @abstractmethod
    async def acquire(self) -> Grant:
        """Waits until the limits give the grant, and returns it."""

    def on_streamed(self, status: int, headers: Mapping[str, str]) -> None:
        """Called with the status and headers of a streamed response, before its body."""
        return

    async def get_ready(self) -> None:
        """Waits until the exchange may take a connection, with which it then waits for its grant.

        Returns at once, unless a subclass bounds the number of exchanges that get ready.
        """
        return

    def was_due(self, due_s: float) -> None:
        """Records since when the request has waited for results to be saved."""
        self.due_s = due_s

    def drop_body(self) -> None:
        """Drops a long body, so that it is not kept during the wait for the response."""
        self.body = b""

    def follow(self, alarm: Alarm) -> None:
        """Sets the alarm that ends the exchange if its time is up before the write."""
        self.alarm = alarm

    def again(self, repeat: Repeat) -> None:
        """Resets the exchange to send its request once more, for which it needs a second grant."""
        self.may_repeat = False
        self.failed, self.doubted = repeat.error, repeat.body
        self.failed_sent_s = self.sent_s or 0.0
        self.grant = self.first_byte_s = self.alarm = self.paused = self.due_s = None
        self.held_up_s = 0.0

    def connecting(self) -> None:
        """Enters the phase in which the connection is made."""
        self._enter("connect", self.timing.now_s() + self.timing.timeouts.connect_s)

    async def wait_for_grant(self) -> None:
        """Waits until the exchange has its grant."""
        if not self.may_leave():
            self.waiting()
            self.grant = await self.acquire()

    def leave(self, alarm: Alarm) -> None:
        """Records the send time, just before the write; from then on `alarm` ends the exchange.

        Raises CallError or TooLate if the request must not be written.
        """
        grant, timing = self.grant, self.timing
        assert grant is not None
        if self.on_write is not None:
            self.on_write()
        sent_s = self.sent_s = timing.now_s()
        grant.sent(sent_s)
        self.alarm = alarm
        self.phase, first_s = timing.first
        until_s = sent_s + first_s
        if self.deadline_s <= until_s:
            self.phase, until_s = "row", self.deadline_s
        timing.on_sent(self, sent_s)
        alarm.ring_at(until_s)

    def headers_came(self) -> None:
        """Records the arrival of the response's first byte."""
        self.first_byte_s = self.timing.now_s()
        if self.phase == "first_byte" and self.sent_s is not None:
            attempt_s = self.timing.timeouts.attempt_s
            self._enter("attempt", self.sent_s + attempt_s + self.held_up_s)

    def waiting(self) -> None:
        """Enters the phase in which only the row's deadline counts."""
        self._enter("row", math.inf)

    def pause(self) -> None:
        """Stops the timeouts: redline itself pauses reading until `resume`."""
        self.paused = (self.phase, self.timing.now_s())
        self.waiting()

    def resume(self) -> None:
        """Resumes the timeouts where `pause` stopped them."""
        assert self.paused is not None
        assert self.sent_s is not None
        phase, since_s = self.paused
        self.held_up_s += self.timing.now_s() - since_s
        if phase == "first_byte" and self.first_byte_s is not None:
            # TLS read the first bytes before the pause, and has passed them on since.
            phase = "attempt"
        if phase != "row":
            allowed_s = getattr(self.timing.timeouts, f"{phase}_s")
            self._enter(phase, self.sent_s + allowed_s + self.held_up_s)

    def timed_out(self, hint: str = "") -> TimedOut:
        """Returns the error for the phase whose time is up. hint: unused in phase `row`."""
        if self.phase == "row":
            return TimedOut("row")
        return TimedOut(self.phase, getattr(self.timing.timeouts, f"{self.phase}_s"), hint=hint)

    def _enter(self, phase: str, until_s: float) -> None:
        if until_s < self.deadline_s:
            self.phase = phase
        else:
            self.phase, until_s = "row", self.deadline_s
        if self.alarm is not None:
            self.alarm.ring_at(until_s)


def answer_headers(pairs: Sequence[tuple[bytes, bytes]]) -> dict[str, str]:
    """Returns the headers by lower-case names; repeated headers are joined by commas.

    This runs for each call, so all values are decoded together, and the names, which most responses
    have in common, are cached.
    """
    if not pairs:
        return {}
    raw, values = zip(*pairs, strict=True)
    names = _names(raw)
    if names is not None:
        return dict(zip(names, _BETWEEN.join(values).decode("latin-1").split("\n"), strict=True))
    joined: dict[str, str] = {}
    for name, value in pairs:
        plain, text = name.decode("latin-1").lower(), value.decode("latin-1")
        joined[plain] = f"{joined[plain]}, {text}" if plain in joined else text
    return joined


@lru_cache(maxsize=_MOST_LAYOUTS)
def _names(raw: tuple[bytes, ...]) -> tuple[str, ...] | None:
    """Returns the names in lower case; None if one of them occurs twice."""
    names = tuple(name.decode("latin-1").lower() for name in raw)
    return names if len(set(names)) == len(names) else None
