"""What happened: the ordered trace of a script, and the facts of one run that the law looks at."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from faults.script import Attempt, Ending


@dataclass
class Asked:
    """A request as the server saw it. number: of its row in all runs, from 1.

    text: what a whole answer says, None where none is to come. is_whole: the client has all of it.
    """

    name: str
    number: int
    at_s: float
    attempt: Attempt
    text: str | None = None
    is_whole: bool = False
    is_over: bool = False


@dataclass
class Try:
    """One attempt as the client made it. ended_s: None while it lasts.

    writes: two if a kept connection has failed the first one. exchange: what was written.
    bookings: what it took from the limits; used: input and output tokens, as its answer says.
    """

    began_s: float
    writes: int = 0
    ended_s: float | None = None
    is_cancelled: bool = False
    exchange: Any = None
    error: Any = None
    bookings: list[Any] = field(default_factory=list)
    used: tuple[int, int] | None = None

    @property
    def is_written(self) -> bool:
        return self.writes > 0

    @property
    def awaits_repeat(self) -> bool:
        """Its connection has failed it, and it waits to be written on another one."""
        return self.writes == 1 and self.exchange is not None and self.exchange.failed is not None


@dataclass
class Tried:
    """A row's way through the retry. outcome: None while it has none, or where it was cancelled."""

    name: str
    deadline_s: float
    tries: list[Try] = field(default_factory=list)
    outcome: Any = None
    ended_s: float | None = None


@dataclass
class Facts:
    """One run, everything in the order in which it came.

    taken: results that the journal took. acknowledged and handed: row numbers. synced_bytes: by a
    file's name. drained_s, aborted_s: when Ctrl-C came first and again. ended_at: the stage in
    whose middle the run was ended. broken: what the server saw that must not be.
    """

    asks: list[Asked] = field(default_factory=list)
    tried: list[Tried] = field(default_factory=list)
    taken: list[Any] = field(default_factory=list)
    acknowledged: list[int] = field(default_factory=list)
    handed: list[int] = field(default_factory=list)
    synced_bytes: dict[str, int] = field(default_factory=dict)
    drained_s: float | None = None
    aborted_s: float | None = None
    ended_by: str = "itself"
    ended_at: str = ""
    has_sync_failed: bool = False
    broken: list[str] = field(default_factory=list)


class Trace:
    """(what, which attempt, stage, result) in the order in which it happened, over all runs.

    Nothing is noted while it is closed: what a process does that has been killed, nobody sees.
    """

    def __init__(self) -> None:
        self.events: list[tuple[float, str, int, str, str]] = []
        self.counts: Counter[str] = Counter()
        self.facts = Facts()
        self.is_closed = False
        self._digest = hashlib.blake2b(digest_size=16)
        self._countdown = 0
        self._stage = ""
        self._fire: Callable[[], None] | None = None

    def begin(self, ending: Ending, fire: Callable[[], None]) -> None:
        """A run begins; `fire` is called in the middle of the event that ends it."""
        self.facts = Facts()
        self.is_closed = False
        self._countdown = 0 if ending.how == "itself" else ending.event
        self._stage = ending.stage
        self._fire = fire

    def note(self, at_s: float, what: str, number: int, stage: str, result: str = "") -> None:
        if self.is_closed:
            return
        self.events.append((at_s, what, number, stage, result))
        self._digest.update(f"{what} {number} {stage} {result}\n".encode())
        if self._countdown and self._stage in ("", stage):
            self._countdown -= 1
            if self._countdown == 0 and self._fire is not None:
                self._fire()

    def resume(self) -> None:
        """The run is over: what is noted until the next one begins ends nothing."""
        self.is_closed = False
        self._countdown = 0

    @property
    def hash(self) -> str:
        """Of everything but the times."""
        return self._digest.hexdigest()
