"""A disk that fills while results are written, and places that cannot be written."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import redline
from crash.hearing import hearing
from crash.killing import ids, sealed_lines, sim_flags, write_rows
from crash.killing import redline as command
from crash.small_disk import fill, mounted
from redline.errors import JournalError
from redline.job.outputs import resume
from redline.journal import Brief, journal

pytestmark = pytest.mark.crash

ROWS = [{"custom_id": f"t-{number:05}", "text": "words " * 20} for number in range(1, 61)]
# Runs the command line with the largest file bounded to the first argument's bytes.
BOUNDED = """
import resource, sys
from redline.cli import main
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv.pop(1)),) * 2)
main()
"""


def assert_stopped(
    reply: subprocess.CompletedProcess[str],
    output: Path,
    total: int,
    remedy: str = "make room on that disk",
) -> bytes:
    """Told clearly, with status 2; the lines on disk are whole and no fewer than it says."""
    assert reply.returncode == 2, reply.stderr
    assert "Traceback" not in reply.stderr
    assert f"error: cannot write {output}: " in reply.stderr
    assert f"hint: {remedy}, then run the same command again to continue" in reply.stderr
    assert "continue with: redline run" in reply.stderr
    saved = int(reply.stderr.split("saved: ")[1].split()[0])
    lines = sealed_lines(output)
    assert 0 < saved <= len(lines) < total
    return output.read_bytes()


def test_a_file_that_reaches_its_limit_stops_the_run_and_the_same_command_completes_it(
    tmp_path: Path,
) -> None:
    rows, output = tmp_path / "rows.jsonl", tmp_path / "labels.jsonl"
    write_rows(rows, 300)
    # Slow enough for several groups, of which the first ones fit.
    given = sim_flags(rows, output, "--rps", "300")
    reply = subprocess.run(
        [sys.executable, "-c", BOUNDED, "30000", *given],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    remedy = "raise `ulimit -f`, or move the output to a disk that allows larger files"
    kept = assert_stopped(reply, output, 300, remedy)
    assert command(*given).returncode == 0
    assert output.read_bytes().startswith(kept)
    assert sorted(ids(output)) == [f"t-{number:05}" for number in range(1, 301)]
    assert command("verify", str(output)).returncode == 0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "disk") as disk:
        yield disk


def test_a_full_disk_stops_the_run_and_the_same_command_completes_it(
    tmp_path: Path, small_disk: Path
) -> None:
    rows, output = tmp_path / "rows.jsonl", small_disk / "labels.jsonl"
    write_rows(rows, 100)
    (small_disk / "ballast").write_bytes(bytes(36_000))
    given = sim_flags(rows, output, "--rps", "200")
    kept = assert_stopped(command(*given), output, 100)
    (small_disk / "ballast").unlink()
    again = command(*given)
    assert again.returncode == 0, again.stderr
    assert output.read_bytes().startswith(kept)
    assert len(set(ids(output))) == len(ids(output)) == 100


def test_a_disk_that_is_full_from_the_start_is_told_at_once(
    tmp_path: Path, small_disk: Path
) -> None:
    rows, output = tmp_path / "rows.jsonl", small_disk / "labels.jsonl"
    write_rows(rows, 5)
    ballast = fill(small_disk)
    reply = command(*sim_flags(rows, output))
    assert reply.returncode == 2, reply.stderr
    assert "No space left on device" in reply.stderr
    assert "hint: make room" in reply.stderr
    ballast.unlink()
    assert command(*sim_flags(rows, output)).returncode == 0
    assert len(ids(output)) == 5


def test_a_disk_too_full_to_sort_leaves_the_results_and_sorts_them_later(
    tmp_path: Path, small_disk: Path
) -> None:
    rows, output = tmp_path / "rows.jsonl", small_disk / "labels.jsonl"
    write_rows(rows, 70)
    whole = rows.read_text()
    # The second half is done first, so that there is something to sort.
    rows.write_text("".join(whole.splitlines(keepends=True)[35:]))
    assert command(*sim_flags(rows, output)).returncode == 0
    rows.write_text(whole)
    given = sim_flags(rows, output, "--ordered")
    (small_disk / "ballast").write_bytes(bytes(16_000))
    reply = command(*given)
    assert reply.returncode == 2, reply.stderr
    assert f"error: cannot write {output}: No space left" in reply.stderr
    assert len(set(ids(output))) == 70
    assert not list(small_disk.glob("*.unfinished")), "the unfinished file still takes the room"
    (small_disk / "ballast").unlink()
    assert command(*given).returncode == 0
    assert ids(output) == [f"t-{number:05}" for number in range(1, 71)]


class Full:
    """A disk below `folder` that takes `room` bytes in all, the last of them in part of a write."""

    def __init__(self, folder: Path, room: int) -> None:
        self.folder = folder
        self.room = room
        self._write = os.write
        # A run writes from several threads.
        self._lock = threading.Lock()

    def write(self, fd: int, data: bytes) -> int:
        if not os.readlink(f"/proc/self/fd/{fd}").startswith(str(self.folder)):
            return self._write(fd, data)
        with self._lock:
            if not self.room:
                raise OSError(28, "No space left on device")
            written = self._write(fd, data[: self.room])
            self.room -= written
            return written


def error_of(work: Callable[[], redline.Report]) -> JournalError:
    """What stopped a run, at its beginning or later; its numbers must add up."""
    try:
        report = work()
    except JournalError as error:
        return error
    assert isinstance(report.stopped, JournalError)
    assert report.offered == report.succeeded + report.failed + report.unfinished
    assert report.unfinished > 0
    return report.stopped


@pytest.mark.parametrize("room", [0, 1, 700, 5000])
def test_what_was_acknowledged_before_the_disk_filled_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    output = tmp_path / "labels.jsonl"
    acknowledged: list[str | None] = []

    def hear(rows: list[Brief]) -> None:
        acknowledged.extend(row.custom_id for row in rows)

    async def call(row: dict[str, Any]) -> str:
        return str(row["text"])

    def work() -> redline.Report:
        return redline.run(ROWS, call=call, output=output, concurrency=2, progress=False)

    with monkeypatch.context() as patch:
        patch.setattr(journal, "GROUP_S", 0.0)
        patch.setattr(resume, "Journal", hearing(hear))
        patch.setattr(os, "write", Full(tmp_path, room + 300).write)
        stopped = error_of(work)
    assert stopped.hint.startswith("make room")
    assert set(ids(output)) >= set(acknowledged)
    assert work().is_complete
    assert sorted(ids(output)) == [row["custom_id"] for row in ROWS]


def test_an_output_that_cannot_be_written_is_refused_before_anything_is_sent(
    tmp_path: Path,
) -> None:
    rows = tmp_path / "rows.jsonl"
    write_rows(rows, 3)
    for output, said in [
        (tmp_path, f"the output {tmp_path} is a folder"),
        (tmp_path / "no" / "such" / "labels.jsonl", f"{tmp_path}/no/such does not exist"),
        (Path("/proc/labels.jsonl"), "/proc"),
        (rows / "labels.jsonl", str(rows)),
    ]:
        reply = command(*sim_flags(rows, output))
        assert reply.returncode == 2, f"{output}: {reply.stderr}"
        assert reply.stderr.startswith("error: "), reply.stderr
        assert said in reply.stderr
        assert "hint: " in reply.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows.jsonl"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_write_permission_is_refused(tmp_path: Path) -> None:
    rows, folder = tmp_path / "rows.jsonl", tmp_path / "locked"
    write_rows(rows, 3)
    folder.mkdir(mode=0o555)
    reply = command(*sim_flags(rows, folder / "labels.jsonl"))
    assert reply.returncode == 2
    assert "Permission denied" in reply.stderr
