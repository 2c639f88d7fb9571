"""A script: rows, settings, runs and what goes wrong in each attempt, all drawn from one seed.

What an attempt meets depends on the seed, its row and its number alone, so that a script stays what
it is whatever order the attempts come in. Times are virtual seconds; the clocks are set short, so
that hours of trouble fit into a thousandth of them.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from redline.calls import RetryPolicy, Timeouts
from redline.limits import PROFILES, Limits, Rate

# What may become of an attempt. `edge` is a whole answer at the moment at which the clock rings.
GOOD = ("ok", "slow", "dribble", "edge")
LIMITED = ("429", "429 wait", "429 date", "429 zero")
FAILED = ("500", "503", "503 wait", "529", "408")
SILENT = ("hang", "hang in head", "hang in body")
BROKEN = ("cut before", "cut in head", "cut in body", "reset before", "reset in body")
UNREADABLE = ("not json", "half json", "wrong shape", "not http", "too long")
FINAL = ("400", "404", "413", "422")
STOPPING = ("401", "402", "no quota")
FAULTS = LIMITED + FAILED + SILENT + BROKEN + UNREADABLE + FINAL
# Those that a function of the user's own can meet.
_OWN = ("429", "429 wait", "500", "503 wait", "hang", "cut before", "not json", "400")
_OWN_ONLY = ("raises", "cancels itself")
KINDS = (*GOOD, *FAULTS, *STOPPING, *_OWN_ONLY)
# How a whole answer is sent, and what the server does with the connection after it.
FORMS = ("length", "length", "chunks", "gzip", "until closed", "hints first")
AFTER = ("keep", "keep", "keep", "says close", "closes", "closes at once", "closes late", "junk")
# Where a row can be when its run is ended.
STAGES = (
    "connects", "begins", "written", "written", "asked", "answered", "ends", "outcome", "taken",
    "on disk", "synced", "acknowledged", "handed",
)  # fmt: skip

LONGEST_REPLY_BYTES = 5_000
MODEL = "m"


@dataclass(frozen=True)
class Line:
    """One row of the input: as a line of a file, and as a Python value.

    name: by which the server knows it. is_sendable: it may be asked for; any other row fails by
    itself. Copies are equal to an earlier row in all.
    """

    kind: str
    name: str
    raw: bytes
    value: Any
    is_sendable: bool


@dataclass(frozen=True)
class Attempt:
    """What becomes of one attempt.

    latency_s: until the answer, or what there is of it. wait_s: of a Retry-After. pieces: in how
    many parts the answer comes. finish: why the model stopped.
    """

    kind: str
    latency_s: float
    wait_s: float = 1.0
    form: str = "length"
    after: str = "keep"
    pieces: int = 1
    finish: str = "stop"


@dataclass(frozen=True)
class Ending:
    """How a run is ended: what is done in the middle of one of its events, and again later.

    how: `itself`, `drain` (Ctrl-C), `abort` (Ctrl-C twice), `cancel` (the task), `kill` (what was
    not written is gone) or `power` (what was not synced is gone, too). event: which one, from 1,
    of those of this stage, or of all where it is empty. again_s: from the first Ctrl-C to the
    second.
    """

    how: str = "itself"
    event: int = 0
    stage: str = ""
    again_s: float = 0.0


@dataclass(frozen=True)
class Run:
    """One run over the output of those before it.

    gap_s: since the one before. outage: seconds since its beginning in which no connection is
    made. refused: share of other connections that are refused or not made at all. sync_fails: the
    fsync that fails, from 1. breaks_at: the input raises after so many rows. stops: share of
    attempts that meet an error which ends the run. is_slow_taker: whoever takes results is slow.
    """

    ending: Ending = Ending()
    gap_s: float = 0.0
    outage: tuple[float, float] | None = None
    refused: float = 0.0
    sync_fails: int | None = None
    breaks_at: int | None = None
    stops: float = 0.0
    deadline_s: float | None = None
    limit: int | None = None
    is_strict: bool = False
    retry_failed: bool = False
    is_slow_taker: bool = False
    is_last: bool = False


@dataclass(frozen=True)
class Settings:
    """What all runs of a script have in common. door: `http`, or `function` for a user's own."""

    door: str
    source: str
    limits: Limits
    timeouts: Timeouts
    retry: RetryPolicy
    row_deadline_s: float | None
    fail_on: tuple[str, ...]
    format: str
    raw: bool
    keep_input: bool
    ordered: bool
    has_after: bool

    @property
    def timeout_s(self) -> float:
        """The clock that a silent server runs into."""
        return min(self.timeouts.first_byte_s, self.timeouts.attempt_s)


class Script:
    """Everything that is to happen, as far as it does not depend on redline."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        rng = random.Random(seed)
        slots = rng.choice((1, 2, 2, 3, 4, 6, 8, 16))
        most = {1: 10, 2: 20, 3: 30}.get(slots, 60)
        count = rng.choice((rng.randint(1, 5), rng.randint(1, min(most, 15)), rng.randint(1, most)))
        self.settings = _settings(rng, slots, count)
        self.lines = _lines(rng, count, self.settings)
        self._fault_share = rng.choice((0.0, 0.1, 0.3, 0.3, 0.5, 0.7))
        self._kinds = rng.sample(FAULTS, rng.randint(1, len(FAULTS)))
        if self.settings.door == "function":
            self._kinds = [kind for kind in self._kinds if kind in _OWN] + [rng.choice(_OWN_ONLY)]
        self._latency_s = self.settings.timeout_s * rng.choice((0.0, 0.05, 0.3, 0.8))
        self.runs = _runs(rng, count, self.settings)

    @cached_property
    def rows(self) -> list[Line]:
        """The lines that are rows; row number i is the i-th, from 1."""
        return [line for line in self.lines if line.kind != "blank"]

    def draws(self, *what: object) -> random.Random:
        """Chance that belongs to one thing of this script."""
        return random.Random(" ".join(map(str, (self.seed, *what))))

    def attempt(self, name: str, number: int, run: Run) -> Attempt:
        """What the server makes of a row's attempt. number: of the row in all runs, from 1."""
        rng = self.draws(name, number)
        chance = rng.random()
        is_faulty = chance < self._fault_share
        if is_faulty:
            kind = rng.choice(self._kinds)
        else:
            kind = rng.choice(("ok", "ok", "ok", "ok", "slow", "dribble", "edge"))
        if chance > 1 - run.stops:
            kind = "401" if self.settings.door == "function" else rng.choice(STOPPING)
        latency_s = self._latency_s * rng.random()
        if kind == "slow":
            latency_s = self.settings.timeout_s * rng.uniform(0.8, 0.95)
        return Attempt(
            kind=kind,
            latency_s=latency_s,
            wait_s=rng.choice((0.05, 0.3, 1.0, 2.0)),
            form=rng.choice(FORMS),
            after=rng.choice(AFTER),
            pieces=rng.choice((1, 1, 2, 5)),
            finish=rng.choice(("stop",) * 8 + ("length", "content_filter")),
        )


def _settings(rng: random.Random, slots: int, count: int) -> Settings:
    door = rng.choice(("http",) * 7 + ("function",))
    attempt_s = rng.choice((0.3, 1.0, 2.0))
    first_byte_s = rng.choice((600.0, attempt_s / 2))
    return Settings(
        door=door,
        source=rng.choice(("file", "file", "file", "file", "iterable", "async")),
        limits=_limits(rng, slots, count, door),
        timeouts=Timeouts(
            connect_s=rng.choice((0.2, 1.0)),
            first_byte_s=first_byte_s if door == "http" else 600.0,
            attempt_s=attempt_s,
        ),
        retry=RetryPolicy(
            max_retries=rng.choice((0, 1, 2, 3, 5)),
            base_s=rng.choice((0.01, 0.1, 0.5)),
            cap_s=rng.choice((0.2, 2.0)),
            share=rng.choice((0.0, 0.25, 1.0)),
            floor_per_s=rng.choice((5.0, 10.0, 100.0)),
        ),
        row_deadline_s=rng.choice((None, None, None, None, 0.2, 1.0, 4.0)),
        fail_on=rng.choice(((), (), ("length",), ("length", "content_filter"))),
        format=rng.choice(("redline", "redline", "batch")),
        raw=rng.random() < 0.2,
        keep_input=rng.random() < 0.2,
        ordered=rng.random() < 0.3,
        has_after=rng.random() < 0.2,
    )


def _limits(rng: random.Random, slots: int, count: int, door: str) -> Limits:
    """None, requests, tokens or both; fast enough for the rows to be through in some seconds."""
    which = rng.choice(("none", "none", "requests", "two", "tokens", "both"))
    if door == "function" and which in ("tokens", "both"):
        which = "requests"
    rates: dict[str, Any] = {}
    if which in ("requests", "two", "both"):
        number = rng.choice((1, 2, 5, 20))
        rates["requests"] = [Rate(number, number / rng.uniform(count / 3, 3 * count + 10))]
        if which == "two":
            rates["requests"].append(Rate(5 * number, rng.uniform(2.0, 5.0)))
    if which in ("tokens", "both"):
        number = rng.choice((400, 1_000, 4_000))
        kind = rng.choice(("tokens", "tokens", "input_tokens", "output_tokens"))
        rates[kind] = [Rate(number, number / (30.0 * count + 200.0))]
    return Limits(
        **rates,
        concurrency=slots,
        profile=rng.choice(PROFILES),
        headroom=rng.choice((1.0, 1.0, 0.7)),
        guard_s=rng.choice((None, None, 0.0, 0.02)),
        charge=rng.choice(("actual", "reserved")),
    )


def _lines(rng: random.Random, count: int, settings: Settings) -> tuple[Line, ...]:
    """So many rows, some of them odd, and blank lines between those of a file."""
    oddity = rng.choice((0.0, 0.1, 0.4))
    odd = ["copy", "duplicate", "broken", "list", "no prompt", "huge", "batch", "number"]
    lines: list[Line] = []
    for number in range(1, count + 1):
        kind = rng.choice(odd) if rng.random() < oddity else rng.choice(("named", "plain"))
        lines.append(_line(rng, kind, number, lines, settings))
        if settings.source == "file" and rng.random() < 0.05:
            lines.append(Line("blank", "", b"  ", None, False))
    return tuple(lines)


def _line(
    rng: random.Random, kind: str, number: int, before: list[Line], settings: Settings
) -> Line:
    name = f"r{number}"
    value: Any = {"prompt": f"say {number}", "user": name, "model": MODEL}
    if rng.random() < 0.8:
        value["max_tokens"] = rng.randint(1, 60)
    if kind in ("copy", "duplicate"):
        wanted = "plain" if kind == "copy" else "named"
        earlier = [line for line in before if line.kind == wanted]
        if not earlier:
            kind = "named"
        elif kind == "copy":
            one = rng.choice(earlier)
            return Line(kind, one.name, one.raw, one.value, True)
        else:
            value["custom_id"] = rng.choice(earlier).value["custom_id"]
    if kind == "broken":
        raw = rng.choice((b'{"prompt": "say', b"say", b'{"prompt": "\xff"}'))
        return Line(kind, name, raw + b" %d" % number, {"say": object()}, False)
    if kind == "list":
        return Line(kind, name, b"%d" % number, [name], False)
    if kind == "no prompt":
        del value["prompt"]
    elif kind == "huge":
        value["prompt"] += " and more" * rng.choice((100, 2_000))
    elif kind == "batch" and settings.door == "http":
        message = {"role": "user", "content": value.pop("prompt")}
        body = {**value, "messages": [message]}
        value = {"method": "POST", "url": "/v1/chat/completions", "body": body}
        value["custom_id"] = name
    elif kind == "number":
        value["custom_id"] = number
    elif kind == "named":
        value["custom_id"] = name
    is_sendable = kind != "duplicate" and (kind != "no prompt" or settings.door == "function")
    return Line(kind, name, json.dumps(value).encode(), value, is_sendable)


def _runs(rng: random.Random, count: int, settings: Settings) -> tuple[Run, ...]:
    """Two to four runs that are ended, one that goes to the end, and at times a mending one."""
    runs = [_ended(rng, count, settings) for _ in range(rng.randint(2, 4))]
    last = Run(refused=rng.choice((0.0, 0.2)), gap_s=rng.uniform(0, 3), is_last=True)
    runs.append(last)
    if rng.random() < 0.3:
        ending = rng.choice((Ending(), _ending(rng, count)))
        runs += [Run(ending=ending, retry_failed=True, gap_s=1.0), last]
    return tuple(runs)


def _ending(rng: random.Random, count: int) -> Ending:
    how = rng.choice(("itself", "drain", "drain", "abort", "cancel", "kill", "kill", "power"))
    again_s = rng.choice((0.0, 0.02, 0.3))
    if rng.random() < 0.5:
        return Ending(how, rng.randint(1, 1 + count // 2), rng.choice(STAGES), again_s)
    most = rng.choice((8, 3 * count, 8 * count))
    return Ending(how, rng.randint(1, max(8, most)), "", again_s)


def _ended(rng: random.Random, count: int, settings: Settings) -> Run:
    def seldom(value: Any, share: float = 0.1) -> Any:
        return value if rng.random() < share else None

    begun_s = rng.choice((0.0, rng.uniform(0, 3)))
    can_break = settings.source != "file"
    return Run(
        ending=_ending(rng, count),
        gap_s=rng.choice((0.0, rng.uniform(0, 3))),
        outage=seldom((begun_s, begun_s + rng.choice((0.5, 3.0, 8.0)))),
        refused=rng.choice((0.0, 0.0, 0.2, 0.6)),
        sync_fails=seldom(rng.randint(1, 3)),
        breaks_at=seldom(rng.randint(0, count), 0.2 if can_break else 0.0),
        stops=seldom(0.05) or 0.0,
        deadline_s=seldom(rng.uniform(0.1, 4.0), 0.15),
        limit=seldom(rng.randint(1, count)),
        is_strict=rng.random() < 0.05,
        is_slow_taker=rng.random() < 0.1,
    )
