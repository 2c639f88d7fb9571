"""redline's own parts for a script, on the loop's clock, and telling what they do.

Each class here is redline's own with a note before and after, and with the clock and the chance of
its loop instead of the machine's. A broken part takes the place of redline's own below that.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from faults.network import Numbered
from faults.script import MODEL, Script
from faults.trace import Trace, Tried, Try
from redline.calls import FunctionBackend, HttpBackend, Retry
from redline.calls.tokens import TOKENIZERS
from redline.calls.wire import Connection
from redline.clock import SYSTEM
from redline.job.work import Runner, Sampler
from redline.journal import Journal, ResultsFile
from redline.limits import open_limiter
from redline.process import unwritable
from redline.testing import WALL_START_S
from support.swapping import Swap

# What makes a broken part of redline's own.
Breaking = Callable[[Any], Any]
Parts = Callable[[], Any]


class LoopClock:
    """The running loop's time, for whoever was made before the loop."""

    def now_s(self) -> float:
        return asyncio.get_running_loop().time()

    def wall_s(self) -> float:
        return WALL_START_S + self.now_s()


CLOCK = LoopClock()


class Part:
    """What a running loop's parts find there: the script, its trace, and the retry's chance."""

    def __init__(self, script: Script, trace: Trace, seed: str, sync_fails: int | None) -> None:
        self.script = script
        self.trace = trace
        self.seed = seed
        self.sync_fails = sync_fails
        self.syncs = 0
        self.ways: dict[int, Tried] = {}
        self.limiter: Any = None
        self.slots: Any = None
        self.ahead: set[Any] = set()

    def note(self, what: str, number: int, stage: str, result: str = "") -> None:
        self.trace.note(CLOCK.now_s(), what, number, stage, result)


def _part() -> Part:
    loop: Any = asyncio.get_running_loop()
    part: Part = loop.part
    return part


def assemble(part: object = None, breaking: Breaking | None = None) -> Parts:
    """A context manager for runs on the parts of a script, in one of which something is broken.

    part: a class, or another object that modules import by its name.
    """
    # Otherwise looked for in a thread of its own, once in a process, by the first call.
    TOKENIZERS.find(MODEL, may_block=True)
    tracing: dict[Any, Breaking] = {
        Connection: _numbered,
        FunctionBackend: _traced,
        HttpBackend: _traced_http,
        Journal: _traced_journal,
        ResultsFile: _traced_file,
        Retry: _traced_retry,
        Runner: _on_clock,
        Sampler: _on_clock,
        SYSTEM: lambda _: CLOCK,
        open_limiter: _noted,
    }
    broken = part if breaking is None else breaking(part)
    fakes = [(own, trace(broken if own is part else own)) for own, trace in tracing.items()]
    if part is not None and part not in tracing:
        fakes.append((part, broken))

    @contextmanager
    def parts() -> Iterator[None]:
        with Swap(*fakes):
            yield

    return parts


def _noted(opening: Any) -> Any:
    """Notes the limiter of the run's endpoint or function, which must be empty at its end."""

    def open_noted(*given: Any) -> Any:
        limiter = _part().limiter = opening(*given)
        return limiter

    return open_noted


def _numbered(base: Any) -> Any:
    class Own(Numbered, base):  # type: ignore[misc]
        __slots__ = ("_number",)

        def __init__(self, *given: Any) -> None:
            self._number = self.number_it()
            super().__init__(*given)

        def __hash__(self) -> int:
            return self._number

    return Own


def _on_clock(base: Any) -> Any:
    class OnClock(base):  # type: ignore[misc]
        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named, clock=CLOCK)

    return OnClock


def _name(body: Any) -> str:
    return str(body.get("user", "?"))


def _traced(base: Any) -> Any:
    """An endpoint or a function: each of its sends is one attempt."""

    class Traced(_on_clock(base)):  # type: ignore[misc]
        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            _part().slots = self.slots

        async def send(self, request: Any, call: Any, sink: Any = None) -> Any:
            part = _part()
            name, one = _name(request.body), Try(CLOCK.now_s())
            part.ways[id(call)].tries.append(one)
            part.note(name, call.attempts, "begins")
            try:
                outcome = await super().send(request, call, sink)
            except asyncio.CancelledError:
                one.ended_s, one.is_cancelled = CLOCK.now_s(), True
                part.note(name, call.attempts, "ends", "cancelled")
                raise
            one.ended_s, one.error = CLOCK.now_s(), outcome.error
            if (reply := outcome.reply) is not None and reply.usage is not None:
                one.used = (reply.input_tokens, reply.output_tokens)
            part.note(name, call.attempts, "ends", _result(outcome))
            return outcome

    return Traced


def _traced_http(base: Any) -> Any:
    class TracedHttp(_traced(base)):  # type: ignore[misc]
        async def go_ahead(self, exchange: Any) -> None:
            await super().go_ahead(exchange)
            _part().ahead.add(exchange)

        def leave_ahead(self, exchange: Any) -> None:
            super().leave_ahead(exchange)
            _part().ahead.remove(exchange)

        def wrote(self, exchange: Any, sent_s: float) -> None:
            part, call = _part(), exchange.call
            super().wrote(exchange, sent_s)
            one = part.ways[id(call)].tries[-1]
            one.writes, one.bookings = one.writes + 1, exchange.grant.taken
            one.exchange = exchange
            part.note(_name(exchange.request.body), call.attempts, "written")

    return TracedHttp


def _result(outcome: Any) -> str:
    if outcome.error is None:
        return str(outcome.status)
    phase = getattr(outcome.error, "phase", "")
    return f"{outcome.error.kind} {phase}".rstrip()


def _traced_retry(base: Any) -> Any:
    class Traced(base):  # type: ignore[misc]
        def __init__(self, *given: Any, **named: Any) -> None:
            # A seed of text is hashed alike in every process.
            super().__init__(*given, **named, clock=CLOCK, seed=_part().seed)

        async def send(self, request: Any, call: Any, sink: Any = None) -> Any:
            part = _part()
            name = _name(request.body)
            way = part.ways[id(call)] = Tried(name, call.deadline_s)
            if not part.trace.is_closed:
                part.trace.facts.tried.append(way)
            outcome = await super().send(request, call, sink)
            way.outcome, way.ended_s = outcome, CLOCK.now_s()
            part.note(name, call.attempts, "outcome", _result(outcome))
            return outcome

    return Traced


def _traced_file(base: Any) -> Any:
    class TracedFile(base):  # type: ignore[misc]
        def __init__(self, path: Any, on_found: Any) -> None:
            self._lines = 0
            super().__init__(path, on_found)
            self._take, self.add = self.add, self._counted
            # What an earlier process left has been there for long enough.
            self._tell_synced()

        def _counted(self, line: bytes) -> None:
            self._lines += 1
            self._take(line)

        def flush(self) -> None:
            lines, self._lines = self._lines, 0
            super().flush()
            if lines:
                _part().note(self.path.name, lines, "on disk")

        def sync(self) -> None:
            part = _part()
            part.syncs += 1
            if part.syncs == part.sync_fails:
                part.trace.facts.has_sync_failed = True
                part.note(self.path.name, part.syncs, "sync fails")
                raise unwritable(self.path, OSError(errno.EIO, "Input/output error"))
            super().sync()
            self._tell_synced()
            part.note(self.path.name, part.syncs, "synced")

        def _tell_synced(self) -> None:
            trace = _part().trace
            if not trace.is_closed:
                trace.facts.synced_bytes[self.path.name] = self.path.stat().st_size

    return TracedFile


def _traced_journal(base: Any) -> Any:
    class TracedJournal(base):  # type: ignore[misc]
        def __init__(self, output: Any, acknowledge: Callable[[list[Any]], None]) -> None:
            self._numbers: dict[int, int] = {}

            def acknowledged(rows: list[Any]) -> None:
                part = _part()
                for row in rows:
                    number = self._numbers[row.key]
                    if not part.trace.is_closed:
                        part.trace.facts.acknowledged.append(number)
                    part.note(f"row {number}", 0, "acknowledged")
                acknowledge(rows)

            super().__init__(output, acknowledged)

        def append(self, result: Any) -> None:
            part = _part()
            self._numbers[result.key] = result.row.number
            super().append(result)
            if not part.trace.is_closed:
                part.trace.facts.taken.append(result)
            outcome = result.outcome
            part.note(f"row {result.row.number}", outcome.attempts, "taken", _result(outcome))

    return TracedJournal
