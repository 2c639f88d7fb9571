"""`redline status`: of a job that runs, that has ended in each way, and of what is no job."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from redline.journal import Output, OutputLock
from redline.timeline import (
    TIMELINE_VERSION,
    LimitUse,
    RunEnd,
    RunFacts,
    Sketch,
    TimelineFile,
    Totals,
    Window,
)
from support.simulated import simulated
from support.terminal import OnTerminal

Cli = Callable[..., Any]


def timeline(
    output: Output,
    *,
    begun: float,
    end: RunEnd | None = None,
    slept_s: float = 0.0,
    in_flight: tuple[int, int] = (3, 16),
    **facts: Any,
) -> None:
    """A run of ten seconds that was bound by a limit.

    slept_s: of the machine, during the run. in_flight: calls, and the most of them.
    """
    output.state_path.mkdir(exist_ok=True)
    file = TimelineFile(output.state_path / "timeline.jsonl")
    file.begin(RunFacts(v=TIMELINE_VERSION, at=begun, pid=2**22 + 1, host="h", **facts))
    windows = [
        Window(
            begin_s=float(second),
            end_s=second + 1.0,
            samples=10,
            answered=20,
            done=20,
            failed=int(second == 4),
            output_tokens=60,
            in_flight=float(in_flight[0]),
            slots=float(in_flight[1]),
            waiting=13.0,
            held={"limit": 10},
            limits=(LimitUse("1,200 requests/min", 10, 200, 1200, 60.0),),
            errors={4: {"server_failed": 1}, 9: {"cancelled": 64}}.get(second, {}),
            error="HTTP 500: it broke" if second == 4 else "",
            latency=Sketch.of([0.1] * 19 + [1.5]),
            totals=Totals(
                rows=1000,
                done=20 * second + 20,
                failed=1,
                output_tokens=60 * second,
                spent_usd=0.25,
            ),
        )
        for second in range(10)
    ]
    file.add(windows, begun + 10)
    if end is not None:
        file.end(end)
    file.close()
    written = begun + 10 + slept_s
    os.utime(file.path, (written, written))


def test_a_job_that_runs_is_shown_with_what_binds(cli: Cli, tmp_path: Path) -> None:
    output = Output.at("out.jsonl")
    timeline(output, begun=time.time() - 10)
    with OutputLock(output):
        told = cli("status", "out.jsonl")
        found = json.loads(cli("status", "out.jsonl", "--json").out)
    assert told.status == 0
    lines = told.out.splitlines()
    assert lines[0] == "out.jsonl: running for 10 s, process 4194305"
    assert lines[1] == "rows     1,000 rows: 200 done, 1 failed, 799 left"
    assert lines[2].startswith("speed    20.1 rows/s, 60.0 tokens/s, 3 of 16 calls in flight, ETA")
    assert lines[3] == "limits   200/1,200 requests/min  <- binds"
    assert lines[4].startswith("latency  p50 99 ms, p95 ")
    # Attempts that an interruption ended are no errors.
    assert "errors   1 server_failed; the last: HTTP 500: it broke" in lines
    assert any(line.startswith("binds    1,200 requests/min, for 10 s: 13 calls") for line in lines)
    assert "so far   bound by 1,200 requests/min for 100 % of the time" in lines
    assert (found["state"], found["left"], found["binding"]["cause"]) == ("running", 799, "limit")
    assert found["errors"] == {"server_failed": 1}
    assert found["rows_per_s"] == pytest.approx(20.1)


def test_limits_that_a_search_has_left_behind_are_not_shown(cli: Cli) -> None:
    output = Output.at("out.jsonl")
    output.state_path.mkdir()
    file = TimelineFile(output.state_path / "timeline.jsonl")
    file.begin(RunFacts(v=TIMELINE_VERSION, at=time.time() - 3, pid=2**22 + 1, host="h"))
    tried = [(71, 1), (28, 51), (52, 63)]
    windows = [
        Window(
            begin_s=float(second),
            end_s=second + 1.0,
            samples=10,
            held={"limit": 10},
            limits=(LimitUse(f"{count} requests/s", 0, used, count, 1.0),),
        )
        for second, (used, count) in enumerate(tried)
    ]
    file.add(windows, time.time())
    file.close()
    lines = cli("status", "out.jsonl").out.splitlines()
    assert "limits   52/63 requests/s" in lines
    assert not any("71/1 " in line or "28/51 " in line for line in lines)


@pytest.mark.parametrize(("calls", "words"), [(0, "0 calls in flight"), (1, "1 call in flight")])
def test_calls_in_flight_are_shown_without_a_bound(cli: Cli, calls: int, words: str) -> None:
    output = Output.at("out.jsonl")
    timeline(output, begun=time.time() - 10, in_flight=(calls, 0))
    with OutputLock(output):
        told = cli("status", "out.jsonl")
    assert told.out.splitlines()[2].startswith(f"speed    20.1 rows/s, 60.0 tokens/s, {words}, ETA")


@pytest.mark.parametrize(
    ("end", "status", "words"),
    [
        (RunEnd(at_s=10, how="finished"), 0, "finished at "),
        (RunEnd(at_s=10, how="interrupted"), 1, "the same command resumes the run"),
        (RunEnd(at_s=10, how="stopped", what="it refuses."), 1, "it refuses; the same command"),
        (None, 1, "process 4194305 died at "),
    ],
)
def test_a_job_that_does_not_run_is_shown_as_it_ended(
    cli: Cli, end: RunEnd | None, status: int, words: str
) -> None:
    output = Output.at("out.jsonl")
    timeline(output, begun=time.time() - 100, end=end)
    with OutputLock(output):
        pass
    told = cli("status", "out.jsonl", "--watch")
    assert told.status == status
    assert words in told.out.replace("\n", " ")
    assert "<- binds" not in told.out


def test_a_run_that_records_nothing_is_said_to_hang(cli: Cli) -> None:
    output = Output.at("out.jsonl")
    timeline(output, begun=time.time() - 72)
    with OutputLock(output):
        told = cli("status", "out.jsonl")
    text = told.out.replace("\n", " ")
    assert "it has recorded nothing for 1 m 02 s: it is suspended or hangs" in text


def test_a_run_that_reads_what_is_done_before_it_records_is_not_the_last_one(cli: Cli) -> None:
    output = Output.at("out.jsonl")
    timeline(output, begun=time.time() - 100, end=RunEnd(at_s=10, how="interrupted"))
    with OutputLock(output):
        told = cli("status", "out.jsonl")
    text = told.out.replace("\n", " ")
    assert told.status == 0
    assert text.startswith("out.jsonl: interrupted at ")
    assert "a process still holds the output: it is ending this run or beginning another" in text
    assert "hangs" not in text
    assert "of 16 calls in flight" not in text


def test_a_run_is_not_said_to_hang_because_the_machine_has_slept(cli: Cli) -> None:
    output = Output.at("out.jsonl")
    timeline(output, begun=time.time() - 10_000, slept_s=9_990)
    with OutputLock(output):
        told = cli("status", "out.jsonl")
    assert "running for " in told.out
    assert "it has recorded nothing" not in told.out.replace("\n", " ")
    found = json.loads(cli("status", "out.jsonl", "--json").out)
    assert (found["state"], found["seen"]) == ("dead", pytest.approx(time.time(), abs=60))


def test_an_ended_run_ended_when_the_clock_said_so(cli: Cli) -> None:
    end = RunEnd(at_s=10, how="finished", at=time.time() - 50)
    timeline(Output.at("out.jsonl"), begun=time.time() - 10_000, end=end, slept_s=9_990)
    assert json.loads(cli("status", "out.jsonl", "--json").out)["seen"] == end.at


@pytest.mark.parametrize(
    ("has_budget", "spent"), [(False, "$0.2500 by this run"), (True, "$0.2500"), (None, "$0.2500")]
)
def test_what_one_of_several_runs_has_spent_is_said_to_be_its_own(
    cli: Cli, has_budget: bool | None, spent: str
) -> None:
    output = Output.at("out.jsonl")
    timeline(output, begun=time.time() - 100)
    assert "spent    $0.2500" in cli("status", "out.jsonl").out.splitlines()
    timeline(output, begun=time.time() - 50, has_budget=has_budget)
    assert f"spent    {spent}" in cli("status", "out.jsonl").out.splitlines()


def test_watching_on_a_terminal_shows_the_latest_state_alone(tmp_path: Path) -> None:
    output = Output.at("out.jsonl")
    timeline(output, begun=time.time() - 10)
    command = [sys.executable, "-m", "redline", "status", "out.jsonl", "--watch"]
    with OnTerminal(command, columns=100) as shown:
        with OutputLock(output):
            shown.until(lambda lines: bool(lines) and "running for" in lines[0])
        assert shown.end() == 1
    assert "process 4194305 died" in shown.screen.lines[0]
    assert "running for" not in "\n".join(shown.screen.lines)


def test_it_is_readable_on_60_columns(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    timeline(Output.at("out.jsonl"), begun=time.time() - 100)
    assert max(map(len, cli("status", "out.jsonl").out.splitlines())) <= 60


@pytest.mark.parametrize(
    ("files", "what", "hint"),
    [
        ({}, "out.jsonl does not exist", "pass the file that the run was given with -o"),
        ({"outs.jsonl": ""}, "out.jsonl does not exist", "did you mean outs.jsonl?"),
        (
            {"out.jsonl": "{}"},
            "out.jsonl is not the output of a run",
            "pass what the run was given with -o, in the folder where it ran",
        ),
        (
            {"out.redline/manifest.json": "{}"},
            "it was removed, or an older redline ran the job",
            "the next run with this output",
        ),
        ({"out.redline/timeline.jsonl": ""}, "holds no run", "as soon as it begins"),
        ({"out.redline/timeline.jsonl": "x\0\n"}, "is not a timeline", "move the file aside"),
        ({"out.redline/timeline.jsonl": '{"kind":"run","v":9}\n'}, "has version 9", "newer one"),
    ],
)
def test_what_is_no_job_is_said_with_what_to_do(
    cli: Cli, files: dict[str, str], what: str, hint: str
) -> None:
    for name, text in files.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(text)
    told = cli("status", "out.jsonl")
    assert told.status == 2
    assert what in told.err
    assert hint in told.err


@pytest.mark.parametrize("command", ["status", "report"])
def test_a_path_below_a_file_does_not_exist(cli: Cli, command: str) -> None:
    Path("in.csv").write_text("text\na\n")
    told = cli(command, "in.csv/out.jsonl")
    assert told.status == 2
    assert told.err.startswith("error: in.csv/out.jsonl does not exist\n")


@pytest.mark.slow
def test_a_killed_job_is_recognized_and_asking_does_not_keep_another_run_out(
    tmp_path: Path,
) -> None:
    redline = [sys.executable, "-m", "redline"]
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a"}\n{"prompt": "b"}\n' * 500)

    def status() -> tuple[int, dict[str, Any]]:
        told = subprocess.run(
            [*redline, "status", "out.jsonl", "--json"],
            cwd=tmp_path, capture_output=True, text=True, check=False,
        )  # fmt: skip
        return told.returncode, json.loads(told.stdout) if told.stdout else {}

    with simulated("--latency", "0.05") as sim:
        command = [*redline, "run", "rows.jsonl", "--base-url", sim.base_url, "--model", "m"]
        command += ["-c", "4", "-q", "-o", "out.jsonl"]
        run = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL)
        try:
            found: dict[str, Any] = {}
            deadline = time.monotonic() + 30
            while not found.get("totals", {}).get("done"):
                assert time.monotonic() < deadline
                status_code, found = status()
            assert (status_code, found["state"], found["pid"]) == (0, "running", run.pid)
        finally:
            run.send_signal(signal.SIGKILL)
            run.wait()
        status_code, dead = status()
        assert (status_code, dead["state"], dead["pid"]) == (1, "dead", run.pid)
        assert found["seen"] <= dead["seen"] <= time.time()
        assert dead["totals"]["rows"] == 1000
        assert 0 < dead["totals"]["done"] <= len((tmp_path / "out.jsonl").read_bytes().splitlines())
        command[command.index("-c") + 1] = "200"
        assert subprocess.run(command, cwd=tmp_path, stderr=subprocess.DEVNULL).returncode == 0
    status_code, done = status()
    assert (status_code, done["state"], done["runs"], done["left"]) == (0, "finished", 2, 0)
    assert done["totals"]["done"] == 1000
