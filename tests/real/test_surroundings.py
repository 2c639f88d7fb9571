"""What surrounds the command may break: its terminal, its log's disk, its folder, its start."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import redline
from crash.killing import COMMAND, await_lines, clean_environ, sim_flags, write_rows


def run(flags: list[str], stderr: int) -> int:
    done = subprocess.run(
        [*COMMAND, *flags], stderr=stderr, env=clean_environ(), timeout=60, check=False
    )
    return done.returncode


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("flags", [[], ["--log", "json"]], ids=["text", "json"])
def test_a_full_disk_behind_stderr_changes_neither_work_nor_status(
    tmp_path: Path, flags: list[str]
) -> None:
    rows, output = tmp_path / "rows.jsonl", tmp_path / "labels.jsonl"
    write_rows(rows, 5)
    given = [*sim_flags(rows, output), *flags]
    given.remove("--quiet")
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        assert run(given, full) == 0
        assert output.read_bytes().count(b"\n") == 5
        # A row that fails, with its line on stderr, and an error before anything begins.
        rows.write_text('{"text": "one"}\n[]\n')
        given = ["run", str(rows), "--prompt", "{{ text }}", "--model", "m", "--endpoint", "sim"]
        assert run(given, full) == 1
        assert run(["run", str(tmp_path / "missing.jsonl"), "--model", "m"], full) == 2
    finally:
        os.close(full)


@pytest.mark.parametrize("flags", [[], ["--log", "json"]], ids=["bar", "json"])
def test_a_terminal_that_goes_away_changes_neither_work_nor_status(
    tmp_path: Path, flags: list[str]
) -> None:
    rows, output = tmp_path / "rows.jsonl", tmp_path / "labels.jsonl"
    write_rows(rows, 30)
    given = [*sim_flags(rows, output, "--rps", "30"), *flags]
    given.remove("--quiet")
    mine, theirs = pty.openpty()
    with subprocess.Popen(
        [*COMMAND, *given],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=clean_environ({"TERM": "xterm"}),
        start_new_session=True,
        # As nohup and disown leave it.
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    ) as process:
        os.close(theirs)
        await_lines(output, 5, process)
        os.close(mine)
        assert process.wait(60) == 0
    assert output.read_bytes().count(b"\n") == 30


def test_progress_in_python_outlives_its_stream(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with (tmp_path / "closed").open("w") as stream:
        pass
    monkeypatch.setattr(sys, "stderr", stream)
    report = redline.run([{"prompt": "a"}], endpoint="sim", model="m", progress=True)
    assert report.is_complete


def test_a_folder_that_was_removed_is_an_error_and_not_a_defect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = tmp_path / "rows.jsonl"
    write_rows(rows, 2)
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    for given in (["run", "rows.jsonl"], ["run", str(rows), "--endpoint", "sim"], ["verify", "x"]):
        done = subprocess.run([*COMMAND, *given], capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert done.stderr.startswith("error: the current folder cannot be used: No such file")
    with pytest.raises(redline.ConfigError, match="current folder cannot be used"):
        redline.run("rows.jsonl", endpoint="sim", model="m", output="labels.jsonl")


# `redline sim` that is interrupted at the first import of a module or, with "callback:" before its
# name, in the callback that releases the lock of that import, whose errors Python ignores.
INTERRUPTED = """
import signal, sys

kind, _, module = sys.argv[1].rpartition(":")
sys.argv[:2] = ["redline"]


def watch(frame, event, argument):
    if event == "call" and frame.f_code.co_name == "cb" and frame.f_locals.get("name") == module:
        sys.setprofile(None)
        signal.raise_signal(signal.SIGINT)


class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == module:
            sys.meta_path.remove(self)
            sys.setprofile(watch) if kind else signal.raise_signal(signal.SIGINT)


sys.meta_path.insert(0, Finder())
from redline.cli import main

main()
"""


# The first thread to be started takes a while, as on a busy machine.
SLOW_START = """
import threading, time


def start(thread, start=threading.Thread.start):
    threading.Thread.start = start
    start(thread)
    time.sleep(0.3)


threading.Thread.start = start
"""


def interrupted(moment: str, before: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", before + INTERRUPTED, moment, "sim"],
        capture_output=True,
        text=True,
        env=clean_environ(),
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    "module", ["msgspec", "redline.limits", "redline.job", "redline.sim.server"]
)
def test_ctrl_c_during_imports_is_one_line_and_the_status_of_an_interrupt(module: str) -> None:
    done = interrupted(module)
    assert (done.returncode, done.stdout, done.stderr.strip()) == (130, "", "interrupted")


@pytest.mark.parametrize("before", ["", SLOW_START], ids=["as it is", "slow threads"])
def test_ctrl_c_that_python_ignores_ends_the_command_all_the_same(before: str) -> None:
    """Before the server has started, as an interrupt, or after, as one of its end."""
    done = interrupted("callback:redline.sim.server", before)
    assert done.returncode in (0, 130)
    assert "ignored" not in done.stderr
