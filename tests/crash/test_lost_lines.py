"""Blocks that a power loss took from a file: what was in them is done again, all else stays."""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Any

import pytest

import redline
from crash.killing import sealed_lines
from redline.errors import ConfigError, JournalError, Rejected
from redline.job.outputs import verify
from redline.journal import Output, take_out
from redline.process import replace_file
from support.catching import assert_caught
from support.swapping import Swap

ROWS = [{"custom_id": f"r{number}", "text": f"text {number} é"} for number in range(1, 9)]

pytestmark = pytest.mark.crash


def work(output: Path, **options: Any) -> list[str]:
    """Runs the rows to the end, every third failing; those that were asked, in order."""
    asked = []

    async def call(row: dict[str, Any]) -> str:
        asked.append(row["custom_id"])
        if int(row["custom_id"][1:]) % 3 == 0:
            raise Rejected("each third row fails")
        return "an answer"

    report = redline.run(ROWS, call=call, output=output, concurrency=1, progress=False, **options)
    assert report.is_complete
    return asked


def spans(data: bytes) -> list[tuple[int, int]]:
    """Where each line begins and ends, its newline included."""
    found, begin = [], 0
    for line in data.splitlines(keepends=True):
        found.append((begin, begin + len(line)))
        begin += len(line)
    return found


def zeroed(data: bytes, begin: int, end: int) -> bytes:
    return data[:begin] + bytes(end - begin) + data[end:]


# The first and the last line that are hurt (of r1, r2, r4, r5, r7, r8), and how much of them.
HURT = {
    "within a line": (2, 2, 20, -20),
    "the beginning of a line": (2, 2, 0, -20),
    "the end of a line, but for its newline": (2, 2, 20, -1),
    "the end of a line and its newline": (2, 3, 20, 0),
    "from a line into a later one": (1, 3, 20, -20),
    "the beginning of the file": (0, 1, 0, -20),
    "the end of the last line": (5, 5, 20, -1),
    "all of the last line but its newline": (5, 5, 0, -1),
    "a whole line and its newline": (1, 2, 0, 0),
}


def hurt(data: bytes, how: tuple[int, int, int, int]) -> tuple[bytes, list[int]]:
    """The data with a hole, and the lines that have none of it."""
    first, last, skipped, left = how
    lines = spans(data)
    end = lines[last][1] + left if left else lines[last][0]
    begin = lines[first][0] + skipped
    return zeroed(data, begin, end), [n for n in range(len(lines)) if not first <= n <= last]


@pytest.mark.parametrize("how", HURT.values(), ids=HURT.keys())
def test_lines_with_holes_go_aside_and_their_rows_alone_are_done_again(
    tmp_path: Path, how: tuple[int, int, int, int]
) -> None:
    output = tmp_path / "labels.jsonl"
    work(output)
    data = output.read_bytes()
    whole = data.splitlines(keepends=True)
    wrong, left = hurt(data, how)
    output.write_bytes(wrong)
    names = ["r1", "r2", "r4", "r5", "r7", "r8"]
    assert work(output) == [name for n, name in enumerate(names) if n not in left]
    kept = b"".join(whole[n] for n in left)
    assert output.read_bytes().startswith(kept)
    assert sorted(line["custom_id"] for line in sealed_lines(output)) == names
    assert verify(Output(path=output), ROWS).is_whole
    aside = (tmp_path / "labels.damaged-1.jsonl").read_bytes()
    assert len(aside) + len(kept) == len(wrong)
    assert all(whole[n] not in aside for n in left)
    assert work(output) == []


def test_failures_with_holes_are_done_again(tmp_path: Path) -> None:
    output, failed = tmp_path / "labels.jsonl", tmp_path / "labels.failed.jsonl"
    work(output)
    data = failed.read_bytes()
    failed.write_bytes(zeroed(data, 40, 60))
    assert work(output) == ["r3"]
    assert sorted(line["custom_id"] for line in sealed_lines(failed)) == ["r3", "r6"]
    assert (tmp_path / "labels.failed.damaged-1.jsonl").read_bytes() == (
        zeroed(data, 40, 60)[: spans(data)[0][1]]
    )


def test_a_hole_and_a_torn_tail_go_together(tmp_path: Path) -> None:
    output = tmp_path / "labels.jsonl"
    work(output)
    data = output.read_bytes()
    lines = spans(data)
    wrong = zeroed(data, lines[1][0] + 9, lines[1][0] + 30)[: lines[5][0] + 25]
    output.write_bytes(wrong)
    assert work(output) == ["r2", "r8"]
    aside = (tmp_path / "labels.damaged-1.jsonl").read_bytes()
    assert aside == wrong[slice(*lines[1])] + wrong[lines[5][0] :]


def test_each_loss_has_its_own_file_aside(tmp_path: Path) -> None:
    output = tmp_path / "labels.jsonl"
    work(output)
    for number in (1, 2):
        data = output.read_bytes()
        output.write_bytes(zeroed(data, 50, 60))
        assert len(work(output)) == 1
        assert (tmp_path / f"labels.damaged-{number}.jsonl").exists()


def test_damage_without_zeros_is_refused_and_nothing_is_changed_though_there_are_holes_too(
    tmp_path: Path,
) -> None:
    output = tmp_path / "labels.jsonl"
    work(output)
    data = output.read_bytes()
    wrong = zeroed(data, 40, 60).replace(b'"custom_id":"r7"', b'"custom_id":"rX"')
    output.write_bytes(wrong)
    with pytest.raises(JournalError, match=r"line 5 of .* is damaged"):
        work(output)
    assert output.read_bytes() == wrong
    assert not list(tmp_path.glob("*.damaged-*"))


@pytest.mark.parametrize(
    "foreign",
    [
        b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\n",
        b"notes\0\nmore\n",
        b"a\0b",
        b"{}\n\0\n",
        b"\xff\xfeh\0i\0",
    ],
)
def test_a_binary_file_of_something_else_is_left_alone_even_by_force(
    tmp_path: Path, foreign: bytes
) -> None:
    output = tmp_path / "labels.jsonl"
    output.write_bytes(foreign)
    with pytest.raises(ConfigError, match="is not a results file of redline"):
        work(output)
    with pytest.raises(JournalError, match=r"line 1 of .* is damaged"):
        work(output, force=True)
    assert output.read_bytes() == foreign
    assert not list(tmp_path.glob("*.damaged-*"))


def _take_out_the_rest(path: Path, fd: int, bounds: Any, *aside: Path) -> Path:
    return take_out(path, fd, array("Q", [bounds[0], path.stat().st_size]), *aside)


def _keep_nothing_aside(path: Path, write: Any) -> None:
    if ".damaged-" not in path.name:
        replace_file(path, write)


@pytest.mark.parametrize(
    ("function", "fake"),
    [
        (take_out, lambda *_: None),
        (take_out, _take_out_the_rest),
        (replace_file, _keep_nothing_aside),
    ],
)
def test_a_hole_that_stays_or_takes_sound_lines_along_is_noticed(
    tmp_path: Path, function: Any, fake: Any
) -> None:
    output = tmp_path / "labels.jsonl"
    work(output)
    wrong, _ = hurt(output.read_bytes(), HURT["from a line into a later one"])

    def check(used: Any) -> None:
        output.write_bytes(wrong)
        for old in tmp_path.glob("*.damaged-*"):
            old.unlink()
        with Swap((function, used)):
            work(output)
        assert len(sealed_lines(output)) == 6
        assert list(tmp_path.glob("*.damaged-*"))

    assert_caught(check, function, fake)
