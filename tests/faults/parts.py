"""redline put together for a script: its own modules, on the loop's clock, telling what they do.

Nothing is replaced by a fake. Each class here is redline's own with a note before and after, and
with the clock and the chance of its loop instead of the machine's. A mutant is put together in the
same way from a module with one line changed.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Mapping
from types import ModuleType, SimpleNamespace
from typing import Any

from faults.network import Numbered
from faults.script import MODEL, Script
from faults.trace import Trace, Tried, Try
from mutants import mutant, with_names
from redline.calls import (
    connection,
    deadlines,
    direct,
    function,
    http,
    pool,
    retry,
    transport,
)
from redline.calls.tokenizer import TOKENIZERS
from redline.run import execute, feed, journal, results_file, resume, runner
from redline.testing.clock import WALL_START_S

# One changed line by its module.
Mutants = Mapping[ModuleType, tuple[str, str]]


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

    def note(self, what: str, number: int, stage: str, result: str = "") -> None:
        self.trace.note(CLOCK.now_s(), what, number, stage, result)


def _part() -> Part:
    loop: Any = asyncio.get_running_loop()
    part: Part = loop.part
    return part


def assemble(mutants: Mutants | None = None) -> Callable[..., Any]:
    """`execute` of a redline with these lines changed."""
    changed = dict(mutants or {})
    # Otherwise looked for in a thread of its own, once in a process, by the first call.
    TOKENIZERS.find(MODEL, may_block=True)

    def copy(module: ModuleType, **names: Any) -> Any:
        line = changed.pop(module, None)
        return with_names(module, **names) if line is None else mutant(module, *line, **names)

    opened = copy(resume, Journal=_traced_journal(copy))
    whole = copy(
        execute,
        SYSTEM=CLOCK,
        HttpBackend=_traced(_http(copy).HttpBackend),
        FunctionBackend=_traced(copy(function).FunctionBackend),
        Retry=_traced_retry(copy(retry).Retry),
        Runner=_on_clock(copy(runner).Runner),
        Feed=copy(feed).Feed,
        open_journal=opened.open_journal,
    )
    if changed:
        raise LookupError(f"not among the parts: {', '.join(m.__name__ for m in changed)}")
    run: Callable[..., Any] = whole.execute
    return run


def _http(copy: Callable[..., Any]) -> Any:
    """calls/http.py with all that is below it, down to the connection."""
    clocks = copy(deadlines)
    clocks.Deadline = _numbered(clocks.Deadline)
    connections = copy(
        pool,
        Connection=_numbered(copy(connection).Connection),
        time=SimpleNamespace(monotonic=CLOCK.now_s),
    )
    direct_copy = copy(direct, Pool=connections.Pool, Deadlines=clocks.Deadlines)
    return copy(
        http, Transport=copy(transport, DirectTransport=direct_copy.DirectTransport).Transport
    )


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

        def wrote(self, exchange: Any, *given: Any) -> None:
            part, call = _part(), exchange.call
            super().wrote(exchange, *given)
            one = part.ways[id(call)].tries[-1]
            one.writes, one.bookings = one.writes + 1, exchange.grant.taken
            part.note(_name(exchange.request.body), call.attempts, "written")

    return Traced


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


def _traced_journal(copy: Callable[..., Any]) -> Any:
    class TracedFile(copy(results_file).ResultsFile):  # type: ignore[misc]
        def __init__(self, path: Any, on_entry: Any) -> None:
            super().__init__(path, on_entry)
            # What an earlier process left has been there for long enough.
            self._tell_synced()

        def flush(self) -> None:
            lines = len(self._pending)
            super().flush()
            if lines:
                _part().note(self.path.name, lines, "on disk")

        def sync(self) -> None:
            part = _part()
            part.syncs += 1
            if part.syncs == part.sync_fails:
                part.trace.facts.has_sync_failed = True
                part.note(self.path.name, part.syncs, "sync fails")
                raise self._failed(OSError(errno.EIO, "Input/output error"))
            super().sync()
            self._tell_synced()
            part.note(self.path.name, part.syncs, "synced")

        def _tell_synced(self) -> None:
            trace = _part().trace
            if not trace.is_closed:
                trace.facts.synced_bytes[self.path.name] = self.path.stat().st_size

    base: Any = copy(journal, ResultsFile=TracedFile).Journal

    class TracedJournal(base):  # type: ignore[misc]
        def __init__(self, output: Any, acknowledge: Callable[[list[Any]], None]) -> None:
            def acknowledged(results: list[Any]) -> None:
                part = _part()
                for result in results:
                    if not part.trace.is_closed:
                        part.trace.facts.acknowledged.append(result.row.number)
                    part.note(f"row {result.row.number}", 0, "acknowledged")
                acknowledge(results)

            super().__init__(output, acknowledged)

        def _take(self, result: Any) -> None:
            part = _part()
            super()._take(result)
            if not part.trace.is_closed:
                part.trace.facts.taken.append(result)
            outcome = result.outcome
            part.note(f"row {result.row.number}", outcome.attempts, "taken", _result(outcome))

    return TracedJournal
