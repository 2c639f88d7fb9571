"""One writer per output, by whatever name it goes, and a lock that ends with its process."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import signal
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import redline
from crash.killing import await_lines, ended, ids, sim_flags, started, write_rows
from crash.killing import redline as command
from redline.errors import ConfigError, JournalError, RedlineError, Rejected
from redline.job.outputs import repair, verify
from redline.journal import Output, OutputLock

pytestmark = pytest.mark.crash


@pytest.mark.parametrize("name", ["labels.jsonl", "link.jsonl"])
def test_the_second_process_on_one_output_is_turned_away_and_the_first_unharmed(
    tmp_path: Path, name: str
) -> None:
    rows, output = tmp_path / "rows.jsonl", tmp_path / "labels.jsonl"
    write_rows(rows, 60)
    (tmp_path / "link.jsonl").symlink_to(output)
    with started(sim_flags(rows, output, "--rps", "2")) as first:
        before = await_lines(output, 1, first)
        second = command(*sim_flags(rows, tmp_path / name, "--force"))
        assert second.returncode == 2
        since = f" {first.pid} since" if name == "labels.jsonl" else ", under another name"
        assert f"error: {tmp_path / name} is being written by another redline process{since}" in (
            second.stderr
        )
        assert "hint: wait for it, stop it, or choose another -o" in second.stderr
        assert await_lines(output, before + 1, first) > before
        first.send_signal(signal.SIGINT)
        status, _, err = ended(first)
    assert status == 130, err
    assert command(*sim_flags(rows, output)).returncode == 0
    assert sorted(ids(output)) == [f"t-{number:05}" for number in range(1, 61)]


def test_the_lock_ends_with_its_process(tmp_path: Path) -> None:
    rows, output = tmp_path / "rows.jsonl", tmp_path / "labels.jsonl"
    write_rows(rows, 40)
    with started(sim_flags(rows, output, "--rps", "20")) as first:
        while not (output.exists() and output.read_bytes()):
            assert first.poll() is None
        first.kill()
        first.wait()
        # At once: nothing has to be removed or waited for.
        assert command(*sim_flags(rows, output)).returncode == 0
    assert len(set(ids(output))) == 40


def test_two_runs_in_one_process_exclude_each_other_too(tmp_path: Path) -> None:
    output = Output(path=tmp_path / "labels.jsonl")
    with OutputLock(output), pytest.raises(ConfigError, match="another redline"):
        OutputLock(output)
    OutputLock(output).release()


ROWS = [{"custom_id": f"r{number}"} for number in range(1, 9)]


async def plain(row: dict[str, Any]) -> str:
    return f"answer to {row['custom_id']}"


def work(output: Path, *, call: Any = plain, **options: Any) -> redline.Report:
    rows = options.pop("rows", ROWS)
    return redline.run(rows, call=call, output=output, progress=False, concurrency=1, **options)


def meanwhile(
    output: Path, act: Callable[[], Any], failing: Sequence[str] = ("r7",), **options: Any
) -> redline.Report:
    """A run to `output`, in whose middle, when lines are durable, `act` is done; some rows fail."""

    async def call(row: dict[str, Any]) -> str:
        if row["custom_id"] == "r5":
            # For the others' sync, which a busy disk takes its time for.
            await asyncio.sleep(0.5)
            await asyncio.to_thread(act)
        if row["custom_id"] in failing:
            raise Rejected("one row fails after that")
        return await plain(row)

    return work(output, call=call, **options)


def refused(act: Callable[[], Any]) -> RedlineError:
    with pytest.raises(RedlineError) as caught:
        act()
    return caught.value


def assert_whole(output: Path, failing: Sequence[str] = ("r7",)) -> None:
    verdict = str(verify(Output(path=output), ROWS))
    assert verdict == "verify: 8 of 8, each once" + ("; 1 of them as failures" if failing else "")


def other_names(folder: Path) -> dict[str, Path]:
    """Names of folder/labels.jsonl, which is there, other than that."""
    (folder / "link.jsonl").symlink_to(folder / "labels.jsonl")
    (folder / "second.jsonl").symlink_to("link.jsonl")
    os.link(folder / "labels.jsonl", folder / "hard.jsonl")
    (folder / "elsewhere").symlink_to(folder)
    (folder / "below").mkdir()
    return {
        "the same name": folder / "labels.jsonl",
        "a path that goes around": folder / "below" / ".." / "labels.jsonl",
        "a link": folder / "link.jsonl",
        "a link to a link": folder / "second.jsonl",
        "a hard link": folder / "hard.jsonl",
        "a linked folder": folder / "elsewhere" / "labels.jsonl",
    }


@pytest.mark.parametrize("options", [{}, {"force": True}, {"ordered": True, "force": True}])
def test_a_second_writer_is_refused_by_whatever_name_it_knows_the_file(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    output = tmp_path / "labels.jsonl"
    errors: dict[str, str] = {}

    def others() -> None:
        before = output.read_bytes()
        for kind, name in other_names(tmp_path).items():
            errors[kind] = str(refused(lambda name=name: work(name, **options)))
            assert output.read_bytes() == before, kind
            errors[f"{kind}, repair"] = str(refused(lambda name=name: repair(Output(path=name))))
            assert output.read_bytes() == before, kind

    meanwhile(output, others)
    for kind, error in errors.items():
        is_known = "link" in kind and "folder" not in kind and not options and "repair" not in kind
        said = "holds results, but" if is_known else "is being written by another"
        assert said in error, f"{kind}: {error}"
    assert_whole(output)


def test_the_files_lock_ends_with_the_run_and_with_an_error(tmp_path: Path) -> None:
    output, link = tmp_path / "labels.jsonl", tmp_path / "link.jsonl"
    link.symlink_to(output)
    meanwhile(output, lambda: None)
    assert work(link, force=True).is_complete
    output.write_bytes(output.read_bytes() + b"notes\n")
    kept = [refused(lambda: work(link, force=True)) for _ in range(2)]
    assert all("is damaged" in str(error) for error in kept)


@pytest.mark.parametrize("failing", [["r7"], []], ids=["new file", "no new file"])
def test_a_run_whose_folder_is_moved_says_so_and_what_it_saved_has_moved_along(
    tmp_path: Path, failing: list[str]
) -> None:
    """It notices where it needs a name: of the failures' file, or of the manifest at the end."""
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    output = old / "labels.jsonl"
    report = meanwhile(output, lambda: old.rename(new), failing=failing)
    assert isinstance(report.stopped, JournalError)
    assert report.stopped.hint.startswith("its folder does not exist")
    assert 4 <= report.succeeded <= len(ids(new / "labels.jsonl"))
    assert not old.exists()
    assert meanwhile(new / "labels.jsonl", lambda: None, failing=failing).is_complete
    assert_whole(new / "labels.jsonl", failing)


def test_a_run_that_ends_where_another_one_has_begun_does_not_sort_its_file(
    tmp_path: Path,
) -> None:
    """Its folder was moved, and the other one has made a new one of the same name."""
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    has_begun, is_over = threading.Event(), threading.Event()
    reports: list[redline.Report] = []

    def wait() -> None:
        has_begun.set()
        assert is_over.wait(20)

    def move() -> None:
        old.rename(new)
        assert "is being written by another" in str(refused(lambda: work(new / "labels.jsonl")))
        old.mkdir()
        other.start()
        assert has_begun.wait(20)

    other = threading.Thread(
        target=lambda: reports.append(meanwhile(old / "labels.jsonl", wait, failing=[]))
    )
    # The other one's lines are not in this order.
    rows = ROWS[::-1]
    try:
        first = meanwhile(old / "labels.jsonl", move, failing=[], ordered=True, rows=rows)
    finally:
        is_over.set()
        other.join()
    assert len(ids(new / "labels.jsonl")) == 8
    said = f"was moved to {new / 'labels.jsonl'} and replaced while results were written to it"
    assert said in str(first.stopped)
    assert reports[0].is_complete
    assert_whole(old / "labels.jsonl", [])


def test_a_file_system_without_locks_is_reported_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(fd: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    output = tmp_path / "labels.jsonl"
    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", flock)
        error = refused(lambda: work(output))
    assert error.what == f"cannot lock {tmp_path}/labels.redline/lock: No locks available"
    assert "file system that supports locks" in error.hint
    assert not output.exists()
    assert work(output).is_complete
