"""A script played: each of its runs in virtual time, on real files, and the law after each."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from faults import law, leaks
from faults.broken import Broken
from faults.ended import Disk, Ended
from faults.files import Files, read_files
from faults.network import FaultLoop
from faults.parts import Part, Parts, assemble
from faults.ran import Ran
from faults.script import LONGEST_REPLY_BYTES, Run, Script
from faults.server import Server
from faults.trace import Trace
from redline.calls import Endpoint
from redline.job import Parts as RunParts
from redline.job import execute
from redline.job.settings import Hooks, Job, Prompting
from redline.journal import Output
from redline.testing import Deadlock

# A file's fsync takes 2 us there and 80 us on a disk; what it makes durable is for tests/crash.
_MEMORY = Path("/dev/shm")
# A machine that lost its power takes longer to come back than any window of a script lasts.
_POWERLESS_S = 100.0


class BrokenLaw(AssertionError):
    """A script that breaks the law: which one, where, and how to see it again."""

    def __init__(self, script: Script, number: int, what: str, trace: Trace) -> None:
        self.seed = script.seed
        self.trace = trace
        super().__init__(
            f"seed {script.seed}, run {number}: {what}; to see it again: "
            f".venv/bin/python tests/faults/replay.py {script.seed}"
        )


@dataclass
class Played:
    """What a script came to."""

    script: Script
    hash: str
    trace: Trace
    runs: list[Ran]

    def counts(self) -> Counter[str]:
        """Figures to be summed over scripts: faults, outcomes, endings, errors and events."""
        found: Counter[str] = Counter(scripts=1, runs=len(self.runs), rows=len(self.script.rows))
        found["events"] = len(self.trace.events)
        found.update({f"attempt: {kind}": n for kind, n in self.trace.counts.items()})
        for ran in self.runs:
            found[f"ending: {ran.facts.ended_by}"] += 1
            if ran.facts.ended_by != "itself":
                found[f"ended at: {ran.facts.ended_at}"] += 1
            for result in ran.facts.taken:
                found[f"outcome: {result.outcome.status}"] += 1
                if result.outcome.error is not None:
                    found[f"failure: {result.outcome.error.kind}"] += 1
        return found


@cache
def _redline() -> Parts:
    return assemble()


def play(seed: int, parts: Parts | None = None) -> Played:
    """The script of this seed, played to its end. Raises BrokenLaw.

    parts: assembled; redline's own unless given.
    """
    script, trace = Script(seed), Trace()
    ended: list[Ran] = []
    base = _MEMORY if os.access(_MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="redline-faults-", dir=base) as folder:
        stage = _Stage(script, trace, Path(folder))
        for number, run in enumerate(script.runs, 1):
            if ended and _is_idle(script, run, ended[-1].after):
                continue
            try:
                with (parts or _redline())():
                    ended.append(stage.play(number, run))
                law.check(script, ended, stage.job(run))
            except (Broken, Deadlock) as error:
                raise BrokenLaw(script, number, str(error), trace) from error
    return Played(script, trace.hash, trace, ended)


def _is_idle(script: Script, run: Run, files: Files) -> bool:
    """Nothing is left for this run; the last one shows that nothing is done then."""
    is_done = len(files.succeeded) + len(files.failed) >= len(script.rows)
    return is_done and not run.is_last and not run.retry_failed


class _Stage:
    """The folder of one script, its clock, and what its server remembers."""

    def __init__(self, script: Script, trace: Trace, folder: Path) -> None:
        self._script = script
        self._trace = trace
        self._folder = folder
        self._output = Output(
            path=folder / "out" / "labels.jsonl",
            format=script.settings.format,
            ordered=script.settings.ordered,
            keep_input=script.settings.keep_input,
            raw=script.settings.raw,
        )
        self._output.path.parent.mkdir()
        self._input = folder / "rows.jsonl"
        self._input.write_bytes(b"\n".join(line.raw for line in script.lines) + b"\n")
        self._counts: Counter[str] = Counter()
        self._now_s = 0.0

    def job(self, run: Run, call: Any = None) -> Job:
        """What redline is asked to do in this run. call: the user's function, where there is."""
        settings = self._script.settings
        is_http = settings.door == "http"
        endpoint = Endpoint(
            base_url="http://192.0.2.1/v1",
            limits=settings.limits,
            timeouts=settings.timeouts,
            proxy="",
            max_reply_bytes=LONGEST_REPLY_BYTES,
        )
        return Job(
            rows=self._rows(run),
            endpoints=(endpoint,) if is_http else (),
            call=None if is_http else call or _nothing,
            limits=settings.limits,
            prompting=Prompting(),
            output=self._output,
            hooks=Hooks(after=_checked if settings.has_after else None),
            retry=settings.retry,
            timeout_s=settings.timeout_s,
            row_deadline_s=settings.row_deadline_s,
            deadline_s=run.deadline_s,
            limit=run.limit,
            fail_on=settings.fail_on,
            retry_failed=run.retry_failed,
            strict=run.is_strict,
        )

    def _rows(self, run: Run) -> object:
        source = self._script.settings.source
        if source == "file":
            return self._input
        items = [line.value for line in self._script.rows]
        if source == "iterable":
            return _Rows(items, run.breaks_at)
        return _AsyncRows(items, run.breaks_at)

    def play(self, number: int, run: Run) -> Ran:
        """The run, with the folder as it left it."""
        before = read_files(self._output)
        begun_s = self._now_s + run.gap_s
        chance = self._script.draws("moments", number)
        loop = FaultLoop(start_s=begun_s, chance=chance)
        try:
            ran = loop.run_until_complete(self._play(number, run, before))
        finally:
            _close(loop)
        self._trace.resume()
        self._trace.note(self._now_s, "run", number, "run over", ran.facts.ended_by)
        if ran.facts.ended_by == "power":
            self._now_s += _POWERLESS_S
        ran.after = read_files(self._output)
        return ran

    async def _play(self, number: int, run: Run, before: Files) -> Ran:
        loop: Any = asyncio.get_running_loop()
        trace, seed = self._trace, f"{self._script.seed} {number}"
        loop.part = Part(self._script, trace, seed, run.sync_fails)
        loop.world = Server(self._script, run, trace, self._counts)
        begun_s, before_fds = loop.time(), leaks.descriptors()
        ending = Ended(run, loop, Disk(self._script, self._output.path.parent))
        trace.note(begun_s, "run", number, "run begins")
        trace.begin(run.ending, ending.happen)
        ran = Ran(run, trace.facts, before, before)
        ending.task = asyncio.create_task(
            execute(
                self.job(run, loop.world.call),
                RunParts(display=ending, on_start=ending.started, on_result=ending.take),
            )
        )
        await asyncio.wait([ending.task])
        if ending.task.cancelled():
            ran.error = asyncio.CancelledError()
        elif (error := ending.task.exception()) is not None:
            ran.error = error
        else:
            ran.report = ending.task.result()
        self._now_s = loop.time() if ending.died_s is None else ending.died_s
        if ending.died_s is None:
            ran.ended_s = loop.time()
        # Callbacks that were due at its end, such as those of closed connections.
        await asyncio.sleep(0)
        ran.leaks = leaks.found(loop, ending.view, before_fds)
        ran.at_stake = ending.at_stake
        ending.restore()
        return ran


def _close(loop: FaultLoop) -> None:
    """Ends what is left in the loop, which is nothing unless the law is broken."""

    async def end() -> None:
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await loop.shutdown_asyncgens()

    try:
        loop.run_until_complete(end())
    except Deadlock:
        # It waits where nothing comes, and its cancellation was refused.
        return
    finally:
        loop.close()


class _Rows:
    """An iterable of unknown length, which may raise. A new one each time, as for a resume."""

    def __init__(self, items: list[Any], breaks_at: int | None) -> None:
        self.items = items
        self._breaks_at = breaks_at

    def __iter__(self) -> Iterator[Any]:
        for number, item in enumerate(self.items):
            if number == self._breaks_at:
                raise OSError("the input broke off")
            yield item


class _AsyncRows:
    """The same for async for; each row comes a moment after the one before."""

    def __init__(self, items: list[Any], breaks_at: int | None) -> None:
        self.items = items
        self._rows = _Rows(items, breaks_at)

    async def __aiter__(self) -> AsyncIterator[Any]:
        for item in self._rows:
            await asyncio.sleep(0.005)
            yield item


async def _nothing(row: Any) -> None:
    """Stands for the user's function where nobody is going to be asked."""


def _checked(output: Any) -> Any:
    """A user's function that takes most answers as they are."""
    if isinstance(output, str) and output.startswith("r7"):
        raise ValueError("an answer that is not liked")
    return output
