"""One request and its answer on the wire: its bytes, its clocks, its grant.

Phases of an exchange: connect -> row (at the gate, only the row's deadline counts) -> first_byte ->
attempt. The gate stands between the connection and the write: the connection is up, nothing is
written. So the limits are waited for with the connection in hand, and the send stamp is the time of
the write.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Protocol

import msgspec

from redline.clock import Clock
from redline.errors import BadRow, CallError, ConfigError, TimedOut
from redline.limits import Grant

# The type of a stream of events; what an exchange is to be streamed for.
EVENTS = "text/event-stream"
# A header's name (RFC 9110, 5.6.2), and what its value must not hold: a line break, a NUL, half of
# a surrogate pair.
_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_UNSENDABLE = re.compile("[\r\n\0\ud800-\udfff]")
# Headers that say how a message is framed, which redline does itself.
_FRAMING = frozenset(
    ("connection", "content-length", "expect", "te", "trailer", "transfer-encoding", "upgrade")
)
FRAMING_HINT = "redline frames requests itself: leave the header out"
# Servers have a few layouts each; one that makes up new names for every answer fills no memory.
_MOST_LAYOUTS = 256
# No header's value holds one: the parsers refuse it (RFC 9110, 5.5).
_BETWEEN = b"\n"


class Timeouts(msgspec.Struct, frozen=True, kw_only=True):
    """Clocks of one attempt, in seconds, each above 0.

    connect_s: until the connection stands, TLS included.
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


class Wire(msgspec.Struct, frozen=True):
    """A request as it is sent. `deadline_s`: monotonic time at which it is given up.

    target: the path and query, percent-encoded ASCII.
    """

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes | None
    deadline_s: float

    def check(self) -> None:
        """Raises BadRow for a method or header that no request can carry."""
        if not self.method.isascii() or not self.method.isalpha() or self.method == "CONNECT":
            what = f"the request cannot be sent: not a method: {self.method}"
            raise BadRow(what, hint="GET or POST")
        for name, value in self.headers.items():
            if not _TOKEN.fullmatch(name) or _UNSENDABLE.search(value):
                raise BadRow(
                    f"the request cannot be sent: not a header: {name!r}",
                    hint="check its method and headers",
                )
            if is_framing(name):
                raise BadRow(f"the request cannot be sent: header {name!r}", hint=FRAMING_HINT)


class Answer(msgspec.Struct):
    """An HTTP answer. Headers' names are in lower case; repeated ones are joined by commas."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def is_framing(name: str) -> bool:
    """A header of this name says how the message is framed."""
    return name.lower() in _FRAMING


class Alarm(Protocol):
    """Ends an exchange whose time is up."""

    def ring_at(self, when_s: float) -> None:
        """Rings at `when_s` (monotonic) and not before; inf for never."""


class Writable(Protocol):
    """A connection, as far as the gate looks at it."""

    @property
    def is_open(self) -> bool:
        """A request may be written."""


class StaleConnection(Exception):
    """The server closed the connection before anything was written on it."""


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


class Exchange(ABC):
    """One exchange's clocks and grant. The grant is the caller's to release or to settle.

    before_write: called when the grant is there, before the request is stamped. may_repeat: a
    transport may raise Repeat. is_kept: the request was written on a connection that
    had carried others. needs_new: it is to be written on a new one, since the kept one failed as
    `failed` says. doubted: the body of the answer that it is repeated for.
    """

    # What an exchange begins with; one is made for each attempt, and most of it is never changed.
    _alarm: Alarm | None = None
    _deadline_s = math.inf
    _is_spent = False  # the grant was used for a write
    phase = "connect"
    _held_up_s = 0.0  # by redline itself, since the write
    _paused: tuple[str, float] | None = None  # in which phase, and since when
    grant: Grant | None = None
    sent_s: float | None = None
    first_byte_s: float | None = None
    may_repeat = False
    is_kept = False
    needs_new = False
    failed: CallError | None = None
    doubted = b""

    def __init__(
        self, timeouts: Timeouts, clock: Clock, before_write: Callable[[], None] = do_nothing
    ) -> None:
        self._timeouts = timeouts
        self._clock = clock
        self._before_write = before_write

    @abstractmethod
    def acquire_now(self) -> Grant | None:
        """The grant, where nothing is to be waited for."""

    @abstractmethod
    async def acquire(self) -> Grant:
        """The grant, once the limits give it."""

    @abstractmethod
    def on_sent(self, sent_s: float) -> None:
        """The request is written at sent_s."""

    async def get_ready(self) -> None:
        """Returns when a connection may be taken to wait for the grant with."""
        # Who bounds how many do so waits for a place.
        return

    def start(self, deadline_s: float, alarm: Alarm | None = None) -> None:
        """The exchange begins now, and ends when `alarm` rings."""
        self._deadline_s = deadline_s
        self._alarm = alarm

    def again(self, repeat: Repeat) -> None:
        """The request is sent once more; a second write needs a second grant."""
        self.may_repeat = self.is_kept = False
        self.needs_new = True
        self.failed, self.doubted = repeat.error, repeat.body
        self.first_byte_s = self._alarm = self._paused = None
        self._held_up_s = 0.0

    def connecting(self) -> None:
        """A connection is to be made."""
        self._enter("connect", self._clock.now_s() + self._timeouts.connect_s)

    def pass_gate_now(self) -> bool:
        """True where nothing is to be waited for: the request is stamped, and to be written now.

        The connection stands.
        """
        if self._is_spent:
            # A second write, because the connection broke, needs a second grant.
            self.grant = None
            self._is_spent = False
        grant = self.grant
        if grant is None:
            grant = self.grant = self.acquire_now()
        if grant is None:
            return False
        self._stamp(grant)
        return True

    async def pass_gate(self, line: Writable) -> None:
        """Waits for the grant; returns when the request is to be written at once: it is stamped.

        Raises StaleConnection where the connection does not stand any more.
        """
        if line.is_open and self.pass_gate_now():
            return
        if not line.is_open:
            raise StaleConnection
        self.waiting()
        grant = self.grant = await self.acquire()
        if not line.is_open:
            raise StaleConnection
        self._stamp(grant)

    def _stamp(self, grant: Grant) -> None:
        # The time that it takes must not stand between the stamp and the wire.
        self._before_write()
        sent_s = self.sent_s = self._clock.now_s()
        grant.sent(sent_s)
        self._is_spent = True
        self.on_sent(sent_s)

    def written(self, alarm: Alarm, *, is_kept: bool) -> None:
        """The request is written; from now on `alarm` ends the exchange.

        is_kept: the connection had carried others before.
        """
        assert self.sent_s is not None
        self.is_kept = is_kept
        self._alarm = alarm
        first_byte_s, attempt_s = self._timeouts.first_byte_s, self._timeouts.attempt_s
        if first_byte_s < attempt_s:
            self._enter("first_byte", self.sent_s + first_byte_s)
        else:
            self._enter("attempt", self.sent_s + attempt_s)

    def headers_came(self) -> None:
        """The first byte of the answer is here."""
        self.first_byte_s = self._clock.now_s()
        if self.phase == "first_byte" and self.sent_s is not None:
            self._enter("attempt", self.sent_s + self._timeouts.attempt_s + self._held_up_s)

    def waiting(self) -> None:
        """From here on, nothing but the row's deadline counts."""
        self._enter("row", math.inf)

    def pause(self) -> None:
        """Redline itself does not read on; the time until `resume` is not the server's."""
        self._paused = (self.phase, self._clock.now_s())
        self.waiting()

    def resume(self) -> None:
        """The clock goes on where `pause` stopped it."""
        assert self._paused is not None
        assert self.sent_s is not None
        phase, since_s = self._paused
        self._held_up_s += self._clock.now_s() - since_s
        if phase == "first_byte" and self.first_byte_s is not None:
            # What TLS had read before the pause has come since.
            phase = "attempt"
        if phase != "row":
            allowed_s = getattr(self._timeouts, f"{phase}_s")
            self._enter(phase, self.sent_s + allowed_s + self._held_up_s)

    def timed_out(self) -> TimedOut:
        """The error of the phase whose clock ran out."""
        if self.phase == "row":
            return TimedOut("row")
        return TimedOut(self.phase, getattr(self._timeouts, f"{self.phase}_s"))

    def _enter(self, phase: str, until_s: float) -> None:
        if until_s < self._deadline_s:
            self.phase = phase
        else:
            self.phase, until_s = "row", self._deadline_s
        if self._alarm is not None:
            self._alarm.ring_at(until_s)


def answer_headers(pairs: Sequence[tuple[bytes, bytes]]) -> dict[str, str]:
    """Headers by their names in lower case; repeated ones are joined by commas.

    Each call of a run makes them, so all of them are decoded in one go, and the names, which most
    answers have alike, are looked up.
    """
    if not pairs:
        return {}
    raw, values = zip(*pairs, strict=True)
    names = _names(raw)
    texts = _BETWEEN.join(values).decode("latin-1").split("\n")
    if len(names) == len(pairs):
        return dict(zip(names, texts, strict=True))
    joined: dict[str, str] = {}
    for name, value in pairs:
        plain, text = name.decode("latin-1").lower(), value.decode("latin-1")
        joined[plain] = f"{joined[plain]}, {text}" if plain in joined else text
    return joined


@lru_cache(maxsize=_MOST_LAYOUTS)
def _names(raw: tuple[bytes, ...]) -> tuple[str, ...]:
    """The names in lower case, each once."""
    return tuple(dict.fromkeys(name.decode("latin-1").lower() for name in raw))
