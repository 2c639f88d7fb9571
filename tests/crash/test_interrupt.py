"""Ctrl-C and SIGTERM: once drains, twice stops; either way the same command continues."""

from __future__ import annotations

import shlex
import signal
import subprocess
import time
from pathlib import Path

import pytest

from crash.killing import (
    COMMAND,
    await_lines,
    clean_environ,
    ended,
    ids,
    redline,
    run_flags,
    serving,
    started,
    write_rows,
)

pytestmark = pytest.mark.crash

ROWS = 40
BOTH = pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])


def continued(err: str) -> list[str]:
    """The words after `redline` of the command that the summary prints."""
    [line] = [line for line in err.splitlines() if line.startswith("continue with: ")]
    words = shlex.split(line.removeprefix("continue with: "))
    assert words[0] == "redline"
    return words[1:]


def assert_completes(words: list[str], output: Path, kept: bytes) -> None:
    assert redline(*words).returncode == 0
    assert output.read_bytes().startswith(kept)
    assert sorted(ids(output)) == [f"t-{number:05}" for number in range(1, ROWS + 1)]
    assert redline("verify", str(output)).stdout == f"verify: {ROWS} of {ROWS}, each once\n"


@BOTH
def test_one_signal_finishes_and_saves_what_is_in_flight(
    tmp_path: Path, number: signal.Signals
) -> None:
    rows, output = tmp_path / "rows.jsonl", tmp_path / "labels.jsonl"
    write_rows(rows, ROWS)
    with serving("--latency", "0.15-0.3") as server:
        flags = run_flags(rows, output, server, "-c", "8")
        with started(flags) as process:
            await_lines(output, 5, process)
            process.send_signal(number)
            status, _, err = ended(process)
        stats = server.stats()
        assert status == 130, err
        # All that was received was answered and saved: nothing was given up or asked in vain.
        assert stats["abandoned"] == 0
        assert stats["received"] == stats["answered"] == len(ids(output)) < ROWS
        assert "error" not in err
        assert_completes(continued(err), output, output.read_bytes())
        assert server.requests() == ROWS


@BOTH
def test_a_second_signal_gives_up_what_is_in_flight(tmp_path: Path, number: signal.Signals) -> None:
    rows, output = tmp_path / "rows.jsonl", tmp_path / "labels.jsonl"
    write_rows(rows, ROWS)
    with serving("--latency", "0.05", "--faults", "stall=0.2", "--seed", "3") as server:
        flags = run_flags(rows, output, server, "-c", "4")
        with started(flags) as process:
            # A stalled answer never comes: in the end all slots wait for one.
            await_lines(output, 1, process)
            before, now = -1, server.requests()
            while now != before:
                time.sleep(0.3)
                before, now = now, server.requests()
            process.send_signal(number)
            time.sleep(0.3)
            assert process.poll() is None, "the drain had nothing to wait for"
            process.send_signal(number)
            status, _, err = ended(process)
        assert status == 130, err
        assert "Traceback" not in err
    with serving() as fresh:
        words = continued(err)
        words[words.index("--base-url") + 1] = fresh.base_url
        assert_completes(words, output, output.read_bytes())


def test_rows_that_wait_to_be_tried_again_do_not_hold_up_the_drain(tmp_path: Path) -> None:
    rows, output = tmp_path / "rows.jsonl", tmp_path / "labels.jsonl"
    write_rows(rows, ROWS)
    with serving("--requests", "10/600s", "--latency", "0.01") as server:
        with started(run_flags(rows, output, server, "-c", "4")) as process:
            await_lines(output, 10, process)
            while not server.stats()["rejected"]:
                assert process.poll() is None
            process.send_signal(signal.SIGINT)
            status, _, err = ended(process)
        assert status == 130, err
        assert len(ids(output)) == 10
    with serving() as fresh:
        words = continued(err)
        words[words.index("--base-url") + 1] = fresh.base_url
        assert_completes(words, output, output.read_bytes())


def begun(flags: list[str]) -> subprocess.Popen[str]:
    """The command as users start it."""
    return subprocess.Popen(
        [*COMMAND, *flags],
        env=clean_environ(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@BOTH
def test_a_signal_while_the_run_begins_leaves_nothing_broken(
    tmp_path: Path, number: signal.Signals
) -> None:
    rows, output = tmp_path / "rows.jsonl", tmp_path / "labels.jsonl"
    write_rows(rows, ROWS)
    with serving("--latency", "0.01") as server:
        flags = run_flags(rows, output, server)
        statuses = set()
        # From the start of Python on, and from the end of the imports to the first requests.
        for step in range(8):
            with begun(flags) if step < 4 else started(flags) as process:
                time.sleep(0.06 * (step % 4))
                process.send_signal(number)
                status, _, err = ended(process)
                statuses.add(status)
            assert "a defect in redline" not in err
        assert statuses <= {0, 130, -number, 1}, statuses
        kept = output.read_bytes() if output.exists() else b""
        assert_completes(flags, output, kept)
