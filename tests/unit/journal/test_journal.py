"""What a journal takes, writes, acknowledges and drops, and what it reports of lost files."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import re
import shlex
import shutil
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from redline.calls import Attempt, Outcome, Reply
from redline.errors import JournalError, Rejected
from redline.journal import Brief, Journal, NotKept, Output, Result, ResultsLost
from redline.sources import Row
from redline.testing import virtual_run


def result(number: int, *, mark: int = 0, answer: Any = None, error: str = "") -> Result:
    content = json.dumps({"n": number}).encode()
    outcome = Outcome(status="succeeded", reply=Reply(output=answer or f"answer {number}"))
    if error:
        outcome = Outcome(status="rejected", error=Rejected(error))
    row = Row(number, number, {"n": number}, content)
    return Result(row=row, key=number, mark=mark, custom_id=f"r{number}", outcome=outcome)


class Play:
    """One process with an output. acknowledged: its keys. error: what closing it raised."""

    def __init__(self, output: Output) -> None:
        self.output = output
        self.acknowledged: list[int] = []
        self.error: JournalError | None = None
        self.journal: Journal

    def _acknowledge(self, rows: list[Brief]) -> None:
        self.acknowledged += [row.key for row in rows]

    async def write(self, *results: Result) -> None:
        for one in results:
            self.journal.append(one)
        await self.journal.saved()

    def run(
        self,
        story: Callable[[Play], Awaitable[None]],
        before_sync: Callable[[], None] | None = None,
    ) -> Play:
        async def main() -> None:
            self.journal = Journal(self.output, self._acknowledge)
            self.journal.start(before_sync)
            try:
                await story(self)
            finally:
                try:
                    await self.journal.close()
                except JournalError as error:
                    self.error = error

        virtual_run(main())
        return self


@pytest.fixture
def output(tmp_path: Path) -> Output:
    found = Output.at(tmp_path / "out.jsonl")
    found.state_path.mkdir()
    return found


def written(output: Output, *results: Result) -> None:
    """An earlier process had these rows."""

    async def story(play: Play) -> None:
        await play.write(*results)

    assert Play(output).run(story).error is None


def rows_of(path: Path) -> list[int]:
    return [json.loads(line)["row"] for line in path.read_text().splitlines()]


# Writing.


def test_each_turn_of_the_loop_writes_what_it_took_and_a_group_is_acknowledged_once(
    output: Output,
) -> None:
    async def story(play: Play) -> None:
        for number in (1, 2):
            play.journal.append(result(number))
        assert rows_of(output.path) == []
        await asyncio.sleep(0)
        assert rows_of(output.path) == [1, 2]
        play.journal.append(result(3, error="no"))
        play.journal.flush()
        assert rows_of(output.failed_path) == [3]
        assert play.acknowledged == []
        await play.journal.saved()
        assert play.acknowledged == [1, 2, 3]
        # There is nothing to wait for.
        await play.journal.saved()
        play.journal.append(result(4))

    assert Play(output).run(story).acknowledged == [1, 2, 3, 4]
    assert rows_of(output.path) == [1, 2, 4]


def test_a_long_line_is_written_at_once(output: Output) -> None:
    async def story(play: Play) -> None:
        play.journal.append(result(1))
        play.journal.append(result(2, answer="x" * 70_000))
        assert rows_of(output.path) == [1, 2]

    Play(output).run(story)


def test_an_answer_that_has_no_json_is_a_failure_that_says_so(output: Output) -> None:
    async def story(play: Play) -> None:
        one = result(1, answer={"at": object()})
        play.journal.append(one)
        assert (one.outcome.status, one.outcome.reply) == ("rejected", None)

    assert Play(output).run(story).acknowledged == [1]
    assert rows_of(output.path) == []
    (line,) = output.failed_path.read_text().splitlines()
    assert "cannot be written as JSON" in json.loads(line)["error"]["message"]


def test_what_a_task_has_found_and_json_cannot_hold_is_null_in_a_failure(output: Output) -> None:
    async def story(play: Play) -> None:
        one, two = result(1), result(2, error="no")
        one.outcome.fields = two.outcome.fields = {"found": {"a": object()}, "tries": 2}
        play.journal.append(one)
        play.journal.append(two)
        assert one.outcome.status == "rejected"

    assert Play(output).run(story).acknowledged == [1, 2]
    assert rows_of(output.path) == []
    first, second = map(json.loads, output.failed_path.read_text().splitlines())
    assert "cannot be written as JSON" in first["error"]["message"]
    assert second["error"]["message"] == "no"
    for row, line in enumerate((first, second), 1):
        assert (line["found"], line["tries"], line["input"]) == (None, 2, {"n": row})


def test_too_much_that_is_not_durable_holds_back_new_rows_until_it_is(
    output: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redline.journal.journal.MOST_UNSYNCED_BYTES", 3000)

    async def story(play: Play) -> None:
        journal = play.journal
        for number in (1, 2):
            journal.append(result(number))
        journal.flush()
        assert not journal.is_behind
        # Lines of failures count as well, and so does what is kept of each row.
        journal.append(result(3, error="x" * 1000))
        journal.flush()
        assert journal.is_behind
        await journal.changes.wait_for(lambda: not journal.is_behind)
        await journal.saved()
        for number in (4, 5):
            journal.append(result(number))
        journal.flush()
        assert not journal.is_behind

    assert Play(output).run(story).acknowledged == [1, 2, 3, 4, 5]


def test_new_rows_begin_while_the_disk_still_syncs_those_before(
    output: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync, may_end = os.fsync, threading.Event()
    monkeypatch.setattr("redline.journal.journal.MOST_UNSYNCED_BYTES", 1000)

    def slow_sync(fd: int) -> None:
        assert may_end.wait(5)
        sync(fd)

    async def story(play: Play) -> None:
        monkeypatch.setattr(os, "fsync", slow_sync)
        play.journal.append(result(1, answer="x" * 1000))
        play.journal.flush()
        assert play.journal.is_behind
        await play.journal.changes.wait_for(lambda: not play.journal.is_behind)
        assert play.acknowledged == []
        may_end.set()
        await play.journal.saved()

    assert Play(output).run(story).acknowledged == [1]


def test_a_sync_that_fails_acknowledges_nothing_and_ends_the_journal(
    output: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync = os.fsync

    def broken_sync(fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    async def story(play: Play) -> None:
        await play.write(result(1))
        monkeypatch.setattr(os, "fsync", broken_sync)
        play.journal.append(result(2))
        with pytest.raises(JournalError, match="Input/output error"):
            await play.journal.saved()
        monkeypatch.setattr(os, "fsync", sync)
        with pytest.raises(JournalError, match="Input/output error"):
            play.journal.append(result(3))

    play = Play(output).run(story)
    assert "Input/output error" in str(play.error)
    assert play.acknowledged == [1]


def test_a_row_is_acknowledged_with_its_name_and_how_it_ended(output: Output) -> None:
    found: list[Brief] = []

    async def main() -> None:
        journal = Journal(output, found.extend)
        journal.start()
        tried = Attempt("gpu-2", None, 1.0, 2.0, 3.0)
        one, other = result(1), result(2, error="no")
        one.outcome.endpoint, one.outcome.tried = "gpu-2", (tried,)
        assert one.outcome.reply is not None
        one.outcome.reply.finish_reason = "length"
        one.outcome.is_cached = True
        journal.append(one)
        journal.append(other)
        await journal.close()

    virtual_run(main())
    assert found == [
        Brief(1, "r1", "succeeded", True, "gpu-2", "length", 3.0),
        Brief(2, "r2", "rejected", False, "", None, None),
    ]


def test_the_time_of_all_writes_and_syncs_is_counted(
    output: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, sync, each_s = os.write, os.fsync, 0.002

    def slow_write(fd: int, data: bytes) -> int:
        time.sleep(each_s)
        return write(fd, data)

    def slow_sync(fd: int) -> None:
        time.sleep(each_s)
        sync(fd)

    monkeypatch.setattr(os, "write", slow_write)
    monkeypatch.setattr(os, "fsync", slow_sync)

    async def story(play: Play) -> None:
        assert (play.journal.write_s, play.journal.sync_s) == (0, 0)
        for number in range(3):
            await play.write(result(number), result(10 + number, error="no"))
        assert play.journal.write_s >= 6 * each_s
        assert play.journal.sync_s >= 6 * each_s

    Play(output).run(story)


def test_what_must_be_durable_before_the_results_is_made_so(output: Output) -> None:
    acknowledged_before: list[int] = []

    async def story(play: Play) -> None:
        await play.write(result(1))
        await play.write(result(2))

    play = Play(output)
    play.run(story, lambda: acknowledged_before.append(len(play.acknowledged)))
    assert acknowledged_before[:2] == [0, 1]


@pytest.mark.parametrize("is_failure", [False, True])
def test_a_disk_that_fills_within_a_line_leaves_whole_lines(
    output: Output, monkeypatch: pytest.MonkeyPatch, *, is_failure: bool
) -> None:
    write, error = os.write, "no" if is_failure else ""

    async def story(play: Play) -> None:
        await play.write(result(1, error=error))
        size = len(play.output.failed_path.read_bytes() if is_failure else output.path.read_bytes())
        left = [size + size // 2]

        def until_full(fd: int, data: bytes) -> int:
            if not left[0]:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            taken = write(fd, data[: left[0]])
            left[0] -= taken
            return taken

        monkeypatch.setattr(os, "write", until_full)
        for number in (2, 3):
            play.journal.append(result(number, error=error))
        play.journal.flush()
        monkeypatch.undo()
        assert isinstance(play.journal.failure, JournalError)
        with pytest.raises(JournalError, match="No space left"):
            play.journal.append(result(4))
        with pytest.raises(JournalError, match="No space left"):
            await play.journal.saved()

    play = Play(output).run(story)
    assert "No space left" in str(play.error)
    # Nothing more is acknowledged, and what is in the file is whole.
    assert play.acknowledged == [1]
    assert rows_of(output.failed_path if is_failure else output.path) == [1, 2]


def test_rows_that_are_not_kept_are_acknowledged_at_once() -> None:
    found: list[Brief] = []

    async def main() -> None:
        journal = NotKept(found.extend)
        journal.append(result(1))
        journal.append(result(2, error="no"))
        assert [row.key for row in found] == [1, 2]
        assert journal.failure is None
        # Its changes are waited for as those of any journal.
        await journal.changes.wait_for(lambda: len(found) == 2)

    virtual_run(main())


# Rows of earlier runs.


def test_failures_of_rows_that_have_succeeded_are_taken_out_when_the_output_is_opened(
    output: Output,
) -> None:
    written(output, result(1, error="no"), result(2, error="no"))
    kept = output.failed_path.read_bytes()
    written(output, result(1))
    # A process died before it took the failure out.
    output.failed_path.write_bytes(kept)

    async def story(play: Play) -> None:
        assert rows_of(output.failed_path) == [2]
        assert 2 in play.journal.failed_before
        assert 1 not in play.journal.failed_before
        assert play.journal.has_succeeded(1)
        assert not play.journal.has_succeeded(2)

    assert Play(output).run(story).error is None
    assert rows_of(output.path) == [1]


def test_a_failure_of_a_row_that_has_changed_since_its_success_is_kept(output: Output) -> None:
    written(output, result(1, mark=7), result(2, mark=7))
    written(output, result(3, error="no"))
    failed = output.failed_path
    failed.unlink()
    other = Output.at(output.path.with_name("other.jsonl"))
    other.state_path.mkdir()
    written(other, result(1, mark=8, error="no"), result(2, mark=7, error="no"))
    failed.write_bytes(other.failed_path.read_bytes())

    async def story(play: Play) -> None:
        assert rows_of(failed) == [1]
        assert 1 in play.journal.failed_before
        assert play.journal.has_succeeded(1, 7)
        assert not play.journal.has_succeeded(1, 8)

    Play(output).run(story)
    assert rows_of(failed) == [1]


@pytest.mark.parametrize("succeeds", [True, False])
def test_a_failed_row_that_is_retried_has_one_line_in_the_end(
    output: Output, *, succeeds: bool
) -> None:
    written(output, result(1, error="no"), result(2, error="no"), result(3))
    again = result(1) if succeeds else result(1, error="never")
    written(output, again, result(4, error="no"))
    assert rows_of(output.path) == ([3, 1] if succeeds else [3])
    assert sorted(rows_of(output.failed_path)) == ([2, 4] if succeeds else [1, 2, 4])
    if not succeeds:
        assert "never" in output.failed_path.read_text()


def test_a_cancelled_close_keeps_a_failure_whose_success_is_not_durable(output: Output) -> None:
    written(output, result(1, error="no"))

    async def main() -> None:
        journal = Journal(output, lambda rows: None)
        journal.start()
        journal.append(result(1))
        closing = asyncio.create_task(journal.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        with pytest.raises(JournalError, match="the results are closed"):
            journal.append(result(2))

    virtual_run(main())
    assert [rows_of(output.path), rows_of(output.failed_path)] == [[1], [1]]
    written(output)
    assert rows_of(output.path) == [1]
    assert not output.failed_path.exists()


def test_the_failures_file_goes_with_its_last_failure(output: Output) -> None:
    written(output, result(1, error="no"))
    written(output, result(1))
    assert not output.failed_path.exists()


@pytest.mark.parametrize("ending", ["succeeds", "fails", "is not reached"])
def test_the_old_answer_of_a_row_that_has_changed_goes_aside_once_it_is_asked_again(
    output: Output, ending: str
) -> None:
    written(output, result(1, mark=7, answer="old"), result(2, mark=7))

    async def story(play: Play) -> None:
        assert play.journal.has_succeeded(1, 7)
        assert not play.journal.has_succeeded(1, 8)
        play.journal.outdate(1)
        assert not play.journal.has_succeeded(1, 7)
        if ending != "is not reached":
            error = "no" if ending == "fails" else ""
            await play.write(result(1, mark=8, answer="new", error=error))
        assert play.journal.has_succeeded(1, 8) == (ending == "succeeds")

    assert Play(output).run(story).error is None
    answers = [json.loads(line)["output"] for line in output.path.read_text().splitlines()]
    assert answers == (["answer 2", "new"] if ending == "succeeds" else ["answer 2"])
    aside = output.state_path / "out.outdated-1.jsonl"
    assert [json.loads(line)["output"] for line in aside.read_text().splitlines()] == ["old"]


def test_a_row_that_is_there_twice_is_named_with_what_helps(output: Output) -> None:
    written(output, result(1), result(2))
    line = output.path.read_bytes()
    output.path.write_bytes(line + line.splitlines(keepends=True)[1])
    with pytest.raises(JournalError, match=r"row 2 occurs twice in .*out\.jsonl") as caught:
        Journal(output, lambda rows: None)
    assert caught.value.where == f"byte {len(line):,}"
    assert "redline repair" in caught.value.hint
    assert "--restart" in caught.value.hint
    # It holds no lock.
    output.path.write_bytes(line)
    written(output, result(3))


# Files that are lost.


def replace(path: Path) -> None:
    copy = path.with_name("copy")
    shutil.copy(path, copy)
    copy.rename(path)


def move_and_replace(path: Path) -> None:
    path.rename(path.with_name("mine.jsonl"))
    path.touch()


LOSSES: dict[str, Callable[[Path], object]] = {
    "was removed while": Path.unlink,
    "was moved to {folder}/mine.jsonl while": lambda path: path.rename(
        path.with_name("mine.jsonl")
    ),
    "was moved to {folder}/mine.jsonl and replaced while": move_and_replace,
    "was replaced by another file while": replace,
}


@pytest.mark.parametrize("is_failure", [False, True])
@pytest.mark.parametrize("loss", LOSSES)
def test_lines_of_a_file_that_lost_its_name_are_all_where_the_error_says_and_come_back(
    output: Output, loss: str, *, is_failure: bool
) -> None:
    error = "no" if is_failure else ""
    path = output.failed_path if is_failure else output.path

    async def story(play: Play) -> None:
        await play.write(result(1, error=error), result(2, error=error))
        LOSSES[loss](path)
        play.journal.append(result(3, error=error))
        with pytest.raises(ResultsLost):
            await play.journal.saved()
        # Calls in flight still end, and their lines are kept.
        play.journal.append(result(4, error=error))
        assert play.acknowledged == [1, 2]

    play = Play(output).run(story)
    lost = play.error
    assert isinstance(lost, ResultsLost)
    assert str(lost).startswith(f"{path} {loss.format(folder=path.parent)}")
    # They have a name now, so they count.
    assert play.acknowledged == [1, 2, 3, 4]
    count, _, place = lost.saved.partition(" in ")
    assert count == "4 lines"
    assert rows_of(Path(place)) == [1, 2, 3, 4]
    assert "run the same command again" in lost.hint
    steps = [part for part in lost.hint.split("; ") if "mv " in part]
    for step in steps:
        _, source, target = shlex.split(step[step.index("mv ") :])
        Path(source).replace(target)
    assert bool(steps) == (Path(place) != path)
    assert rows_of(path) == [1, 2, 3, 4]


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 40)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def overwrite(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(b"notes\n" * 900)


@pytest.mark.parametrize(
    ("act", "what"),
    [
        (cut, "was truncated or overwritten while"),
        (empty, "was truncated or overwritten while"),
        (overwrite, "was (truncated or overwritten|changed by another program)"),
    ],
)
def test_a_file_that_was_written_by_something_else_is_left_in_its_place(
    output: Output, act: Callable[[Path], None], what: str
) -> None:
    async def story(play: Play) -> None:
        await play.write(result(1), result(2))
        act(output.path)
        play.journal.append(result(3))
        with pytest.raises(ResultsLost):
            await play.journal.saved()

    play = Play(output).run(story)
    assert isinstance(play.error, ResultsLost)
    assert re.match(f"{re.escape(str(output.path))} {what}", str(play.error))
    assert play.error.saved.endswith(f" in {output.path}")
    assert "with the rows that are missing" in play.error.hint
    assert f"redline repair {output.path}" in play.error.hint


def test_lines_that_something_else_adds_are_noticed_in_the_end(output: Output) -> None:
    async def story(play: Play) -> None:
        await play.write(result(1))
        with output.path.open("ab") as file:
            file.write(b"notes\n")
        assert play.journal.failure is None

    play = Play(output).run(story)
    assert isinstance(play.error, ResultsLost)
    assert str(play.error).startswith(f"{output.path} was changed by another program")
    assert play.error.saved == f"1 line in {output.path}"
    assert f"redline repair {output.path}" in play.error.hint


def test_a_folder_that_is_removed_comes_back_with_all_its_lines(output: Output) -> None:
    async def story(play: Play) -> None:
        await play.write(result(1), result(2, error="no"))
        shutil.rmtree(output.path.parent)
        play.journal.append(result(3))
        play.journal.append(result(4, error="no"))

    play = Play(output).run(story)
    assert isinstance(play.error, ResultsLost)
    assert play.acknowledged == [1, 2, 3, 4]
    assert play.error.saved == f"2 lines in {output.path}; 2 lines in {output.failed_path}"
    assert (rows_of(output.path), rows_of(output.failed_path)) == ([1, 3], [2, 4])


def test_a_folder_that_is_moved_keeps_its_lines_and_the_error_says_so(output: Output) -> None:
    folder = output.path.parent
    moved = folder.with_name(f"{folder.name}-moved")

    async def story(play: Play) -> None:
        await play.write(result(1))
        folder.rename(moved)
        play.journal.append(result(2))

    play = Play(output).run(story)
    assert isinstance(play.error, ResultsLost)
    assert play.acknowledged == [1, 2]
    assert play.error.saved == f"2 lines in {moved / output.path.name}"
    assert "pass the new path with -o to continue" in play.error.hint
    assert rows_of(moved / output.path.name) == [1, 2]


def test_one_line_is_one_line(output: Output) -> None:
    async def story(play: Play) -> None:
        await play.write(result(1))
        output.path.unlink()

    play = Play(output).run(story)
    assert isinstance(play.error, ResultsLost)
    assert play.error.saved == f"1 line in {output.path}"
    assert "were put back" in play.error.hint
