"""`--trace`: what a run records of its calls, in every kind of run."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import redline
from redline.timeline import RecordedRun, Trace, TraceFile, read_trace
from support.members import MemberServer, serving

Cli = Callable[..., Any]
Rows = Callable[..., str]
TRACE = "calls.trace"


def traced() -> Trace:
    return read_trace(Path(TRACE), 100_000)


def only_run() -> RecordedRun:
    (run,) = traced().runs
    return run


def prompts(rows: Rows, count: int) -> str:
    return rows(*({"prompt": f"row {number}"} for number in range(count)))


def test_a_run_records_each_call(cli: Cli, rows: Rows) -> None:
    flags = ["--endpoint", "sim", "-c", "4", "-o", "out.jsonl", "--trace", TRACE]
    told = cli("run", prompts(rows, 50), *flags)
    assert told.status == 0
    run = only_run()
    assert [call.outcome for call in run.calls] == ["succeeded"] * 50
    assert (run.began.workers, run.began.balance) == (4, "")
    assert [(one.name, one.slots) for one in run.began.endpoints] == [("sim", 4)]
    lines = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    used = [line["usage"]["prompt_tokens"] for line in lines]
    assert sorted(used) == sorted(call.input_tokens or 0 for call in run.calls)
    for call in run.calls:
        (tried,) = call.tried
        assert tried.sent_s is not None
        assert 0 <= call.arrived_s <= tried.sent_s <= tried.done_s <= call.done_s
    assert "row 7" not in Path(TRACE).read_text()


def test_several_endpoints_are_named_with_what_is_stated_of_them(cli: Cli, rows: Rows) -> None:
    servers = [MemberServer(), MemberServer()]
    with serving(*servers):
        Path("redline.toml").write_text(
            f'[endpoints.a]\nbase_url = "{servers[0].url}"\nweight = 2\nrpm = 6000\n'
            f'[endpoints.b]\nbase_url = "{servers[1].url}"\nconcurrency = 3\n'
            "[prices.m]\ninput = 0.5\noutput = 1.5\n"
        )
        flags = ["--endpoint", "a", "--endpoint", "b", "--model", "m", "--trace", TRACE]
        told = cli("run", prompts(rows, 60), *flags, "-o", "out.jsonl")
    assert told.status == 0
    began = only_run().began
    a, b = began.endpoints
    assert (a.name, a.weight, a.requests, b.name, b.slots) == ("a", 2.0, ("6000/60s",), "b", 3)
    assert (a.input_price, b.output_price, began.balance) == (0.5, 1.5, "p2c")
    lines = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    answered = Counter(line["endpoint"] for line in lines)
    assert Counter(call.tried[-1].endpoint for call in only_run().calls) == answered


def test_cached_answers_are_no_calls(cli: Cli, rows: Rows) -> None:
    path = rows(*({"prompt": "the same"} for _ in range(10)))
    flags = ["--endpoint", "sim", "--cache", "--cache-dir", "kept", "--temperature", "0"]
    cli("run", path, *flags, "--trace", TRACE, "-o", "out.jsonl")
    assert traced().total == 1


def test_other_commands_record_as_well(cli: Cli, rows: Rows) -> None:
    path = rows({"text": "a"}, {"text": "b"})
    Path("schema.json").write_text('{"type": "object"}')
    flags = ["--schema", "schema.json", "--prompt", "{{ text }}", "--max-retries", "0"]
    cli("tag", path, *flags, "--endpoint", "sim", "--trace", TRACE, "-o", "out.jsonl")
    assert traced().total >= 2


def test_a_killed_run_has_a_trace_to_which_the_next_one_adds(rows: Rows) -> None:
    server = MemberServer(latency_s=0.05)
    path = prompts(rows, 200)
    flags = ["--endpoint", server.url, "--model", "m", "-c", "4", "-q", "-o", "out.jsonl"]
    command = [sys.executable, "-m", "redline", "run", path, *flags, "--trace", TRACE]
    with serving(server):
        process = subprocess.Popen(command)
        while not (Path(TRACE).exists() and traced_calls() > 20):
            assert process.poll() is None
            time.sleep(0.05)
        process.kill()
        process.wait()
        before = traced().total
        assert before < 200
        subprocess.run(command, check=True)
    trace = traced()
    assert len(trace.runs) == 2
    # What the first one had on its way is asked again; a second of its calls is lost at most.
    first, second = (len(run.calls) for run in trace.runs)
    assert first == before
    assert 200 - 120 <= first + second <= 200 + 4


def traced_calls() -> int:
    try:
        return traced().total
    except redline.RedlineError:
        return 0


def test_an_interrupted_run_writes_what_it_has(rows: Rows) -> None:
    server = MemberServer(latency_s=0.05)
    path = prompts(rows, 400)
    flags = ["--endpoint", server.url, "--model", "m", "-c", "4", "-q", "-o", "out.jsonl"]
    command = [sys.executable, "-m", "redline", "run", path, *flags, "--trace", TRACE]
    with serving(server):
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        while not (Path("out.jsonl").exists() and Path("out.jsonl").stat().st_size > 3000):
            assert process.poll() is None
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(20) == 130
    done = [call for call in only_run().calls if call.outcome == "succeeded"]
    assert len(done) == len(Path("out.jsonl").read_text().splitlines())


def test_in_python(tmp_path: Path) -> None:
    report = redline.run(["a", "b"], endpoint="sim", trace=tmp_path / "t", progress=False)
    assert report.succeeded == 2
    assert read_trace(tmp_path / "t", 10).total == 2


def test_in_redline_toml(cli: Cli, rows: Rows) -> None:
    Path("redline.toml").write_text(f'[run]\ntrace = "{TRACE}"\n')
    cli("run", prompts(rows, 3), "--endpoint", "sim")
    assert traced().total == 3


def test_a_place_that_cannot_be_written_is_refused_before_anything_is_sent(
    cli: Cli, rows: Rows
) -> None:
    flags = ["--endpoint", "sim", "-o", "out.jsonl", "--trace"]
    told = cli("run", prompts(rows, 3), *flags, "none/calls.trace")
    assert told.status == 2
    assert told.err.startswith("error: the trace cannot be written: No such file or directory\n")
    assert "where: --trace none/calls.trace\n" in told.err
    assert not Path("out.jsonl").exists()


@pytest.mark.parametrize("name", ["in", "out.jsonl", "out.failed.jsonl"])
def test_another_file_of_the_run_is_refused(cli: Cli, rows: Rows, name: str) -> None:
    path = prompts(rows, 3)
    before = Path(path).read_bytes()
    name = path if name == "in" else name
    told = cli("run", path, "--endpoint", "sim", "-o", "out.jsonl", "--trace", name)
    assert told.status == 2
    assert "the trace" in told.err
    assert "is the run's" in told.err
    assert Path(path).read_bytes() == before


def test_another_file_is_refused(cli: Cli, rows: Rows) -> None:
    Path("notes.txt").write_text("mine")
    told = cli("run", prompts(rows, 3), "--endpoint", "sim", "--trace", "notes.txt")
    assert told.status == 2
    assert told.err.startswith("error: notes.txt is not a trace\n")
    assert Path("notes.txt").read_text() == "mine"


def test_batches_have_no_trace(cli: Cli, rows: Rows) -> None:
    flags = ["--endpoint", "sim", "--via", "batch", "-o", "out.jsonl", "--trace", TRACE]
    told = cli("run", prompts(rows, 3), *flags)
    assert told.status == 2
    assert "batches and a trace of calls cannot be combined" in told.err


class Full(TraceFile):
    """A disk without room."""

    def write(self, records: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_disk_that_is_full_ends_the_trace_and_not_the_run(
    cli: Cli, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redline.job.build.TraceFile", Full)
    flags = ["--endpoint", "sim", "-o", "out.jsonl", "--trace", TRACE]
    told = cli("run", prompts(rows, 5), *flags)
    assert told.status == 0
    assert (
        f"the trace is incomplete (results are not affected): {TRACE} cannot be written: "
        "No space left on device\n" in told.summary
    )
