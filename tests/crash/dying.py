"""A program that lets a run die at each step it takes on the disk, and resumes it each time.

    python dying.py SCENARIO MANNER FOLDER [MUTANT]

A step is one call that changes a file: open, write, fsync, truncate, rename, unlink, mkdir.
Manners of death: `before` a step, `after` it, `torn` (in the middle of a write), and `power`
(before a step, and all is lost that no fsync had made durable: bytes as well as names). Ends with
status 0 once every step had its death and every resumed run was right.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import redline
from mutants import mutant, with_names
from redline.errors import Rejected
from redline.run import execute, journal, manifest, results_file, rewrite
from redline.run.settings import Output
from redline.run.verify import verify

NAMES = [f"r{number}" for number in range(1, 9)]
ROWS = [{"custom_id": name, "text": f"text {name}"} for name in NAMES]
BAD = {"r2", "r5", "r8"}
_STEPS = ("open", "write", "pwrite", "fsync", "ftruncate", "replace", "rename", "unlink", "mkdir")
_MOST_STEPS = 400
# Groups follow each other at once, so that a short run has many.
journal.GROUP_S = 0.001


class Disk:
    """The calls that change files below `folder`; the process dies at the `fatal` one, from 1."""

    def __init__(self, folder: Path, manner: str, fatal: int) -> None:
        self.folder = folder
        self.manner = manner
        self.fatal = fatal
        self.steps = 0
        self._real: dict[str, Callable[..., Any]] = {name: getattr(os, name) for name in _STEPS}
        self._durable = {path.stat().st_ino: path.stat().st_size for path in folder.rglob("*")}
        self._undo: list[tuple[str, Callable[[], None]]] = []
        self._kept = folder.parent / "kept"
        for name in _STEPS:
            setattr(os, name, self._step(name))

    def _step(self, name: str) -> Callable[..., Any]:
        real = self._real[name]

        def step(*given: Any, **more: Any) -> Any:
            path = self._path(given[0])
            makes = name != "open" or bool(given[1] & os.O_CREAT)
            counts = makes and (self.manner != "torn" or name == "write")
            if not counts or not path.startswith(str(self.folder)):
                return real(*given, **more)
            self.steps += 1
            is_last = self.steps == self.fatal
            if is_last and self.manner == "torn":
                real(given[0], given[1][: len(given[1]) // 2])
            if is_last and self.manner != "after":
                self._die()
            self._remember(name, path, *given)
            try:
                return real(*given, **more)
            finally:
                if is_last:
                    self._die()

        return step

    def _path(self, place: Any) -> str:
        return os.readlink(f"/proc/self/fd/{place}") if isinstance(place, int) else os.fspath(place)

    def _remember(self, name: str, path: str, *given: Any) -> None:
        """How to take this step back, until an fsync makes it durable."""
        folder = os.path.dirname(path)
        if name == "fsync" and os.path.isdir(path):
            self._undo = [pair for pair in self._undo if pair[0] != path]
        elif name == "fsync":
            state = os.stat(path)
            self._durable[state.st_ino] = state.st_size
        elif name == "open" and not os.path.exists(path):
            self._undo.append((folder, lambda: Path(path).unlink(missing_ok=True)))
        elif name == "mkdir" and not os.path.exists(path):
            self._undo.append((folder, lambda: shutil.rmtree(path)))
        elif name in ("replace", "rename", "unlink"):
            self._remember_names(folder, [path, *map(os.fspath, given[1:2])])

    def _remember_names(self, folder: str, paths: list[str]) -> None:
        for path in paths:
            kept = self._kept / str(self.steps) / os.path.basename(path)
            if os.path.exists(path):
                kept.parent.mkdir(parents=True, exist_ok=True)
                os.link(path, kept)
        kept = self._kept / str(self.steps)

        def undo() -> None:
            for path in paths:
                Path(path).unlink(missing_ok=True)
                if (kept / os.path.basename(path)).exists():
                    os.link(kept / os.path.basename(path), path)

        self._undo.append((folder, undo))

    def _die(self) -> None:
        for name, real in self._real.items():
            setattr(os, name, real)
        if self.manner == "power":
            for _, undo in reversed(self._undo):
                undo()
            for path in self.folder.rglob("*"):
                state = path.stat()
                if path.is_file() and state.st_size > self._durable.get(state.st_ino, 0):
                    os.truncate(path, self._durable.get(state.st_ino, 0))
        os.kill(os.getpid(), signal.SIGKILL)


class Log:
    """What the runs of one folder were asked and have acknowledged; survives their death."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._write = os.write

    def say(self, what: str, name: str) -> None:
        self._write(self._fd, f"{what} {name}\n".encode())

    def heard(self, what: str) -> list[str]:
        said = [line.split() for line in self.path.read_text().splitlines()]
        return [name for verb, name in said if verb == what]


def in_child(work: Callable[[], bool]) -> int:
    """The wait status of `work` in a process of its own: 0 where it returned True."""
    child = os.fork()
    if child == 0:
        status = 70
        try:
            status = 0 if work() else 1
        finally:
            sys.stderr.flush()
            os._exit(status)
    return os.waitpid(child, 0)[1]


def one_run(folder: Path, log: Log, bad: set[str], **options: Any) -> bool:
    """A run of all rows, of which the `bad` ones fail. Whether it came to its end."""

    async def call(row: dict[str, Any]) -> str:
        log.say("asked", row["custom_id"])
        # The later rows answer first, so that sorting has something to do.
        await asyncio.sleep(0.01 * (4 - int(row["custom_id"][1:]) % 4))
        if row["custom_id"] in bad:
            raise Rejected("a row of the kind that fails")
        return f"answer to {row['text']}"

    acknowledge = execute._Run.acknowledge

    def acknowledged(run: Any, results: list[Any]) -> None:
        for result in results:
            log.say("saved", result.custom_id)
        acknowledge(run, results)

    execute._Run.acknowledge = acknowledged
    output = folder / "labels.jsonl"
    report = redline.run(ROWS, call=call, output=output, concurrency=3, progress=False, **options)
    return report.is_complete


class Scenario:
    """before: what has been done when the run begins. options: of the run that dies."""

    def __init__(
        self,
        options: dict[str, Any] | None = None,
        before: Callable[[Path, Log], None] | None = None,
        bad: set[str] = BAD,
    ) -> None:
        self.options = options or {}
        self.before = before
        self.bad = bad

    @property
    def resumed(self) -> dict[str, Any]:
        return {name: value for name, value in self.options.items() if name != "restart"}


def _finished(folder: Path, log: Log) -> None:
    assert in_child(lambda: one_run(folder, log, BAD)) == 0


def _half_done(folder: Path, log: Log) -> None:
    assert in_child(lambda: one_run(folder, log, BAD, limit=5)) == 0
    for name in ("labels.jsonl", "labels.failed.jsonl"):
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(data + data[: len(data) // 2].rsplit(b"\n", 1)[-1])


SCENARIOS = {
    "new": Scenario(),
    "ordered": Scenario({"ordered": True}),
    "resume": Scenario(before=_half_done),
    "retry-failed": Scenario({"retry_failed": True}, _finished, {"r5"}),
    "mended": Scenario({"retry_failed": True}, _finished, set()),
    "restart": Scenario({"restart": True}, _finished),
}


def lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a file whose tail may be torn; each must be sound."""
    data = path.read_bytes() if path.exists() else b""
    found = []
    for line in data[: data.rfind(b"\n") + 1].splitlines():
        body, tail = line.rsplit(b',"crc":"', 1)
        assert tail == b'%08x"}' % zlib.crc32(body), f"{path.name}: a damaged line"
        found.append(json.loads(line))
    return found


def names(folder: Path, pattern: str) -> list[str]:
    paths = folder.glob(pattern)
    return [line["custom_id"] for path in paths for line in lines(path)]


def check_death(folder: Path, log: Log) -> None:
    """After a death, whatever was acknowledged is there, and no row has succeeded twice."""
    there = set(names(folder, "labels*.jsonl"))
    lost = set(log.heard("saved")) - there
    assert not lost, f"acknowledged and lost: {lost}"
    succeeded = names(folder, "labels.jsonl")
    assert len(succeeded) == len(set(succeeded)), f"twice: {succeeded}"


def check_end(folder: Path, done: set[str], asked: list[str], bad: set[str]) -> None:
    """After the resumed run, each row stands once, and no row that was done was asked again."""
    succeeded, failed = names(folder, "labels.jsonl"), names(folder, "labels.failed.jsonl")
    assert sorted(succeeded + failed) == NAMES, f"{succeeded} + {failed}"
    assert bad <= set(failed) <= BAD, f"failed: {failed}"
    assert not done & set(asked), f"asked again: {done & set(asked)}"
    verdict = verify(Output(path=folder / "labels.jsonl"), ROWS)
    assert verdict.is_whole, str(verdict)
    assert verdict.strange == 0, str(verdict)
    left = [path.name for path in folder.rglob("*unfinished*")]
    assert not left, f"left behind: {left}"


def sweep(scenario: Scenario, manner: str, base: Path) -> int:
    """The number of steps; each had its death, and its resumed run was right."""
    for fatal in range(1, _MOST_STEPS):
        folder = base / f"{fatal}" / "out"
        folder.mkdir(parents=True)
        log, later = Log(folder.parent / "log"), Log(folder.parent / "later")
        if scenario.before is not None:
            scenario.before(folder, log)
        is_over = die_and_resume(scenario, (manner, fatal), folder, (log, later))
        shutil.rmtree(folder.parent)
        if is_over:
            return fatal - 1
    raise AssertionError(f"more than {_MOST_STEPS} steps")


def die_and_resume(
    scenario: Scenario, death: tuple[str, int], folder: Path, logs: tuple[Log, Log]
) -> bool:
    """Whether the run ended before its death."""
    log, later = logs
    manner, fatal = death

    def die() -> bool:
        Disk(folder, manner, fatal)
        return one_run(folder, log, scenario.bad, **scenario.options)

    status = in_child(die)
    assert status in (0, signal.SIGKILL), f"step {fatal}: wait status {status}"
    check_death(folder, log)
    done = set(names(folder, "labels.jsonl"))
    if not scenario.options.get("retry_failed"):
        done |= set(names(folder, "labels.failed.jsonl"))
    resumed = in_child(lambda: one_run(folder, later, scenario.bad, **scenario.resumed))
    assert resumed == 0, f"step {fatal}: the resumed run did not finish"
    # A death that was too late for the retry leaves nothing that is still to be retried.
    check_end(folder, done, later.heard("asked"), scenario.bad)
    return status == 0


class Unsynced:
    """`os`, but a file's fsync does nothing; a folder's does."""

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def fsync(self, fd: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{fd}"):
            os.fsync(fd)


def mutate(name: str) -> None:
    """Breaks one line, so that the sweep must fail."""
    if name == "not-synced":
        copy = mutant(results_file, "os.fsync(self._fd)", "pass")
        journal.ResultsFile = copy.ResultsFile
    elif name == "torn-tail-kept":
        line = "self._size = self._load(on_entry)"
        broken = "self._load(on_entry); self._size = os.fstat(self._fd).st_size"
        journal.ResultsFile = mutant(results_file, line, broken).ResultsFile
    elif name == "name-not-synced":
        copy = mutant(results_file, "if not self._size:", "if False:")
        journal.ResultsFile = copy.ResultsFile
    elif name == "told-too-early":
        line = "await loop.run_in_executor(self._disk, self._sync)"
        early = f"self._acknowledge(group.results); {line}; group.results = []"
        copy = mutant(journal, line, early)
        copy.GROUP_S = 0.001
        sys.modules["redline.run.resume"].Journal = copy.Journal
    elif name == "done-is-asked-again":
        copy = mutant(execute, "if key in journal.succeeded:", "if False:")
        execute._Run._is_wanted = copy._Run._is_wanted
    elif name == "old-file-removed-first":
        line = "os.replace(beside, path)"
        copy = mutant(results_file, line, f"path.unlink(missing_ok=True); {line}")
        rewrite.replace_file = manifest.replace_file = copy.replace_file
    elif name == "new-file-not-synced":
        copy = with_names(results_file, os=Unsynced())
        rewrite.replace_file = manifest.replace_file = copy.replace_file
    else:
        raise LookupError(f"no such mutant: {name}")


def main(scenario: str, manner: str, folder: str, *mutants: str) -> None:
    for name in mutants:
        mutate(name)
    steps = sweep(SCENARIOS[scenario], manner, Path(folder))
    print(f"{scenario}: {steps} steps, a death {manner} each")


if __name__ == "__main__":
    main(*sys.argv[1:])
