"""What ignores that a run ends: a second Ctrl-C returns all the same, and so does the deadline."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import redline
from crash.killing import clean_environ, ended, started, write_rows

pytestmark = pytest.mark.crash

# Far below what they are stuck for, and far above what a return takes.
LIMIT_S = 30.0
PROGRAM = """
import asyncio, sys, time
import redline
from concurrent.futures import ThreadPoolExecutor

def stuck(*given):
    print("stuck", flush=True)
    time.sleep(1000)

async def answer(row):
    return "yes"

async def blocking(row):
    stuck()

async def stubborn(row):
    print("stuck", flush=True)
    while True:
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            pass

async def threaded(row):
    await asyncio.to_thread(stuck)

async def shielded(row):
    await asyncio.shield(asyncio.create_task(stubborn(row)))

async def endless():
    yield {"n": 1}
    await stubborn(None)

async def held_up():
    yield {"n": 1}
    stuck()

def generated():
    yield {"n": 1}
    stuck()

kind = sys.argv[1]
rows = [{"n": 1}]
options = {
    "after": dict(call=answer, after=stuck),
    "before": dict(call=answer, before=stuck),
    "own pool": dict(call=answer, after=stuck, executor=ThreadPoolExecutor(1)),
    "blocking call": dict(call=blocking),
    "stubborn call": dict(call=stubborn),
    "call in a thread": dict(call=threaded),
    "shielded call": dict(call=shielded),
    "stubborn iterable": dict(call=answer, rows=endless()),
    "blocking iterable": dict(call=answer, rows=held_up()),
    "generator": dict(call=answer, rows=generated()),
}[kind]
report = redline.run(
    options.pop("rows", rows), **options, output="labels.jsonl", progress=False, concurrency=2
)
print("returned", report.unfinished, report.interrupted, flush=True)
if kind == "own pool":
    import os
    os._exit(0)
"""
ENDED_BY_ONE = ("before", "generator")
SAID = {
    "before": "the `before` function has not returned",
    "after": "the `after` function has not returned",
    "own pool": "the `after` function has not returned",
    "blocking call": "it blocked the event loop",
    "stubborn call": "its call continues although it was cancelled",
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [
        *SAID,
        "call in a thread",
        "shielded call",
        "stubborn iterable",
        "blocking iterable",
        "generator",
    ],
)
def test_a_second_ctrl_c_returns_whatever_is_stuck_and_says_what_was_left(
    tmp_path: Path, kind: str
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, kind],
        cwd=tmp_path,
        env=clean_environ(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "stuck\n"
            process.send_signal(signal.SIGINT)
            if kind not in ENDED_BY_ONE:
                # Signals that come at once are one.
                time.sleep(0.2)
                process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=LIMIT_S)
        finally:
            process.kill()
    unfinished = 0 if "iterable" in kind or kind == "generator" else 1
    assert out == f"returned {unfinished} True\n", err
    assert err == (f"abandoned: row 1: {SAID[kind]}\n" if kind in SAID else "")
    assert process.returncode == 0


def test_a_template_that_never_ends_is_interrupted_in_the_command(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    write_rows(rows, 3)
    loop = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    flags = ["run", str(rows), "--prompt", loop + "{{ text }}", "--model", "m", "--endpoint", "sim"]
    with started([*flags, "-o", "labels.jsonl", "-q"], cwd=tmp_path) as process:
        while not (tmp_path / "labels.jsonl").exists():
            assert process.poll() is None
        time.sleep(0.5)
        for _ in range(2):
            process.send_signal(signal.SIGINT)
            time.sleep(0.2)
        status, _, err = ended(process)
    assert status == 130, err
    assert "abandoned: row 1: it blocked the event loop" in err
    assert "Traceback" not in err


def stuck(value: object) -> object:
    threading.Event().wait(1000)
    return value


async def answer(row: dict[str, Any]) -> str:
    return "yes"


async def stubborn(row: dict[str, Any]) -> str:
    while True:
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            continue


@pytest.mark.parametrize(
    "options",
    [{"call": answer, "after": stuck}, {"call": answer, "before": stuck}, {"call": stubborn}],
    ids=["after", "before", "call"],
)
def test_the_deadline_of_a_run_holds_whatever_goes_on(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, options: dict[str, Any]
) -> None:
    rows = [{"n": number} for number in range(3)]
    report = redline.run(rows, **options, deadline_s=0.3, output=tmp_path / "labels.jsonl")
    assert "the run did not end within 0.3 s" in str(report.stopped)
    assert (report.offered, report.unfinished) == (3, 3)
    assert [line.partition(":")[0] for line in report.abandoned] == ["row 1", "row 2", "row 3"]
    assert capsys.readouterr().err == f"abandoned: {'; '.join(report.abandoned)}\n"
    assert redline.run(rows, call=answer, output=tmp_path / "labels.jsonl", force=True).is_complete


def test_a_call_that_ends_after_it_was_left_writes_nothing(tmp_path: Path) -> None:
    """The files of the run are closed by then."""
    release = asyncio.Event()

    async def late(row: dict[str, Any]) -> str:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                pass
        return "late"

    async def main() -> redline.Report:
        report = await redline.arun(
            [{"n": 1}], call=late, deadline_s=0.2, output=tmp_path / "labels.jsonl"
        )
        release.set()
        while len(asyncio.all_tasks()) > 1:  # noqa: ASYNC110, the tasks tell nobody
            await asyncio.sleep(0)
        return report

    report = asyncio.run(main())
    assert report.unfinished == 1
    assert report.abandoned == ["row 1: its call continues although it was cancelled"]
    assert (tmp_path / "labels.jsonl").read_bytes() == b""


def test_an_answer_is_saved_if_its_function_returned_before_it_was_left(tmp_path: Path) -> None:
    """It returns while the event loop is blocked; both are noticed in one turn."""
    is_ending = threading.Event()

    def after(output: str) -> str:
        is_ending.wait(LIMIT_S)
        return f"{output}, checked"

    async def call(row: dict[str, Any]) -> str:
        if row["n"] == 1:
            return "yes"
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            is_ending.set()
            # Until functions are left.
            time.sleep(0.3)
            raise
        return "no"

    path = tmp_path / "labels.jsonl"
    report = redline.run(
        [{"n": 1}, {"n": 2}], call=call, after=after, deadline_s=0.2, output=path, progress=False
    )
    assert (report.succeeded, report.unfinished, report.abandoned) == (1, 1, [])
    assert json.loads(path.read_text())["output"] == "yes, checked"


def test_a_cancelled_arun_returns_though_its_calls_go_on() -> None:
    release = asyncio.Event()

    async def late(row: dict[str, Any]) -> str:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                pass
        return "late"

    async def main() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(redline.arun([{"n": 1}], call=late), 0.2)
        release.set()
        while len(asyncio.all_tasks()) > 1:  # noqa: ASYNC110, the tasks tell nobody
            await asyncio.sleep(0)

    asyncio.run(main())


def test_a_notebooks_cell_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run is in a thread of its own there, which no signal reaches."""
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=object))
    release, calls = threading.Event(), threading.Semaphore(0)

    async def blocking(row: dict[str, Any]) -> str:
        calls.release()
        release.wait(LIMIT_S)
        return "yes"

    def interrupt() -> None:
        calls.acquire()
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.2)

    async def main() -> None:
        threading.Thread(target=interrupt).start()
        redline.run([{"n": 1}], call=blocking)

    runner = asyncio.new_event_loop()
    # As a notebook's kernel has it, whatever the tests before this one have left.
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt, match="abandoned: an operation that did not end"):
            runner.run_until_complete(main())
        assert not release.is_set()
    finally:
        signal.signal(signal.SIGINT, previous)
        release.set()
        runner.close()


async def rows_that_ignore_their_end() -> AsyncIterator[dict[str, int]]:
    yield {"n": 1}
    async for row in _endless():
        yield row


async def _endless() -> AsyncIterator[dict[str, int]]:
    while True:
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            continue
        yield {"n": 2}


def test_the_deadline_holds_for_an_iterable_that_ignores_its_cancellation(tmp_path: Path) -> None:
    report = redline.run(
        rows_that_ignore_their_end(), call=answer, deadline_s=0.3, output=tmp_path / "labels.jsonl"
    )
    assert report.succeeded == 1
    assert json.loads((tmp_path / "labels.jsonl").read_text())["output"] == "yes"


def test_what_an_abandoned_iterable_leaves_ends_silently_in_another_loop() -> None:
    async def collect() -> None:
        gc.collect()

    redline.run(rows_that_ignore_their_end(), call=answer, deadline_s=0.3)
    # An exception that is ignored here fails the test.
    asyncio.run(collect())
