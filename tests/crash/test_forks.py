"""Processes that a run forks, such as a pool's workers, keep none of its locks."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import pytest

import redline

pytestmark = pytest.mark.crash

LIMIT_S = 60.0
# A run that goes on until it is killed; its pool's workers write their ids to files.
PROGRAM = """
import asyncio, os
from concurrent.futures import ProcessPoolExecutor
import json
import multiprocessing
import redline

def after(output):
    open(f"worker-{os.getpid()}", "w").close()
    return output

async def call(row):
    await asyncio.sleep(0.02 if row["n"] < 5 else 60)
    return "yes"

with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("fork")) as executor:
    rows = [{"n": number} for number in range(20)]
    redline.run(rows, call=call, after=after, executor=executor, output="labels.jsonl",
                concurrency=1, progress=False)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder whose `worker-PID` files name processes that are ended at last."""
    yield tmp_path
    for worker in tmp_path.glob("worker-*"):
        with suppress(ProcessLookupError):
            os.kill(int(worker.name.removeprefix("worker-")), signal.SIGKILL)


def is_alive(worker: Path) -> bool:
    return Path(f"/proc/{worker.name.removeprefix('worker-')}").exists()


def upper(text: object) -> str:
    return str(text).upper()


async def answer(row: dict[str, Any]) -> str:
    return "yes"


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc")
def test_a_killed_run_leaves_no_lock_with_the_workers_of_its_pool(folder: Path) -> None:
    output = folder / "labels.jsonl"
    with subprocess.Popen([sys.executable, "-c", PROGRAM], cwd=folder) as process:
        end_s = time.monotonic() + LIMIT_S
        while not output.exists() or output.read_bytes().count(b"\n") < 5:
            assert process.poll() is None
            assert time.monotonic() < end_s
            time.sleep(0.01)
        process.kill()
    workers = list(folder.glob("worker-*"))
    assert workers
    rows = [{"n": number} for number in range(20)]
    report = redline.run(rows, call=answer, after=upper, output=output, force=True, progress=False)
    assert report.is_complete
    assert report.skipped == 5
    assert all(is_alive(worker) for worker in workers)


def test_a_pool_that_outlives_a_run_does_not_keep_its_output(tmp_path: Path) -> None:
    output = tmp_path / "labels.jsonl"
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as executor:
        for count in (3, 5):
            rows = [{"n": number} for number in range(count)]
            report = redline.run(
                rows, call=answer, after=upper, executor=executor, output=output, progress=False
            )
            assert report.is_complete
            assert report.skipped == (0 if count == 3 else 3)


def ends_at_seven(value: Any) -> Any:
    if value in (7, {"n": 7}):
        os._exit(9)
    return value


@pytest.mark.parametrize("hook", ["before", "after"])
def test_a_row_that_ends_its_process_fails_and_the_same_call_does_the_others(
    tmp_path: Path, hook: Literal["before", "after"]
) -> None:
    output = tmp_path / "labels.jsonl"
    rows = [{"n": number} for number in range(20)]

    async def call(row: dict[str, Any]) -> int:
        return int(row["n"])

    def run() -> redline.Report:
        with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("fork")) as executor:
            hooks: dict[str, Any] = {hook: ends_at_seven}
            return redline.run(
                rows, call=call, output=output, executor=executor, progress=False, **hooks
            )

    first = run()
    assert first.stopped is not None
    assert first.stopped.what.startswith(f"the executor cannot run the `{hook}` function: Broken")
    last = run()
    assert last.is_complete
    lines = (tmp_path / "labels.failed.jsonl").read_text().splitlines()
    failed = [json.loads(line) for line in lines]
    # With it, the one beside it in the other process.
    assert len(failed) <= 2
    assert last.succeeded + last.skipped == 20
    what = f"the executor broke while it ran the `{hook}` function"
    assert {line["error"]["message"] for line in failed if line["row"] == 8} == {what}


class Unpicklable(Exception):
    """Its copy in another process cannot be made, as of many libraries' exceptions."""

    def __init__(self, what: str, status: int) -> None:
        super().__init__(f"{what}: {status}")


def refuses_seven(value: Any) -> Any:
    if value in (7, {"n": 7}):
        raise Unpicklable("refused", 503)
    return value


@pytest.mark.parametrize("hook", ["before", "after"])
def test_an_exception_that_cannot_be_unpickled_fails_its_row_alone(
    hook: Literal["before", "after"],
) -> None:
    async def call(row: dict[str, Any]) -> int:
        return int(row["n"])

    rows = [{"n": number} for number in range(20)]
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("fork")) as executor:
        hooks: dict[str, Any] = {hook: refuses_seven}
        report = redline.run(rows, call=call, executor=executor, progress=False, **hooks)
    assert report.is_complete
    (failed,) = (outcome for outcome in report.outcomes if outcome.error is not None)
    assert failed.row == 8
    assert f"the `{hook}` function raised Unpicklable: refused: 503" in str(failed.error)


def test_a_forked_process_that_ends_leaves_the_runs_lock_alone(tmp_path: Path) -> None:
    """Whatever it cleans up as it ends: the lock is its parent's."""
    output = tmp_path / "labels.jsonl"
    refused: list[str] = []

    async def call(row: dict[str, Any]) -> str:
        if row["n"] == 1:
            child = os.fork()
            if child == 0:
                try:
                    # As a process that ends by itself does with what it has from its parent.
                    import atexit

                    atexit._run_exitfuncs()
                finally:
                    os._exit(0)
            os.waitpid(child, 0)
            arguments = [sys.executable, "-c", SECOND, str(output)]
            second = subprocess.run(arguments, capture_output=True, text=True, check=False)
            refused.append(second.stdout)
        return "yes"

    rows = [{"n": number} for number in range(4)]
    assert redline.run(rows, call=call, output=output, concurrency=1, progress=False).is_complete
    assert "is being written by another redline" in refused[0]


SECOND = """
import sys
from pathlib import Path
from redline.errors import JournalError
from redline.journal.results_file import ResultsFile
try:
    ResultsFile(Path(sys.argv[1]), lambda found: None)
except JournalError as error:
    print(error)
"""
