"""One request and its answer on the wire: its bytes, its clocks, its grant.

Phases of an exchange: connect -> row (only the row's deadline counts) -> first_byte -> attempt. In
the second one the connection is up and nothing is written: the limits are waited for with the
connection in hand, and the stamp is the time of the write.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Protocol

import msgspec

from redline.clock import Clock
from redline.errors import CallError, ConfigError, TimedOut
from redline.limits import Grant

# The type of a stream of events; what an exchange is to be streamed for.
EVENTS = "text/event-stream"
# Servers have a few layouts each; one that makes up new names for every answer fills no memory.
_MOST_LAYOUTS = 256
# No header's value holds one: the parsers refuse it (RFC 9110, 5.5).
_BETWEEN = b"\n"


class Timeouts(msgspec.Struct, frozen=True, kw_only=True):
    """Clocks of one attempt, in seconds, each above 0.

    connect_s: until the connection is made, TLS included.
    first_byte_s: from the write of the request to the first byte of the answer.
    attempt_s: from the write to the end of the answer.
    Waiting for a limit counts in none of them.
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
    """An HTTP answer. Headers' names are in lower case; repeated ones are joined by commas."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Alarm(Protocol):
    """Ends an exchange whose time is up."""

    def ring_at(self, when_s: float) -> None:
        """Rings at `when_s` (monotonic) and not before; inf for never."""


class Timing:
    """The clock and the timeouts of the exchanges with one endpoint.

    first: the phase that begins with the write, and its seconds.
    """

    def __init__(self, timeouts: Timeouts, clock: Clock) -> None:
        self.timeouts = timeouts
        self.now_s = clock.now_s
        self.first = ("attempt", timeouts.attempt_s)
        if timeouts.first_byte_s < timeouts.attempt_s:
            self.first = ("first_byte", timeouts.first_byte_s)


class Repeat(Exception):
    """The request is to be sent once more, on a new connection; see reuse.py.

    error: what became of it on the kept one. body: the answer that was doubted, b"" for none.
    """

    def __init__(self, error: CallError, body: bytes = b"") -> None:
        super().__init__(error.what)
        self.error = error
        self.body = body


def do_nothing() -> None:
    """Called before a write if there is nothing to do before it."""


class Exchange(msgspec.Struct, eq=False):
    """One exchange's clocks and grant. The grant is the caller's to release or to settle.

    may_repeat: a transport may raise Repeat. is_head: the request is a HEAD, whose answer ends with
    its headers. grant: for one write. due_s: since when the request waited for results that were
    being saved, if it did. is_kept: it was written on a connection that had carried others. failed:
    what became of it there, if it was written at failed_sent_s; it is then to be written on a new
    one. doubted: the body of the answer that it is repeated for.
    take_now: takes a part of a streamed body without waiting, or not, and says which. chunk_taker:
    what passes on chunks of it as they are on the wire, and returns how many bytes of the body
    those were, 0 if it has not passed them on; None while nothing does.
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
    held_up_s: float = 0.0  # by redline itself, since the write
    paused: tuple[str, float] | None = None  # in which phase, and since when
    grant: Grant | None = None
    due_s: float | None = None
    sent_s: float | None = None
    first_byte_s: float | None = None
    is_kept: bool = False
    failed: CallError | None = None
    failed_sent_s: float = 0.0
    doubted: bytes = b""
    take_now: Callable[[bytes], bool] | None = None
    chunk_taker: Callable[[], Callable[[bytes], int] | None] | None = None

    @abstractmethod
    def acquire_now(self) -> Grant | None:
        """The grant, if nothing is to be waited for."""

    @abstractmethod
    async def acquire(self) -> Grant:
        """The grant, once the limits give it."""

    @abstractmethod
    def on_sent(self, sent_s: float) -> None:
        """The request is written at sent_s."""

    def on_streamed(self, status: int, headers: Mapping[str, str]) -> None:
        """The answer has this head, and its body is passed on as it comes."""
        return

    async def get_ready(self) -> None:
        """Returns when a connection may be taken to wait for the grant with.

        At once, unless a subclass bounds how many exchanges do so.
        """
        return

    def carry(self, head: bytes, body: bytes | None, deadline_s: float = math.inf) -> None:
        """It carries this request, which is given up at `deadline_s` (monotonic)."""
        self.head = head
        if body is not None:
            self.body = body
        else:
            self.is_head = head.startswith(b"HEAD ")
        self.deadline_s = deadline_s

    def was_due(self, due_s: float) -> None:
        """It waits since then for results that are being saved."""
        self.due_s = due_s

    def drop_body(self) -> None:
        """A long body does not wait here for the answer."""
        self.body = b""

    def follow(self, alarm: Alarm) -> None:
        """Ends when `alarm` rings, until it is written."""
        self.alarm = alarm

    def again(self, repeat: Repeat) -> None:
        """The request is sent once more; a second write needs a second grant."""
        self.may_repeat = self.is_kept = False
        self.failed, self.doubted = repeat.error, repeat.body
        self.failed_sent_s = self.sent_s or 0.0
        self.grant = self.first_byte_s = self.alarm = self.paused = self.due_s = None
        self.held_up_s = 0.0

    def connecting(self) -> None:
        """A connection is to be made."""
        self._enter("connect", self.timing.now_s() + self.timing.timeouts.connect_s)

    def may_leave(self) -> bool:
        """True if it holds its grant, or there is one to be had without waiting."""
        if self.grant is None:
            self.grant = self.acquire_now()
        return self.grant is not None

    async def wait_for_grant(self) -> None:
        """Returns once it holds its grant."""
        if not self.may_leave():
            self.waiting()
            self.grant = await self.acquire()

    def leave(self, alarm: Alarm, *, is_kept: bool) -> None:
        """Stamps it: it is written now, and `alarm` ends it from here on.

        is_kept: the connection has carried others. Raises CallError if it must not be written.
        """
        grant, timing = self.grant, self.timing
        assert grant is not None
        sent_s = self.sent_s = timing.now_s()
        grant.sent(sent_s)
        self.is_kept = is_kept
        self.alarm = alarm
        self.phase, first_s = timing.first
        until_s = sent_s + first_s
        if self.deadline_s <= until_s:
            self.phase, until_s = "row", self.deadline_s
        self.on_sent(sent_s)
        alarm.ring_at(until_s)

    def headers_came(self) -> None:
        """The first byte of the answer is here."""
        self.first_byte_s = self.timing.now_s()
        if self.phase == "first_byte" and self.sent_s is not None:
            attempt_s = self.timing.timeouts.attempt_s
            self._enter("attempt", self.sent_s + attempt_s + self.held_up_s)

    def waiting(self) -> None:
        """From here on, nothing but the row's deadline counts."""
        self._enter("row", math.inf)

    def pause(self) -> None:
        """Redline itself does not read on; the time until `resume` is not the server's."""
        self.paused = (self.phase, self.timing.now_s())
        self.waiting()

    def resume(self) -> None:
        """The clock continues where `pause` stopped it."""
        assert self.paused is not None
        assert self.sent_s is not None
        phase, since_s = self.paused
        self.held_up_s += self.timing.now_s() - since_s
        if phase == "first_byte" and self.first_byte_s is not None:
            # What TLS had read before the pause has come since.
            phase = "attempt"
        if phase != "row":
            allowed_s = getattr(self.timing.timeouts, f"{phase}_s")
            self._enter(phase, self.sent_s + allowed_s + self.held_up_s)

    def timed_out(self, hint: str = "") -> TimedOut:
        """The error of the phase whose clock ran out. hint: for all but the row's own."""
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
    """Headers by their names in lower case; repeated ones are joined by commas.

    Each call of a run makes them, so all of them are decoded in one go, and the names, which most
    answers have alike, are looked up.
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
    """The names in lower case; None if one of them occurs twice."""
    names = tuple(name.decode("latin-1").lower() for name in raw)
    return names if len(set(names)) == len(names) else None
