"""Runs that die and are resumed, and what must then hold."""

from __future__ import annotations

import json
import shutil
import signal
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crash.disk import Death, Disk, Onlooker
from crash.platter import Kept, Platter
from crash.scenarios import (
    FAILED,
    MODEL,
    OLD_MODEL,
    OUTPUT,
    SCENARIOS,
    Case,
    Log,
    comes_to_its_end,
    draw,
    in_child,
    one_run,
)
from crash.steps import Step
from redline.job.outputs import verify
from redline.journal import Output, mark_of
from redline.sources import Row


@dataclass(frozen=True)
class Runs:
    """Runs of a scenario, whose cases are drawn from seeds. `base`: a folder to be made for each.

    What has been done when a case begins stands beside its folder, for its other deaths.
    """

    name: str

    def watch(
        self,
        seed: int,
        base: Path,
        choose: Callable[[int, Step], Death | None],
        keep: Callable[[Death, str, Kept, str], None],
    ) -> list[Step]:
        """The steps of a run that does not die."""
        trial = _Trial(self.name, draw(seed), base)
        trial.begin()
        log = Log(base / "log-1")
        options = trial.options(is_first=True)
        kept = trial.kept(options)
        disk = Onlooker(trial.folder, choose, lambda *left: keep(*left, log.path.read_text()))
        assert trial.finishes(disk, log, options), "a run that does not die did not finish"
        trial.check_asked(log, kept)
        return disk.steps

    def go_on(self, seed: int, base: Path, death: Death, kept: Kept, said: str) -> None:
        """Raises AssertionError as `die` does. said: what the run had said when it died."""
        trial = _Trial(self.name, draw(seed), base)
        logs = [*trial.begin(), Log(base / "log-1"), Log(base / "log-2")]
        logs[1].path.write_text(said)
        kept.put_back(trial.folder)
        if death.loss != "none":
            Platter.load(trial.folder).lose(death.chance() if death.loss == "some" else None)
        _check_death(trial, logs)
        options = trial.options(is_first=False)
        done = trial.kept(options)
        is_over = trial.finishes(Disk(trial.folder), logs[2], options)
        trial.check_asked(logs[2], done)
        assert is_over, "the resumed run did not finish"
        _check_after(trial, [death])

    def die(self, seed: int, deaths: Sequence[Death], base: Path) -> list[str]:
        """The moments of these deaths, one after the other; the run after them came to its end.

        A run that was over before its death ends their row. Raises AssertionError where anything
        acknowledged is lost, stands twice, or is asked again.
        """
        trial = _Trial(self.name, draw(seed), base)
        logs = trial.begin()
        moments: list[str] = []
        for death in [*deaths, None]:
            options = trial.options(is_first=not moments)
            kept = trial.kept(options)
            logs.append(Log(base / f"log-{len(logs)}"))
            status = trial.run(logs[-1], death, options)
            trial.check_asked(logs[-1], kept)
            if status == 0:
                break
            assert death is not None, "the resumed run did not finish"
            assert status == signal.SIGKILL, f"wait status {status} in place of a death"
            moments += logs[-1].heard("died")
            _check_death(trial, logs)
        _check_after(trial, deaths)
        return moments


@dataclass(frozen=True)
class _Trial:
    """One case of a scenario in a folder of its own."""

    scenario: str
    case: Case
    base: Path

    @property
    def folder(self) -> Path:
        return self.base / "out"

    def begin(self) -> list[Log]:
        """Does what stands before the run, once for a case; the log of what that took."""
        done = self.base.parent / f"{self.scenario}-{self.case.seed}"
        if not done.exists():
            (done / "out").mkdir(parents=True)
            before = SCENARIOS[self.scenario].before
            if before is not None:
                before(self.case, done / "out", Log(done / "log-0"))
        shutil.copytree(done, self.base)
        return [Log(self.base / "log-0")]

    def run(self, log: Log, death: Death | None, options: dict[str, Any]) -> int:
        """The wait status of a run that dies so, or not."""
        return in_child(
            lambda: self.finishes(
                Disk(self.folder, death, lambda moment: log.say("died", moment)), log, options
            )
        )

    def finishes(self, disk: Disk, log: Log, options: dict[str, Any]) -> bool:
        """Whether a run on this disk comes to its end."""
        bad = SCENARIOS[self.scenario].bad(self.case)
        try:
            return comes_to_its_end(lambda: one_run(self.case, self.folder, log, bad, **options))
        finally:
            disk.stop()

    def check_asked(self, log: Log, kept: set[str]) -> None:
        again = kept & set(log.heard("asked"))
        assert not again, f"asked again: {again}"

    def options(self, *, is_first: bool) -> dict[str, Any]:
        """Of the first run, or of one that goes on after a death."""
        options = {"model": MODEL, **SCENARIOS[self.scenario].options}
        if not is_first and _model(self.folder) != OLD_MODEL:
            options.pop("restart", None)
        return options

    def kept(self, options: dict[str, Any]) -> set[str]:
        """The rows that a run with these options may not ask again."""
        if "restart" in options:
            return set()
        done = self.names_now(OUTPUT)
        return done if "retry_failed" in options else done | self.names_now(FAILED)

    def names_now(self, pattern: str) -> set[str]:
        """The rows of sound lines that are of what these rows hold now."""
        marks = {row["custom_id"]: mark_of(Row(0, 0, row, b"")) for row in self.case.rows}
        lines = _lines_of(self.folder, pattern)
        return {
            line["custom_id"]
            for line in lines
            if int(line["row_hash"], 16) == marks[line["custom_id"]]
        }


def _check_death(trial: _Trial, logs: Sequence[Log]) -> None:
    """After a death, whatever was acknowledged is there, and no row has succeeded twice."""
    there = set(_names(trial.folder, "labels*.jsonl"))
    lost = {name for log in logs for name in log.heard("saved")} - there
    lost |= {name for log in logs[1:] for name in log.heard("saved")} - trial.names_now(
        "labels*.jsonl"
    )
    assert not lost, f"acknowledged and lost: {lost}"
    # Of a row that has changed, the old line may still be there.
    lines = _lines_of(trial.folder, OUTPUT)
    succeeded = [(line["custom_id"], line["row_hash"]) for line in lines]
    assert len(succeeded) == len(set(succeeded)), f"twice: {succeeded}"


def _check_after(trial: _Trial, deaths: Sequence[Death]) -> None:
    """After these deaths and a run that came to its end; and what that run told of is durable."""
    _check_end(trial)
    if trial.scenario != "lost-blocks" and all(death.loss == "none" for death in deaths):
        assert not list(trial.folder.glob("*.damaged-*")), "a kill has damaged a line"
    last = deaths[-1]
    Platter.load(trial.folder).lose(last.chance() if last.loss == "some" else None)
    _check_end(trial)


def _check_end(trial: _Trial) -> None:
    """At the end each row stands once, in whole lines, and nothing is left over."""
    folder, case, scenario = trial.folder, trial.case, SCENARIOS[trial.scenario]
    results, failures = (_lines(folder / name, is_whole=True) for name in (OUTPUT, FAILED))
    succeeded, failed = ([line["custom_id"] for line in own] for own in (results, failures))
    assert sorted(succeeded + failed) == case.names, f"not each once: {succeeded} + {failed}"
    assert scenario.bad(case) <= set(failed) <= case.bad, f"failed: {failed}"
    if scenario.options.get("ordered"):
        assert succeeded == sorted(succeeded), f"out of order: {succeeded}"
    assert OLD_MODEL not in map(_answerer, results), "a line of the old run"
    verdict = verify(Output(path=folder / OUTPUT), case.rows)
    assert verdict.is_whole, str(verdict)
    assert verdict.strange == 0, str(verdict)
    left = [path.name for path in folder.rglob("*unfinished*")]
    assert not left, f"left behind: {left}"


def _lines(path: Path, *, is_whole: bool = False) -> list[dict[str, Any]]:
    """The sound lines of a file. is_whole: every line that is ended must be one."""
    data = path.read_bytes() if path.exists() else b""
    found = []
    for line in data[: data.rfind(b"\n") + 1].splitlines():
        body, _, tail = line.rpartition(b',"crc":"')
        if tail == b'%08x"}' % zlib.crc32(body):
            found.append(json.loads(line))
        else:
            assert not is_whole, f"{path.name}: a damaged line"
    return found


def _names(folder: Path, pattern: str) -> list[str]:
    """The rows of the sound lines in all files of this pattern but those of damaged lines."""
    return [line["custom_id"] for line in _lines_of(folder, pattern)]


def _lines_of(folder: Path, pattern: str) -> list[dict[str, Any]]:
    paths = [path for path in folder.glob(pattern) if ".damaged-" not in path.name]
    return [line for path in paths for line in _lines(path)]


def _model(folder: Path) -> str | None:
    """The model that the output was begun with."""
    path = folder / "labels.redline" / "manifest.json"
    return json.loads(path.read_text())["settings"]["model"] if path.exists() else None


def _answerer(line: dict[str, Any]) -> str:
    answer = line["output"] if "output" in line else line["response"]["body"]
    return str(answer).partition(" ")[0]
