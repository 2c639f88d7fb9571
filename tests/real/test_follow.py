"""Files that are still written to, and pipes that never end, through the command line."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path

import pytest

from crash.killing import (
    PROMPT,
    await_lines,
    ended,
    ids,
    redline,
    run_flags,
    serving,
    started,
    write_rows,
)
from support.until import wait_until

pytestmark = pytest.mark.real


def row(number: int) -> str:
    return json.dumps({"custom_id": f"t-{number:05}", "text": f"message {number}"}) + "\n"


def append(path: Path, text: str) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(text)


def names(count: int) -> list[str]:
    return [f"t-{number:05}" for number in range(1, count + 1)]


def test_a_followed_file_is_answered_as_it_grows_and_a_rerun_goes_on(tmp_path: Path) -> None:
    rows, output = tmp_path / "rows.jsonl", tmp_path / "labels.jsonl"
    write_rows(rows, 3)
    with serving() as server:
        flags = run_flags(rows, output, server, "--follow")
        with started(flags) as process:
            await_lines(output, 3, process)
            append(rows, row(4)[:20])
            append(rows, row(4)[20:] + row(5)[:-1])
            await_lines(output, 4, process)
            append(rows, "\n")
            await_lines(output, 5, process)
            process.send_signal(signal.SIGTERM)
            status, _, err = ended(process)
        assert status == 130, err
        assert "5 rows = 5 succeeded + 0 failed + 0 unfinished" in err
        assert "--follow" in err.partition("continue with: ")[2]
        append(rows, row(6) + row(7)[:-1])
        with started(flags) as process:
            await_lines(output, 6, process)
            # A file that takes its name is gone on with; of the old one, the last row is done too.
            rows.rename(tmp_path / "rows.jsonl.1")
            rows.write_text(row(8))
            await_lines(output, 8, process)
            process.send_signal(signal.SIGINT)
            status, _, err = ended(process)
        assert status == 130, err
        assert sorted(ids(output)) == names(8)
        assert server.requests() == 8


def test_a_file_that_is_still_empty_is_followed_after_a_pipe(tmp_path: Path) -> None:
    rows, output = tmp_path / "rows.jsonl", tmp_path / "labels.jsonl"
    manifest = tmp_path / "labels.redline" / "manifest.json"
    with serving() as server:
        with started(run_flags(Path("-"), output, server), stdin=subprocess.PIPE) as process:
            assert process.stdin is not None
            process.stdin.write(row(1))
            process.stdin.close()
            assert process.wait(timeout=60) == 0
        rows.touch()
        with started(run_flags(rows, output, server, "--follow")) as process:
            wait_until(lambda: process.poll() or rows.name in manifest.read_text())
            append(rows, row(2))
            assert await_lines(output, 2, process) == 2
            process.send_signal(signal.SIGINT)
            assert ended(process)[0] == 130


def test_a_file_that_had_the_name_between_two_rotations_is_read(tmp_path: Path) -> None:
    rows, output = tmp_path / "rows.jsonl", tmp_path / "labels.jsonl"
    write_rows(rows, 1)
    with serving() as server:
        flags = run_flags(rows, output, server, "--follow")
        with started(flags) as process:
            await_lines(output, 1, process)
            for number in (2, 3):
                rows.rename(tmp_path / f"rows.jsonl.{number}")
                rows.write_text(row(number))
                # Longer than a look, and much shorter than a file is given to settle.
                time.sleep(0.2)
            await_lines(output, 3, process)
            process.send_signal(signal.SIGINT)
            status, _, err = ended(process)
        assert status == 130, err
        assert sorted(ids(output)) == names(3)


def test_a_file_that_is_cut_stops_the_run_with_all_that_it_did(tmp_path: Path) -> None:
    rows, output = tmp_path / "rows.jsonl", tmp_path / "labels.jsonl"
    write_rows(rows, 3)
    with serving() as server:
        flags = run_flags(rows, output, server, "--follow")
        with started(flags) as process:
            await_lines(output, 3, process)
            rows.write_text("")
            status, _, err = ended(process)
        assert status == 2, err
        assert f"error: {rows} was truncated to 0 bytes while it was being followed\n" in err
        assert "where: after 3 rows\n" in err
        assert sorted(ids(output)) == names(3)


def test_each_row_of_an_endless_pipe_is_answered_before_the_next_comes(tmp_path: Path) -> None:
    output = tmp_path / "labels.jsonl"
    with serving() as server:
        flags = run_flags(Path("-"), output, server)
        with started(flags, stdin=subprocess.PIPE) as process:
            assert process.stdin is not None
            for number in range(1, 6):
                process.stdin.write(row(number))
                process.stdin.flush()
                assert await_lines(output, number, process) == number
            process.send_signal(signal.SIGINT)
            status, _, err = ended(process)
        assert status == 130, err
        assert sorted(ids(output)) == names(5)


def test_results_on_stdout_come_one_by_one_as_well() -> None:
    with serving() as server:
        flags = ["run", "-", "--prompt", PROMPT, "--model", "m", "--base-url", server.base_url]
        with started([*flags, "-q"], stdin=subprocess.PIPE) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            for number in range(1, 4):
                process.stdin.write(row(number))
                process.stdin.flush()
                line = json.loads(process.stdout.readline())
                assert line["custom_id"] == f"t-{number:05}"
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=60) == 130


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-", "--follow"], "stdin is read until it ends, so it need not be followed"),
        (["s3://bucket/rows.jsonl", "--follow"], "cannot be followed: an object does not grow"),
        (["rows.csv", "--follow"], "rows.csv cannot be followed: only files of JSON lines can"),
        (["rows.csv", "--until-empty"], "only a stream is read until it is empty"),
    ],
)
def test_what_cannot_go_on_is_told(tmp_path: Path, words: list[str], message: str) -> None:
    (tmp_path / "rows.csv").write_text("text\na\n")
    told = redline("run", *words, "--prompt", "x", "--endpoint", "sim", cwd=tmp_path)
    assert told.returncode == 2
    assert message in told.stderr
