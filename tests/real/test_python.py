"""The Python door, against a real server: run, stream, Client; in scripts and in running loops."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import inspect
import itertools
import json
import multiprocessing
import pydoc
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_type_hints

import pytest

import redline
from redline.calls import FunctionBackend
from redline.job import build
from redline.job.settings import Keywords
from redline.sim import SimSettings, parse_faults, parse_latency
from redline.sim.server import Sim
from redline.testing import ScriptedBackend
from support.simulated import simulated

ROWS = [{"prompt": f"hello {number}"} for number in range(60)]
CHAT = {"model": "m", "messages": [{"role": "user", "content": "count to three"}]}


def test_run_without_an_output_brings_the_outcomes_in_input_order() -> None:
    report = redline.run(ROWS, endpoint="sim", model="m")
    assert [outcome.output for outcome in report.outcomes] == [
        f"You said: hello {number}" for number in range(60)
    ]
    assert [outcome.row for outcome in report.outcomes] == list(range(1, 61))
    assert (report.offered, report.succeeded, report.failed, report.unfinished) == (60, 60, 0, 0)


def test_run_writes_resumes_and_reports(tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    first = redline.run(ROWS, endpoint="sim", model="m", output=output, limit=25)
    second = redline.run(ROWS, endpoint="sim", model="m", output=output)
    assert (first.succeeded, second.succeeded, second.skipped) == (25, 35, 25)
    assert second.is_complete
    assert len(output.read_text().splitlines()) == 60


@pytest.mark.parametrize("params", [{"logit_bias": {50256: -100}}, {"stop": ("a", "b")}])
def test_params_that_json_writes_otherwise_are_the_same_settings_again(
    params: dict[str, Any], tmp_path: Path
) -> None:
    output, rows = tmp_path / "out.jsonl", [*ROWS[:2], {"nothing": "to send"}]

    def labels(rows: object) -> redline.Report:
        return redline.run(rows, endpoint="sim", model="m", params=params, output=output)

    # A failure under other settings would be tried again.
    assert labels(rows[2:]).failed == 1
    assert labels(rows[2:]).skipped == 1
    assert labels(rows).succeeded == 2
    assert labels(rows).skipped == 3


async def test_run_refuses_to_block_a_running_loop_and_arun_leaves_it_free(tmp_path: Path) -> None:
    with pytest.raises(redline.ConfigError, match="would block the running event loop") as caught:
        redline.run(ROWS[:5], endpoint="sim", model="m", output=tmp_path / "out.jsonl")
    assert "await redline.arun(...)" in caught.value.hint
    assert list(tmp_path.iterdir()) == []
    turns = 0

    async def handle_others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    others = asyncio.create_task(handle_others())
    report = await redline.arun(ROWS[:5], endpoint="sim", model="m")
    others.cancel()
    assert turns > 5
    assert [outcome.output for outcome in report.outcomes] == [
        f"You said: hello {number}" for number in range(5)
    ]


async def test_a_cancelled_arun_keeps_what_is_done_and_is_continued(tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    stuck = asyncio.Event()

    async def answer(row: dict[str, int]) -> int:
        if row["n"] == 3 and not stuck.is_set():
            stuck.set()
            await asyncio.Event().wait()
        return row["n"]

    rows = [{"n": number} for number in range(6)]
    running = asyncio.create_task(redline.arun(rows, call=answer, output=output, concurrency=1))
    await stuck.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert len(output.read_text().splitlines()) == 3

    report = await redline.arun(rows, call=answer, output=output)
    assert (report.skipped, report.succeeded, report.is_complete) == (3, 3, True)
    assert report.outcomes == []


async def test_an_arun_that_is_cancelled_again_and_again_writes_nothing_afterwards(
    tmp_path: Path,
) -> None:
    begun, release = threading.Event(), threading.Event()

    async def answer(row: dict[str, int]) -> int:
        return row["n"]

    def hold(output: object) -> object:
        begun.set()
        release.wait(30)
        return output

    rows = [{"n": number} for number in range(4)]
    keywords: dict[str, Any] = {"call": answer, "output": tmp_path / "out.jsonl"}
    keywords["trace"] = tmp_path / "calls.trace"
    running = asyncio.create_task(redline.arun(rows, after=hold, **keywords))
    assert await asyncio.to_thread(begun.wait, 30)
    # As anyio does it, in each turn of the loop.
    while not running.done():
        running.cancel()
        await asyncio.sleep(0)
    with contextlib.ExitStack() as stack:
        # They get the descriptors of the files that the run has closed.
        others = [tmp_path / f"other-{number}" for number in range(16)]
        for path in others:
            stack.enter_context(path.open("wb"))
        release.set()
        await asyncio.sleep(0.3)
        assert [path.read_bytes() for path in others] == [b""] * len(others)
    # The trace is free as well.
    report = await redline.arun(rows, **keywords)
    assert (report.succeeded, report.is_complete) == (4, True)


async def test_an_arun_that_is_cancelled_again_and_again_leaves_no_file_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, opened = threading.Event(), threading.Event()
    open_journal = build.open_journal

    def open_slowly(*given: Any) -> Any:
        begun.set()
        time.sleep(0.2)
        found = open_journal(*given)
        opened.set()
        return found

    async def answer(row: dict[str, int]) -> int:
        return row["n"]

    monkeypatch.setattr(build, "open_journal", open_slowly)
    keywords: dict[str, Any] = {"call": answer, "output": tmp_path / "out.jsonl"}
    running = asyncio.create_task(redline.arun([{"n": 1}], **keywords))
    assert await asyncio.to_thread(begun.wait, 30)
    while not running.done():
        running.cancel()
        await asyncio.sleep(0)
    assert opened.is_set()
    assert (await redline.arun([{"n": 1}], **keywords)).succeeded == 1


async def test_an_arun_that_is_cancelled_again_and_again_leaves_no_task() -> None:
    begun = asyncio.Event()

    async def rows() -> AsyncIterator[dict[str, int]]:
        yield {"n": 1}
        await asyncio.Event().wait()

    async def answer(row: dict[str, int]) -> None:
        begun.set()

    running = asyncio.create_task(redline.arun(rows(), call=answer))
    await begun.wait()
    while not running.done():
        running.cancel()
        await asyncio.sleep(0)
    await asyncio.sleep(0.1)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_run_works_inside_a_running_loop_of_a_notebook(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # What a notebook cell does: a blocking call while the kernel's loop runs.
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=object))
    assert redline.run(ROWS[:5], endpoint="sim", model="m").succeeded == 5
    # IPython is imported, as by a debugger, but there is no notebook.
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: None))
    with pytest.raises(redline.ConfigError, match="would block"):
        redline.run(ROWS[:5], endpoint="sim", model="m")


def test_a_report_prints_in_one_line_and_an_outcome_without_its_body(tmp_path: Path) -> None:
    rows = [{"prompt": "word " * 300}] * 500
    report = redline.run(rows, endpoint="sim", model="m", output=tmp_path / "out.jsonl")
    assert repr(report) == (
        "Report(offered=500, succeeded=500, failed=0, unfinished=0, skipped=0, "
        f"output={str(tmp_path / 'out.jsonl')!r})"
    )
    report = redline.run(rows, endpoint="sim", model="m")
    assert len(report.outcomes) == 500
    assert repr(report) == "Report(offered=500, succeeded=500, failed=0, unfinished=0, skipped=0)"
    assert repr(report.outcomes[2]).startswith("Outcome(row=3, status='succeeded', output='You sa")
    assert len(repr(report.outcomes[2])) < 300
    assert len(repr(report.outcomes[2].reply)) < 500
    failed = redline.run([{"nothing": "to send"}], endpoint="sim", model="m").outcomes[0]
    assert repr(failed).startswith("Outcome(row=1, status='rejected', error=")


def test_outcomes_are_never_optional_and_help_lists_every_option() -> None:
    assert get_type_hints(redline.Report)["outcomes"] == list[redline.Outcome]
    for function in (redline.run, redline.arun, redline.stream):
        shown = pydoc.render_doc(function, renderer=pydoc.plaintext)
        named = re.findall(r"^        (\w+) \(.+\): .{9}", shown, re.M)
        assert set(named) == set(Keywords.__annotations__), function
        parameters = inspect.signature(function).parameters
        assert [*parameters] == ["rows", *named]


def test_run_works_in_a_thread_without_a_loop() -> None:
    reports: list[redline.Report] = []
    thread = threading.Thread(
        target=lambda: reports.append(redline.run(ROWS[:5], endpoint="sim", model="m"))
    )
    thread.start()
    thread.join(timeout=30)
    assert [report.succeeded for report in reports] == [5]


def test_a_run_in_a_thread_continues_after_the_main_thread_has_ended(tmp_path: Path) -> None:
    code = """if True:
        import asyncio, threading, redline

        async def call(row):
            while threading.main_thread().is_alive():
                await asyncio.sleep(0.01)
            return row["n"]

        def run():
            rows = [{"n": number} for number in range(3)]
            print(redline.run(rows, call=call, output="out.jsonl").succeeded)

        threading.Thread(target=run).start()
    """
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("3\n", "")


def test_a_users_coroutine_is_called_with_the_row_and_its_errors_are_that_rows() -> None:
    async def double(row: dict[str, int]) -> int:
        await asyncio.sleep(0)
        if row["n"] == 3:
            raise KeyError("three")
        return 2 * row["n"]

    report = redline.run([{"n": number} for number in range(6)], call=double)
    assert [outcome.output for outcome in report.outcomes] == [0, 2, 4, None, 8, 10]
    error = report.outcomes[3].error
    assert isinstance(error, redline.errors.Rejected)
    assert "KeyError: 'three'" in error.what
    assert "<iterable>:4" in error.where


async def echo(row: dict[str, Any]) -> Any:
    await asyncio.sleep(0.001)
    return row["prompt"]


async def test_a_run_needs_none_of_the_threads_of_the_users_own_pool(tmp_path: Path) -> None:
    loop, may_end = asyncio.get_running_loop(), threading.Event()
    loop.set_default_executor(ThreadPoolExecutor(1))
    busy = loop.run_in_executor(None, may_end.wait, 60)
    try:
        async with asyncio.timeout(20):
            output = tmp_path / "out.jsonl"
            report = await redline.arun(ROWS, call=echo, output=output, cache=False, ordered=True)
            assert report.succeeded == 60
            async with redline.stream(ROWS, call=echo) as outcomes:
                assert len([outcome async for outcome in outcomes]) == 60
            with simulated() as sim:
                for number, via in enumerate((None, "batch")):
                    output = tmp_path / f"{number}.jsonl"
                    report = await redline.arun(
                        ROWS, endpoint=sim.base_url, model="m", via=via, output=output
                    )
                    assert report.succeeded == 60
    finally:
        may_end.set()
        await busy


def test_a_run_ends_although_the_threads_of_its_calls_do_not() -> None:
    may_end = threading.Event()

    async def call(row: dict[str, Any]) -> None:
        await asyncio.to_thread(may_end.wait, 60)

    begun_s = time.monotonic()
    try:
        report = redline.run(ROWS, call=call, timeout_s=0.1, concurrency=60, max_retries=0)
    finally:
        may_end.set()
    assert report.failed == 60
    assert time.monotonic() - begun_s < 20


async def block_at_once(row: int) -> int:
    time.sleep(0.1)
    return row


async def block_and_wait(row: int) -> int:
    time.sleep(0.1)
    await asyncio.sleep(0.001)
    return row


def block_without_await(row: int) -> int:
    time.sleep(0.1)
    return row


def test_a_cancellation_that_a_call_raises_in_a_group_leaves_its_row_to_the_next_run() -> None:
    async def call(row: Any) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError as error:
            raise BaseExceptionGroup("tasks", [error]) from None

    report = redline.run(ROWS, call=call, deadline_s=0.15)
    assert (report.failed, report.unfinished) == (0, len(ROWS))


@pytest.mark.parametrize("call", [block_at_once, block_and_wait, block_without_await])
@pytest.mark.parametrize("settings", [{}, {"concurrency": 1}, {"rps": 1_000}])
def test_the_deadline_ends_a_run_whose_calls_block_the_event_loop(
    call: Any, settings: dict[str, Any]
) -> None:
    report = redline.run(ROWS, call=call, deadline_s=0.15, **settings)
    assert report.succeeded + report.failed <= 2
    assert "did not end within 0.15 s" in str(report.stopped)


@pytest.mark.parametrize("settings", [{}, {"concurrency": 1}])
def test_the_first_interrupt_ends_a_run_whose_calls_block_the_event_loop(
    settings: dict[str, Any],
) -> None:
    asked: list[dict[str, str]] = []

    async def call(row: dict[str, str]) -> None:
        asked.append(row)
        if len(asked) == 3:
            signal.raise_signal(signal.SIGINT)
        time.sleep(0.1)

    report = redline.run(ROWS, call=call, **settings)
    assert (len(asked), report.succeeded, report.interrupted) == (3, 3, True)


@pytest.mark.skipif(sys.platform != "linux", reason="processes are forked")
def test_a_run_works_in_a_process_that_was_forked_after_a_run(tmp_path: Path) -> None:
    redline.run(ROWS[:3], call=echo, output=tmp_path / "parent.jsonl")
    output = tmp_path / "child.jsonl"
    asked = {"call": echo, "output": output}
    child = multiprocessing.get_context("fork").Process(
        target=redline.run, args=(ROWS,), kwargs=asked
    )
    child.start()
    child.join(30)
    child.kill()
    assert child.exitcode == 0
    assert len(output.read_text().splitlines()) == 60


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("error", [asyncio.CancelledError, type("Panic", (BaseException,), {})])
def test_an_input_may_raise_anything_and_the_run_says_so(
    error: type[BaseException], *, is_async: bool
) -> None:
    def rows() -> Iterator[dict[str, str]]:
        yield from ROWS[:3]
        raise error("boom")

    async def arows() -> AsyncIterator[dict[str, str]]:
        for row in rows():
            yield row

    report = redline.run(arows() if is_async else rows(), call=echo)
    assert report.succeeded == 3
    assert not report.is_complete
    assert f"raised {error.__name__}: boom" in str(report.stopped)


async def from_a_group() -> AsyncIterator[str]:
    queue = asyncio.Queue[str]()

    async def produce() -> None:
        await queue.put("a")
        raise ConnectionError("gone")

    async with asyncio.TaskGroup() as group:
        group.create_task(produce())
        while True:
            yield await queue.get()


async def in_time() -> AsyncIterator[str]:
    async with asyncio.timeout(0.05):
        yield "a"
        await asyncio.Event().wait()


async def in_a_context() -> AsyncIterator[str]:
    variable = contextvars.ContextVar[str]("variable")
    token = variable.set("a")
    yield variable.get()
    variable.reset(token)


@pytest.mark.parametrize(
    ("rows", "reason"),
    [(from_a_group, "ConnectionError: gone"), (in_time, "TimeoutError"), (in_a_context, "None")],
)
async def test_an_async_generator_is_read_as_by_async_for(rows: Any, reason: str) -> None:
    async with asyncio.timeout(30):
        report = await redline.arun(rows(), call=echo)
    assert [outcome.output for outcome in report.outcomes] == ["a"]
    assert reason in str(report.stopped)


@pytest.mark.parametrize("where", ["rows", "before", "call", "batch"])
@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_an_exit_leaves_an_output_that_the_same_process_can_continue(
    tmp_path: Path, where: str, kind: type[BaseException]
) -> None:
    exits = {where}

    def leave_in(place: str) -> None:
        if place in exits:
            raise kind(3)

    def rows() -> Iterator[dict[str, str]]:
        yield from ROWS
        leave_in("rows")

    def before(row: dict[str, str]) -> dict[str, str]:
        if row == ROWS[30]:
            leave_in("before")
        return row

    async def call(row: dict[str, str]) -> str:
        if row == ROWS[30]:
            leave_in("call")
        return await echo(row)

    async def answers(rows: list[dict[str, str]]) -> list[Any]:
        if ROWS[30] in rows:
            leave_in("batch")
        return [await echo(row) for row in rows]

    def asked() -> Any:
        return redline.DynamicBatcher(answers, 4) if where == "batch" else call

    output = tmp_path / "out.jsonl"
    given = {"call": asked(), "before": before, "output": output, "concurrency": 4}
    # A loop of the user's, which cancels no tasks at its end.
    with contextlib.closing(asyncio.new_event_loop()) as loop:
        with pytest.raises(kind) as caught:
            loop.run_until_complete(redline.arun(rows(), **given))
        assert not asyncio.all_tasks(loop)
    assert caught.value.args == (3,)
    exits.clear()
    report = redline.run(rows(), call=asked(), before=before, output=output)
    assert report.succeeded + report.skipped == 60


@pytest.mark.parametrize("is_cell", [False, True])
def test_functions_and_iterables_see_the_callers_context_variables(
    monkeypatch: pytest.MonkeyPatch, *, is_cell: bool
) -> None:
    name = contextvars.ContextVar("name", default="-")

    def rows() -> Iterator[dict[str, str]]:
        # Set in one read and reset in another one.
        token = name.set("mine")
        yield {"prompt": name.get()}
        name.reset(token)
        yield {"prompt": name.get()}

    async def call(row: dict[str, str]) -> str:
        return row["prompt"] + name.get()

    def report() -> redline.Report:
        name.set("a")
        return redline.run(
            rows(),
            call=call,
            before=lambda row: {"prompt": row["prompt"] + name.get()},
            after=lambda output: output + name.get(),
            progress=False,
        )

    async def cell() -> redline.Report:
        return report()

    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=object))
    outcomes = (asyncio.run(cell()) if is_cell else report()).outcomes
    assert [outcome.output for outcome in outcomes] == ["mineaaa", "aaaa"]


def test_functions_before_and_after_run_off_the_loop() -> None:
    threads: set[str] = set()

    def before(row: dict[str, str]) -> dict[str, str]:
        threads.add(threading.current_thread().name)
        return {"prompt": row["word"].upper()}

    report = redline.run(
        [{"word": "a"}, {"word": "b"}],
        endpoint="sim",
        model="m",
        before=before,
        after=lambda output: output.removeprefix("You said: "),
    )
    assert [outcome.output for outcome in report.outcomes] == ["A", "B"]
    assert threading.main_thread().name not in threads


def test_an_unknown_option_is_refused_by_name() -> None:
    with pytest.raises(redline.ConfigError, match="unknown option: promt") as caught:
        redline.run(ROWS, promt="x")  # type: ignore[call-arg]
    assert caught.value.hint == "did you mean prompt?"


INTERRUPTED = """
import asyncio, os, redline, signal, sys, threading, types

sys.modules["IPython"] = types.SimpleNamespace(get_ipython=object)

async def slow(row):
    await asyncio.sleep(0.3)
    return row["n"]

async def cell():
    # As in a notebook: a blocking call inside a running loop, and Ctrl-C as KeyboardInterrupt.
    threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
    return redline.run(({"n": n} for n in range(100_000)), call=slow)

report = asyncio.new_event_loop().run_until_complete(cell())
print(report.interrupted, report.succeeded == report.offered - report.unfinished > 0)
"""


def test_an_interrupted_notebook_cell_gets_its_report() -> None:
    command = [sys.executable, "-c", INTERRUPTED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "True True\n", done.stderr


async def test_stream_gives_each_outcome_once_and_failures_as_data() -> None:
    rows = [*ROWS[:10], {"nothing": "to send"}]
    outcomes = [outcome async for outcome in redline.stream(rows, endpoint="sim", model="m")]
    assert sorted(outcome.row or 0 for outcome in outcomes) == list(range(1, 12))
    assert [outcome.row for outcome in outcomes if not outcome.is_success] == [11]


async def test_stream_of_an_endless_source_starts_at_once_and_ends_when_it_is_left() -> None:
    pulled = 0

    async def endless() -> AsyncIterator[dict[str, str]]:
        nonlocal pulled
        while True:
            pulled += 1
            yield {"prompt": f"row {pulled}"}

    seen = 0
    stream = redline.stream(endless(), endpoint="sim", model="m")
    async for outcome in stream:
        assert outcome.is_success
        seen += 1
        if seen == 300:
            break
    await stream.aclose()
    before = pulled
    await asyncio.sleep(0.1)
    assert pulled == before
    # Backpressure: what is read ahead is bounded by the workers and the queues.
    assert pulled < 300 + 2_000


def endless_answers(asked: list[int]) -> dict[str, Any]:
    """Rows without an end, each answered as soon as the loop has its turn."""

    async def call(row: dict[str, int]) -> int:
        asked.append(row["n"])
        await asyncio.sleep(0.001)
        return row["n"]

    return {"rows": ({"n": number} for number in itertools.count()), "call": call}


async def test_a_stream_ends_when_its_block_is_left_although_a_variable_holds_it(
    tmp_path: Path,
) -> None:
    asked: list[int] = []
    output = tmp_path / "out.jsonl"
    given = endless_answers(asked)
    async with redline.stream(given["rows"], call=given["call"], output=output) as outcomes:
        async for _ in outcomes:
            if len(asked) > 20:
                break
    asked_by_then = len(asked)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    # Its output is free: another run goes on from there.
    rows = [{"n": number} for number in range(asked_by_then)]
    report = await redline.arun(rows, call=given["call"], output=output)
    assert report.is_complete
    assert report.skipped > 0
    assert [outcome async for outcome in outcomes] == []


@pytest.mark.parametrize("leaves", [True, False], ids=["leaves", "reads on"])
async def test_a_reader_may_be_as_far_behind_as_it_can_be_when_the_run_ends(leaves: bool) -> None:
    # One that it has read, and the 256 that may wait for it.
    rows = [{"n": number} for number in range(257)]

    async def call(row: dict[str, int]) -> int:
        return row["n"]

    async with redline.stream(rows, call=call) as outcomes:
        seen = [(await anext(outcomes)).output]
        (run,) = (task for task in asyncio.all_tasks() if task.get_name() == "redline stream")
        await asyncio.wait([run], timeout=30)
        assert run.done()
        if not leaves:
            seen += [outcome.output async for outcome in outcomes]
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert sorted(seen) == (seen if leaves else [row["n"] for row in rows])


async def test_a_slow_reader_gets_each_answer_of_a_run_that_ends_at_its_deadline() -> None:
    asked: list[int] = []
    given = endless_answers(asked)
    outcomes = redline.stream(given["rows"], call=given["call"], deadline_s=1.0)
    seen = [(await anext(outcomes)).output]
    (run,) = (task for task in asyncio.all_tasks() if task.get_name() == "redline stream")
    await asyncio.wait([run], timeout=30)

    async def read_on() -> None:
        async for outcome in outcomes:
            seen.append(outcome.output)  # noqa: PERF401

    with pytest.raises(redline.errors.TimedOut):
        await read_on()
    # More than may wait for the reader: the workers waited with theirs.
    assert len(asked) > 257
    assert sorted(seen) == asked


async def test_an_error_in_a_streams_block_ends_its_run_and_passes() -> None:
    given = endless_answers([])

    async def fail() -> None:
        async with redline.stream(given["rows"], call=given["call"]) as outcomes:
            async for _ in outcomes:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_another_task_may_close_a_stream_that_waits() -> None:
    async def never(row: dict[str, int]) -> str:
        await asyncio.Event().wait()
        return "never"

    stream = redline.stream([{"n": 1}], call=never)

    async def read() -> list[redline.Outcome]:
        return [outcome async for outcome in stream]

    reading = asyncio.create_task(read())
    await asyncio.sleep(0.05)
    await stream.aclose()
    assert await reading == []
    await stream.aclose()
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_several_tasks_may_close_a_stream_at_once() -> None:
    stream = redline.stream(**endless_answers([]))
    await anext(stream)
    await asyncio.gather(stream.aclose(), stream.aclose())
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert [outcome async for outcome in stream] == []


async def test_a_cancellation_while_a_stream_ends_waits_until_its_output_is_free(
    tmp_path: Path,
) -> None:
    given, output = endless_answers([]), tmp_path / "out.jsonl"

    async def leave() -> None:
        async with redline.stream(given["rows"], call=given["call"], output=output) as outcomes:
            await anext(outcomes)

    leaving = asyncio.create_task(leave())
    while not any(task.get_name() == "redline stream's end" for task in asyncio.all_tasks()):  # noqa: ASYNC110
        await asyncio.sleep(0)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    report = await redline.arun([{"n": 0}], call=given["call"], output=output)
    assert report.is_complete


async def test_a_stream_may_have_several_readers() -> None:
    async def read(stream: AsyncIterator[redline.Outcome]) -> list[Any]:
        return [outcome.output async for outcome in stream]

    async with redline.stream(ROWS, call=echo) as outcomes:
        parts = await asyncio.gather(*(read(outcomes) for _ in range(3)))
    assert sorted(itertools.chain(*parts)) == sorted(row["prompt"] for row in ROWS)


async def test_a_cancelled_wait_does_not_end_a_stream() -> None:
    may_answer = asyncio.Event()

    async def call(row: dict[str, int]) -> int:
        await may_answer.wait()
        return row["n"]

    async with redline.stream([{"n": number} for number in range(3)], call=call) as outcomes:
        for _ in range(2):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(outcomes), 0.05)
        may_answer.set()
        assert sorted([outcome.output async for outcome in outcomes]) == [0, 1, 2]


async def test_a_stream_ends_once_nothing_refers_to_it() -> None:
    stream = redline.stream(**endless_answers([]))
    await anext(stream)
    del stream
    gc.collect()
    async with asyncio.timeout(30):
        while asyncio.all_tasks() != {asyncio.current_task()}:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_stream_with_an_output_gives_outcomes_and_keeps_them(tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    stream = redline.stream(ROWS, endpoint="sim", model="m", output=output)
    count = len([outcome async for outcome in stream])
    assert count == 60
    assert len(output.read_text().splitlines()) == 60


async def test_client_calls_and_returns_errors_as_data() -> None:
    async with Sim(SimSettings(api_key="right")) as sim:
        good = redline.Endpoint(base_url=sim.base_url, api_key="right")
        wrong = redline.Endpoint(base_url=sim.base_url, api_key="wrong")
        async with redline.Client(good) as client:
            outcome = await client.call(CHAT)
            vector = await client.call(
                redline.Request(url="/v1/embeddings", body={"model": "m", "input": "text"})
            )
        async with redline.Client(wrong) as client:
            refused = await client.call(CHAT)
            late = await client.call(CHAT, deadline_s=0)
    assert outcome.output == "You said: count to three"
    assert outcome.reply is not None
    assert outcome.reply.finish_reason == "stop"
    assert len(vector.output) == 8
    assert isinstance(refused.error, redline.errors.Refused)
    assert "in Python api_key" in refused.error.hint
    assert isinstance(late.error, redline.errors.TimedOut)
    assert "the call's deadline_s" in late.error.hint


@pytest.mark.parametrize("is_pool", [False, True])
async def test_a_closed_client_ends_its_calls_at_once_and_says_so(*, is_pool: bool) -> None:
    latency = parse_latency("30")
    async with Sim(SimSettings(latency=latency)) as sim:
        # One call is in flight, one waits for the limit, and two for a slot.
        limits = redline.Limits(requests="1/1h", concurrency=2)
        endpoint = redline.Endpoint(base_url=sim.base_url, limits=limits)
        client = redline.Client(redline.Pool([endpoint]) if is_pool else endpoint)
        calls = [asyncio.create_task(client.call(CHAT)) for _ in range(4)]
        async with asyncio.timeout(30):
            while not sim.stats()["in_flight"]:  # noqa: ASYNC110, the server tells nobody
                await asyncio.sleep(0.01)
        await client.aclose()
        async with asyncio.timeout(5):
            outcomes = [*await asyncio.gather(*calls), await client.call(CHAT)]
            with pytest.raises(redline.errors.Rejected, match="the client was closed"):
                await anext(client.stream(CHAT))
        assert sim.stats()["received"] == 1
    for outcome in outcomes:
        assert outcome.status == "rejected"
        assert "the client was closed" in str(outcome.error)
    assert [outcome.attempts for outcome in outcomes] == [1, 0, 0, 0, 0]


@pytest.mark.parametrize("endpoints", [1, 2])
@pytest.mark.parametrize("is_used", [False, True])
async def test_a_pool_that_another_client_closed_fails_its_calls_at_once(
    *, endpoints: int, is_used: bool
) -> None:
    async with Sim() as sim, Sim() as other:
        pool = redline.Pool([sim.base_url, other.base_url][:endpoints])
        async with redline.Client(pool) as client:
            if is_used:
                assert (await client.call(CHAT)).is_success
        async with asyncio.timeout(5), redline.Client(pool) as client:
            first = await client.call(CHAT)
            outcomes = [first, *await asyncio.gather(*(client.call(CHAT) for _ in range(20)))]
    for outcome in outcomes:
        assert outcome.status == "rejected"
        assert isinstance(outcome.error, redline.errors.NoEndpoint)
        assert outcome.error.what.endswith("the client was closed")
        assert "make a new one per Client" in outcome.error.hint


async def test_a_client_a_limiter_and_a_batcher_are_used_in_one_event_loop_at_a_time() -> None:
    client = redline.Client(ScriptedBackend([redline.Reply(output="here")]))
    assert (await client.call(CHAT)).is_success
    limiter = redline.Limiter("5/1s")

    async def stream() -> None:
        await anext(client.stream(CHAT))

    async def wait() -> None:
        async with limiter():
            pass

    async def answers(items: list[int]) -> list[int]:
        return items

    batcher = redline.DynamicBatcher(answers)
    await wait()
    assert await batcher(5) == 5
    for elsewhere in (client.call(CHAT), stream(), wait(), batcher(5)):
        with pytest.raises(redline.ConfigError, match="in two event loops at once"):
            await asyncio.to_thread(asyncio.run, elsewhere)
    assert (await client.call(CHAT)).is_success


def test_a_client_may_be_used_in_one_event_loop_after_another() -> None:
    client = redline.Client(ScriptedBackend([redline.Reply(output="here")]))
    for _ in range(2):
        assert asyncio.run(client.call(CHAT)).is_success


async def test_a_client_that_is_closed_twice_cancels_nothing_of_its_users() -> None:
    async def fails(row: Any) -> None:
        raise ConnectionError

    client = redline.Client(FunctionBackend(fails), retry=redline.RetryPolicy(base_s=60, cap_s=60))
    calls = [asyncio.create_task(client.call(CHAT)) for _ in range(4)]
    await asyncio.sleep(0.05)
    await asyncio.gather(client.aclose(), client.aclose())
    async with asyncio.timeout(5):
        outcomes = await asyncio.gather(*calls)
    assert {outcome.status for outcome in outcomes} == {"rejected"}
    assert not any(call.cancelling() for call in calls)


async def test_many_users_stream_at_once_and_none_disturbs_another() -> None:
    async def one(client: redline.Client, number: int) -> str:
        text = ""
        request = {"model": "m", "messages": [{"role": "user", "content": f"user {number}"}]}
        async for chunk in client.stream(request):
            text += chunk.text
            if number % 7 == 0:
                break  # a user who leaves in the middle
        return text

    settings = SimSettings(latency=parse_latency("0.01"), per_token_s=0.002)
    async with Sim(settings) as sim, redline.Client(sim.base_url) as client:
        texts = await asyncio.gather(*(one(client, number) for number in range(80)))
        for number, text in enumerate(texts):
            whole = f"You said: user {number}"
            assert text == whole or (number % 7 == 0 and whole.startswith(text))
        async with asyncio.timeout(30):
            while sim.stats()["in_flight"]:  # noqa: ASYNC110, the server tells nobody
                await asyncio.sleep(0.01)


async def test_a_stream_that_breaks_raises_and_is_not_tried_again_after_its_first_chunk() -> None:
    settings = SimSettings(faults=parse_faults(["half=1"]))
    async with Sim(settings) as sim, redline.Client(sim.base_url) as client:
        stream = client.stream(CHAT)
        texts: list[str] = []

        async def read() -> None:
            async for chunk in stream:
                texts.append(chunk.text)  # noqa: PERF401, what came before the break is wanted

        with pytest.raises(redline.errors.CallError):
            await read()
        if texts:
            assert sim.stats()["received"] == 1


async def test_a_cancelled_wait_for_a_chunk_does_not_make_half_an_answer_pass_for_a_whole_one() -> (
    None
):
    settings = SimSettings(latency=parse_latency("0.01"), per_token_s=0.05)
    async with Sim(settings) as sim, redline.Client(sim.base_url) as client:
        chunks = client.stream(CHAT)
        await anext(chunks)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(chunks), 0.001)
        with pytest.raises(redline.errors.Rejected, match="a wait for its next chunk"):
            await anext(chunks)
        await chunks.aclose()
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.parametrize("endpoint", [None, 3, ["http://h/v1"]])
def test_a_client_says_what_it_needs(endpoint: Any) -> None:
    with pytest.raises(redline.ConfigError, match="a client needs an Endpoint, a URL or a backend"):
        redline.Client(endpoint)


@pytest.mark.parametrize(
    ("request_", "needs"),
    [
        *((made, "a call needs a dict or a Request") for made in ("hello", None, [1])),
        *(
            (redline.Request(**{"raw": b"{}", name: value}), f"{name} must be {needed}")
            for name, value, needed in (
                ("raw", "{}", "bytes or None, not str"),
                ("url", None, "str, not NoneType"),
                ("headers", [("a", "b")], "Mapping, not list"),
                ("output_path", "usage.total_tokens", "tuple, not str"),
            )
        ),
    ],
)
async def test_a_call_says_what_it_needs(request_: Any, needs: str) -> None:
    async with redline.Client("http://h/v1") as client:
        with pytest.raises(redline.ConfigError, match=needs):
            await client.call(request_)
        with pytest.raises(redline.ConfigError, match=needs):
            await anext(client.stream(request_))


def test_results_of_a_run_are_plain_json_lines(tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    redline.run(ROWS[:3], endpoint="sim", model="m", output=output)
    line = json.loads(output.read_text().splitlines()[0])
    assert list(line) == [
        *("v", "hash", "custom_id", "row", "output", "tool_calls", "finish_reason", "usage"),
        *("model", "endpoint", "attempts", "latency_s", "crc"),
    ]


def test_a_process_pool_takes_the_work_after_a_call() -> None:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        report = redline.run(
            ROWS[:3], endpoint="sim", after=str.upper, executor=pool, progress=False
        )
    assert [outcome.output for outcome in report.outcomes] == [
        f"YOU SAID: HELLO {number}" for number in range(3)
    ]
