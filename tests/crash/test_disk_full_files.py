"""A disk that fills under another file of a run: what was acknowledged stays, and it goes on."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import redline
from crash.hearing import hearing
from crash.killing import ids, sealed_lines, sim_flags, write_rows
from crash.killing import redline as command
from crash.small_disk import fill, mounted
from redline.errors import JournalError, Rejected
from redline.job.outputs import resume, verify
from redline.journal import Brief, Output, results_file

pytestmark = pytest.mark.crash

ROWS = [{"custom_id": f"r{number:02}", "text": "words " * 40} for number in range(1, 25)]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "disk") as disk:
        yield disk


class Bench:
    """Runs to one output, some rows of which fail, and what they have acknowledged."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.output = folder / "labels.jsonl"
        self.failed = folder / "labels.failed.jsonl"
        self.bad: set[str] = set()
        self.asked: list[str] = []
        self.acknowledged: set[str] = set()
        self.fills_at, self.left_blocks = "", 0
        self.on_call: Callable[[str], None] = str

        def hear(rows: list[Brief]) -> None:
            self.acknowledged |= {str(row.custom_id) for row in rows}

        monkeypatch.setattr(resume, "Journal", hearing(hear))

    async def call(self, row: dict[str, Any]) -> str:
        self.asked.append(row["custom_id"])
        self.on_call(row["custom_id"])
        if row["custom_id"] == self.fills_at:
            fill(self.folder, self.left_blocks)
        if row["custom_id"] in self.bad:
            raise Rejected("told to fail")
        return "an answer of a few words" * 4

    def work(self, **options: Any) -> redline.Report:
        self.asked = []
        options = {"rows": ROWS, **options}
        return redline.run(
            options.pop("rows"), call=self.call, output=self.output,
            concurrency=1, progress=False, **options,
        )  # fmt: skip

    def make_room(self) -> None:
        self.fills_at = ""
        (self.folder / "ballast").unlink()

    def assert_stopped(self, report: redline.Report, path: Path) -> None:
        """Told clearly, and all that was acknowledged is there."""
        stopped = report.stopped
        assert isinstance(stopped, JournalError)
        assert stopped.what == f"cannot write {path}: No space left on device"
        assert stopped.hint.startswith("make room on that disk, then run the same command again")
        self.assert_kept()

    def assert_kept(self) -> None:
        there = set(ids(self.output)) | set(ids(self.failed))
        assert self.acknowledged <= there
        left = [path.name for path in self.folder.rglob("*unfinished*")]
        assert not left, f"takes the room that is wanted: {left}"

    def assert_whole(self, rows: object = ROWS) -> None:
        assert verify(Output(path=self.output), rows).is_whole
        assert len(ids(self.output) + ids(self.failed)) == len(ROWS)


@pytest.fixture
def bench(small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(small_disk, monkeypatch)


def test_the_failures_file(bench: Bench) -> None:
    bench.bad = {row["custom_id"] for row in ROWS}
    rows = ROWS[:1]
    assert bench.work(rows=rows).is_complete
    fill(bench.folder, left_blocks=2)
    report = bench.work()
    bench.assert_stopped(report, bench.failed)
    assert len(ids(bench.failed)) < len(ROWS)
    bench.make_room()
    done = set(ids(bench.failed))
    assert bench.work().is_complete
    assert not done & set(bench.asked)
    bench.assert_whole()


def test_the_manifest_when_a_run_begins(bench: Bench) -> None:
    fill(bench.folder)
    with pytest.raises(JournalError) as caught:
        bench.work()
    assert caught.value.what.endswith("manifest.json: No space left on device")
    assert caught.value.hint.startswith("make room")
    assert bench.asked == []
    bench.make_room()
    assert bench.work().is_complete
    bench.assert_whole()


def test_the_manifest_when_all_rows_are_done(bench: Bench) -> None:
    """The last line still finds room in its block; the note that the input is done does not."""
    bench.fills_at = ROWS[-1]["custom_id"]
    report = bench.work()
    bench.assert_stopped(report, bench.folder / "labels.redline" / "manifest.json")
    assert (report.succeeded, report.unfinished, report.is_complete) == (len(ROWS), 0, False)
    bench.make_room()
    assert bench.work().is_complete
    assert bench.asked == []
    bench.assert_whole()


def test_files_of_recent_sends_leave_the_room_to_results(bench: Bench) -> None:
    """They take more than this disk has, and matter only to a run that is killed."""
    assert bench.work(rps=10_000).is_complete
    bench.assert_whole()
    assert not list(bench.folder.rglob("*.sends")) + list(bench.folder.rglob("*.new"))


def test_no_file_can_be_made_any_more(bench: Bench) -> None:
    made = [bench.folder / f"file-{number}" for number in range(100)]
    with pytest.raises(OSError, match="No space left on device"):
        list(map(Path.touch, made))
    with pytest.raises(redline.RedlineError) as caught:
        bench.work()
    assert "No space left on device" in caught.value.what
    assert bench.asked == []
    for path in made:
        path.unlink(missing_ok=True)
    assert bench.work().is_complete
    bench.assert_whole()


def test_failures_that_are_written_anew_after_a_retry(bench: Bench) -> None:
    """There is room for the manifest, and not for the failures that stay, which are longer."""
    bench.bad = {"r02", "r05", "r20"}
    rows = [row | {"text": "word " * 1000} if row["custom_id"] == "r02" else row for row in ROWS]
    bench.work(rows=rows)
    bench.bad = {"r02"}
    bench.fills_at, bench.left_blocks = "r20", 1
    report = bench.work(rows=rows, retry_failed=True)
    bench.assert_stopped(report, bench.failed)
    assert {"r05", "r20"} <= set(ids(bench.output))
    bench.make_room()
    bench.work(rows=rows)
    assert bench.asked == []
    assert ids(bench.failed) == ["r02"]
    bench.assert_whole(rows)


@pytest.mark.parametrize("left_blocks", [0, 1, 2])
def test_lines_that_a_power_loss_left_are_moved_when_there_is_room(
    bench: Bench, left_blocks: int
) -> None:
    bench.work()
    data = bench.output.read_bytes()
    hurt = data[:100] + bytes(40) + data[140:]
    bench.output.write_bytes(hurt)
    fill(bench.folder, left_blocks)
    with pytest.raises(JournalError, match="No space left on device") as caught:
        bench.work()
    assert caught.value.hint.startswith("make room")
    assert bench.output.read_bytes() == hurt
    assert not list(bench.folder.glob("*.damaged-*"))
    bench.make_room()
    assert bench.work().is_complete
    assert bench.asked == ["r01"]
    bench.assert_whole()


@pytest.mark.parametrize("left_blocks", [0, 1])
def test_a_repair(tmp_path: Path, small_disk: Path, left_blocks: int) -> None:
    """With one block left there is room for the damaged line, and not for the new file."""
    rows, output = tmp_path / "rows.jsonl", small_disk / "labels.jsonl"
    write_rows(rows, 30)
    assert command(*sim_flags(rows, output)).returncode == 0
    data = output.read_bytes().replace(b'"row":7,', b'"row":8,')
    output.write_bytes(data)
    files = sorted(path.name for path in small_disk.iterdir())
    ballast = fill(small_disk, left_blocks)
    reply = command("repair", str(output))
    assert reply.returncode == 2
    name = "labels.jsonl" if left_blocks else "labels.damaged-1.jsonl"
    assert f"error: cannot write {small_disk / name}: No space left on device" in reply.stderr
    assert "hint: make room" in reply.stderr
    assert output.read_bytes() == data
    ballast.unlink()
    assert sorted(path.name for path in small_disk.iterdir()) == files
    assert command("repair", str(output)).returncode == 0
    assert len(sealed_lines(output)) == 29
    assert command(*sim_flags(rows, output)).returncode == 0
    assert len(set(ids(output))) == 30


class Failing:
    """`os` whose fsync of a file fails as a full or a broken disk does, once it `is_full`."""

    def __init__(self, number: int) -> None:
        self.is_full = False
        self._number = number

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def fsync(self, fd: int) -> None:
        if self.is_full and not os.path.isdir(f"/proc/self/fd/{fd}"):
            raise OSError(self._number, os.strerror(self._number))
        os.fsync(fd)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_an_fsync_that_fails_acknowledges_nothing_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """A disk that takes bytes and finds no place for them later, as network file systems do."""
    bench, disk = Bench(tmp_path, monkeypatch), Failing(number)

    def on_call(name: str) -> None:
        disk.is_full = name >= "r10"

    bench.on_call = on_call
    with monkeypatch.context() as patch:
        patch.setattr(results_file, "os", disk)
        report = bench.work(rps=100)
    assert isinstance(report.stopped, JournalError)
    assert report.stopped.what == f"cannot write {bench.output}: {os.strerror(number)}"
    expected = "check that disk" if number == errno.EIO else "make room"
    assert report.stopped.hint.startswith(expected)
    assert report.succeeded == len(bench.acknowledged) <= 10
    bench.assert_kept()
    assert bench.work().is_complete
    bench.assert_whole()
