"""Runs that die: their rows, drawn from a seed, and what has been done when they begin.

They run in virtual time, so a seed fixes which lines fall into which group, and replays exactly.
"""

from __future__ import annotations

import asyncio
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import msgspec

import redline
from crash.hearing import hearing
from redline.errors import Rejected
from redline.job import api
from redline.job.outputs import resume
from redline.journal import journal
from redline.testing import VirtualLoop

OUTPUT, FAILED = "labels.jsonl", "labels.failed.jsonl"
OLD_MODEL, MODEL = "one", "two"
# One line stays within a disk's block, or reaches over one, some, or many.
_TEXT_BYTES = (10, 10, 300, 300, 2_000, 12_000)


@dataclass(frozen=True)
class Case:
    """Rows and how they are run, drawn from a seed. bad: those that fail at first."""

    seed: int
    rows: list[dict[str, Any]]
    bad: frozenset[str]
    delays_s: dict[str, float]
    group_s: float
    fsync_s: float
    options: dict[str, Any]

    @property
    def names(self) -> list[str]:
        return [row["custom_id"] for row in self.rows]


def draw(seed: int) -> Case:
    """The case of a seed."""
    chance = Random(seed)
    names = [f"r{number:02}" for number in range(1, chance.randint(7, 14))]
    rows = [
        {"custom_id": name, "text": f"text {name} " + "é" * (chance.choice(_TEXT_BYTES) // 2)}
        for name in names
    ]
    return Case(
        seed=seed,
        rows=rows,
        bad=frozenset(chance.sample(names, len(names) // 3)),
        # The first row answers last, so that sorting has something to do.
        delays_s={name: chance.uniform(0.01, 0.1) + (name == names[0]) for name in names},
        group_s=chance.choice((0.001, 0.02, 0.05)),
        fsync_s=chance.choice((0.0, 0.015, 0.05)),
        options={
            "concurrency": chance.randint(2, 6),
            "format": chance.choice(("redline", "redline", "batch")),
            "keep_input": chance.random() < 0.5,
        },
    )


class Log:
    """What the runs of one folder were asked, have acknowledged and died of; survives them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def say(self, what: str, words: str) -> None:
        with self.path.open("ab", buffering=0) as file:
            file.write(f"{what} {words}\n".encode())

    def heard(self, what: str) -> list[str]:
        said = [line.partition(" ") for line in self.path.read_text().splitlines()]
        return [words for verb, _, words in said if verb == what]


class _Loop(VirtualLoop):
    """Virtual time, in which the journal's thread takes `fsync_s`, and answers come meanwhile."""

    fsync_s = 0.0

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> asyncio.Future[Any]:
        if isinstance(getattr(func, "__self__", None), journal.Journal):
            return self.create_task(self._sync(func))
        return super().run_in_executor(executor, func, *args)

    async def _sync(self, sync: Callable[[], None]) -> None:
        # In this thread, so that its place among the other steps is the same each time.
        sync()
        await asyncio.sleep(self.fsync_s)


def one_run(case: Case, folder: Path, log: Log, bad: frozenset[str], **options: Any) -> bool:
    """A run of the case's rows, of which the `bad` ones fail. Whether it came to its end."""

    async def call(row: dict[str, Any]) -> str:
        log.say("asked", row["custom_id"])
        await asyncio.sleep(case.delays_s[row["custom_id"]])
        if row["custom_id"] in bad:
            raise Rejected("a row of the kind that fails")
        return f"{options['model']} answers {row['text']}"

    def hear(results: list[Any]) -> None:
        for result in results:
            log.say("saved", result.custom_id)

    def new_event_loop() -> asyncio.AbstractEventLoop:
        loop = _Loop()
        loop.fsync_s = case.fsync_s
        return loop

    with (
        patch.object(resume, "Journal", hearing(hear, resume.Journal)),
        patch.object(api, "new_event_loop", new_event_loop),
        patch.object(journal, "GROUP_S", case.group_s),
    ):
        report = redline.run(
            case.rows, call=call, output=folder / OUTPUT, progress=False, **case.options, **options
        )
    return report.is_complete


def comes_to_its_end(work: Callable[[], bool]) -> bool:
    """Whether `work` returned True; what it raised is printed."""
    try:
        return work()
    except Exception:
        traceback.print_exc()
        return False


def in_child(work: Callable[[], bool]) -> int:
    """The wait status of `work` in a process of its own: 0 where it returned True.

    No fsync reaches the system there: crash.disk says what it would make durable.
    """
    child = os.fork()
    if child == 0:
        status = 70
        os.fsync = lambda fd: None
        try:
            status = 0 if work() else 1
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    return os.waitpid(child, 0)[1]


@dataclass(frozen=True)
class Scenario:
    """options: of the run that dies. before: what has been done when it begins.

    mended: the share of the rows that failed at first and succeed in this run.
    """

    options: dict[str, Any]
    before: Callable[[Case, Path, Log], None] | None = None
    mended: float = 0.0

    def bad(self, case: Case) -> frozenset[str]:
        """The rows that fail in the run that dies and in those after it."""
        kept = round(len(case.bad) * (1 - self.mended))
        return frozenset(sorted(case.bad)[:kept])


def _finished(case: Case, folder: Path, log: Log, model: str = MODEL) -> None:
    assert one_run(case, folder, log, case.bad, model=model)


def _finished_by_another(case: Case, folder: Path, log: Log) -> None:
    _finished(case, folder, log, OLD_MODEL)


def _finished_with_other_texts(case: Case, folder: Path, log: Log) -> None:
    """Every row was answered, or failed, and has changed since."""
    rows = [row | {"text": f"{row['text']}, once"} for row in case.rows]
    _finished(replace(case, rows=rows), folder, log)


def _half_done(case: Case, folder: Path, log: Log) -> None:
    """With a torn line at the end of each file, and beside it one that was not renamed yet."""
    half = len(case.rows) // 2 + 1
    assert one_run(case, folder, log, case.bad, model=MODEL, limit=half)
    for path in (folder / OUTPUT, folder / FAILED):
        if path.exists():
            data = path.read_bytes()
            path.write_bytes(data + data[: len(data) // 2].rsplit(b"\n", 1)[-1])
            path.with_name(f".{path.name}.unfinished").write_bytes(data[:-9])


def _with_lost_blocks(case: Case, folder: Path, log: Log) -> None:
    """Finished, but for what a power loss took from the middle of what was not acknowledged."""
    _finished(case, folder, Log(log.path.with_suffix(".unheard")))
    for path in (folder / OUTPUT, folder / FAILED):
        lines = path.read_bytes().splitlines(keepends=True)
        hurt = len(lines) // 2
        for line in lines[:hurt]:
            log.say("saved", msgspec.json.decode(line)["custom_id"])
        middle = len(lines[hurt]) // 2
        lines[hurt] = lines[hurt][:middle] + bytes(len(lines[hurt]) - middle - 1) + b"\n"
        path.write_bytes(b"".join(lines))


SCENARIOS = {
    "new": Scenario({}),
    "limited": Scenario({"rps": 1_000_000.0}),
    "ordered": Scenario({"ordered": True}),
    "resume": Scenario({}, _half_done),
    "lost-blocks": Scenario({}, _with_lost_blocks),
    "retry-failed": Scenario({"retry_failed": True}, _finished, 0.5),
    "mended": Scenario({"retry_failed": True}, _finished, 1.0),
    "restart": Scenario({"restart": True}, _finished_by_another),
    "changed": Scenario({}, _finished_with_other_texts, 0.5),
}
