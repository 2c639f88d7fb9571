"""One request and its answer on the wire: its bytes, its clocks, its grant.

Phases of an exchange: connect -> row (only the row's deadline counts) -> first_byte -> attempt. In
the second phase the connection is up and nothing is written: the exchange waits for the limits with
its connection in hand, and the stamp is the time of the write.
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
from redline.structs import mutable

# The media type of a stream of events: an answer of this type is streamed.
EVENTS = "text/event-stream"
# Servers have a few layouts each; the bound is for one that makes up new names for every answer.
_MOST_LAYOUTS = 256
# No header's value contains one: the parsers refuse it (RFC 9110, 5.5).
_BETWEEN = b"\n"


class Timeouts(msgspec.Struct, frozen=True, kw_only=True):
    """The timeouts of one attempt, in seconds, each above 0 and at most 86,400.

    connect_s: until the connection is made, TLS included.
    first_byte_s: from the write of the request to the first byte of the answer.
    attempt_s: from the write to the end of the answer.
    Waiting for a limit does not count.
    """

    connect_s: float = 10.0
    first_byte_s: float = 600.0
    attempt_s: float = 600.0

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if not 0 < value <= 86_400:
                raise ConfigError(f"{name} must be above 0 and at most 86,400 s, not {value:g}")


class Answer(msgspec.Struct, gc=False):
    """An HTTP answer. Header names are in lower case; repeated headers are joined by commas."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def do_nothing(*_: object) -> None:
    """Does nothing: the default of `before_write` and `on_sent`."""


class Alarm(Protocol):
    """A clock that ends an exchange whose time is up."""

    def ring_at(self, when_s: float) -> None:
        """Sets the clock to ring at `when_s` (monotonic), its only time; inf for never."""


class Timing:
    """The clock and the timeouts of the exchanges with one endpoint.

    on_sent: called with an exchange and its send time just before the request is written. first:
    the phase that begins with the write, and its seconds.
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

    error: the failure on the reused connection. body: that of a doubted answer, b"" for none.
    """

    def __init__(self, error: CallError, body: bytes = b"") -> None:
        super().__init__(error.what)
        self.error = error
        self.body = body


class TooLate(Exception):
    """Raised instead of a write if the grant's time has passed; the exchange needs another one."""


@mutable
class Exchange(msgspec.Struct, eq=False):
    """One exchange, with its clocks and its grant, which the caller releases or settles.

    may_repeat: a transport may raise Repeat. is_head: the request is a HEAD, whose answer ends with
    its headers. grant: for one write. due_s: since when the request waited for results that were
    being saved, if it did. failed: its error on a connection that had carried others, after the
    write at failed_sent_s; the request is then written on a new one. doubted: the body of the
    answer that caused the repetition. on_write: called just before the request is stamped and
    written; if it raises a CallError, the request is not written.
    take_now: takes a part of a streamed body without waiting; returns whether it did. chunk_taker:
    returns a function that passes on chunks as they are on the wire and returns the bytes of their
    bodies, 0 if it has not passed them on; None while there is no such function.
    """

    # A Struct: an object with a dict would get one of its own for each attempt, because CPython
    # 3.11 and 3.12 share no keys that are first set once many objects have been made.
    timing: Timing
    deadline_s: float = math.inf
    may_repeat: bool = False
    head: bytes = b""
    body: bytes = b""
    is_head: bool = False
    alarm: Alarm | None = None
    phase: str = "connect"
    held_up_s: float = 0.0  # pauses by redline itself, since the write
    paused: tuple[str, float] | None = None  # in which phase, and since when
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
        """Takes the grant if it is available at once; returns whether the exchange holds it."""

    @abstractmethod
    async def acquire(self) -> Grant:
        """Waits until the limits give the grant, and returns it."""

    def on_streamed(self, status: int, headers: Mapping[str, str]) -> None:
        """Called with the head of an answer whose body is streamed, before the body."""
        return

    async def get_ready(self) -> None:
        """Waits until the exchange may take a connection, on which it then waits for its grant.

        Returns at once, unless a subclass bounds the number of such exchanges.
        """
        return

    def carry(self, head: bytes, body: bytes | None, deadline_s: float = math.inf) -> None:
        """Sets the request, which is given up at `deadline_s` (monotonic)."""
        self.head = head
        if body is not None:
            self.body = body
        else:
            self.is_head = head.startswith(b"HEAD ")
        self.deadline_s = deadline_s

    def was_due(self, due_s: float) -> None:
        """Records since when it has waited for results that are being saved."""
        self.due_s = due_s

    def drop_body(self) -> None:
        """Drops a long body, so that it is not kept while the answer is awaited."""
        self.body = b""

    def follow(self, alarm: Alarm) -> None:
        """Sets the alarm that ends the exchange before it is written."""
        self.alarm = alarm

    def again(self, repeat: Repeat) -> None:
        """Resets the exchange to send its request once more, which needs a second grant."""
        self.may_repeat = False
        self.failed, self.doubted = repeat.error, repeat.body
        self.failed_sent_s = self.sent_s or 0.0
        self.grant = self.first_byte_s = self.alarm = self.paused = self.due_s = None
        self.held_up_s = 0.0

    def connecting(self) -> None:
        """Enters the phase in which a connection is made."""
        self._enter("connect", self.timing.now_s() + self.timing.timeouts.connect_s)

    async def wait_for_grant(self) -> None:
        """Waits until the exchange holds its grant."""
        if not self.may_leave():
            self.waiting()
            self.grant = await self.acquire()

    def leave(self, alarm: Alarm) -> None:
        """Stamps the request, which is written now; from here on `alarm` ends the exchange.

        Raises CallError or TooLate if it must not be written; it then counts as not yet due.
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
        """Records the arrival of the answer's first byte."""
        self.first_byte_s = self.timing.now_s()
        if self.phase == "first_byte" and self.sent_s is not None:
            attempt_s = self.timing.timeouts.attempt_s
            self._enter("attempt", self.sent_s + attempt_s + self.held_up_s)

    def waiting(self) -> None:
        """Enters the phase in which only the row's deadline counts."""
        self._enter("row", math.inf)

    def pause(self) -> None:
        """Stops the clock: redline itself pauses reading until `resume`."""
        self.paused = (self.phase, self.timing.now_s())
        self.waiting()

    def resume(self) -> None:
        """Restarts the clock where `pause` stopped it."""
        assert self.paused is not None
        assert self.sent_s is not None
        phase, since_s = self.paused
        self.held_up_s += self.timing.now_s() - since_s
        if phase == "first_byte" and self.first_byte_s is not None:
            # Bytes that TLS had read before the pause have arrived since.
            phase = "attempt"
        if phase != "row":
            allowed_s = getattr(self.timing.timeouts, f"{phase}_s")
            self._enter(phase, self.sent_s + allowed_s + self.held_up_s)

    def timed_out(self, hint: str = "") -> TimedOut:
        """Returns the error of the phase that ran out of time. hint: unused in phase `row`."""
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
    """Returns headers by their lower-case names; repeated ones are joined by commas.

    This runs for each call, so all values are decoded in one go, and the names, which most answers
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
