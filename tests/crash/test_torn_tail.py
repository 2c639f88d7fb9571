"""What a sudden death leaves at the end of a file is cut off; what others wrote is not."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import redline
from crash.killing import sealed_lines
from redline.errors import ConfigError, JournalError, Rejected
from redline.job.outputs import repair, verify
from redline.journal import Output, ResultsFile, Stretch, read_stretches

ROWS = [{"custom_id": f"r{number}", "text": f"text {number} é"} for number in range(1, 7)]


def work(output: Path, rows: object = ROWS, **options: Any) -> list[str]:
    """Runs the rows to the end, every third failing; those that were asked, in order."""
    asked = []

    async def call(row: dict[str, Any]) -> str:
        asked.append(row["custom_id"])
        if int(row["custom_id"][1:]) % 3 == 0:
            raise Rejected("each third row fails")
        return "an answer with\na line break"

    report = redline.run(rows, call=call, output=output, concurrency=1, progress=False, **options)
    assert report.is_complete
    return asked


def keys(path: Path) -> list[str]:
    """The lines that opening `path` accepts."""
    found: list[str] = []
    ResultsFile(path, lambda lines: found.extend(map(name_of, lines.keys))).close()
    return found


def name_of(key: int) -> str:
    return f"{key:016x}"


@pytest.mark.parametrize("format", ["redline", "batch"])
@pytest.mark.parametrize("name", ["labels.jsonl", "labels.failed.jsonl"])
def test_a_tail_cut_at_any_byte_costs_that_line_only(
    tmp_path: Path, name: str, format: str
) -> None:
    work(tmp_path / "labels.jsonl", format=format)
    path = tmp_path / name
    data = path.read_bytes()
    before = data[: data[:-1].rfind(b"\n") + 1]
    expected = keys(path)
    assert len(expected) >= 2
    # Without its newline alone, the line is not known to be whole either.
    for end in range(len(before), len(data)):
        path.write_bytes(data[:end])
        assert keys(path) == expected[:-1], f"cut at byte {end}"
        assert path.read_bytes() == before, f"cut at byte {end}"


def test_the_row_of_a_torn_line_is_done_again_and_no_other(tmp_path: Path) -> None:
    output = tmp_path / "labels.jsonl"
    work(output)
    data = output.read_bytes()
    output.write_bytes(data[:-20])
    assert work(output) == ["r5"]
    kept = data[: data[:-1].rfind(b"\n") + 1]
    assert output.read_bytes().startswith(kept)
    assert sorted(line["custom_id"] for line in sealed_lines(output)) == ["r1", "r2", "r4", "r5"]
    assert verify(Output(path=output), ROWS).is_whole


def test_a_torn_failure_is_done_again(tmp_path: Path) -> None:
    output = tmp_path / "labels.jsonl"
    work(output)
    failed = tmp_path / "labels.failed.jsonl"
    failed.write_bytes(failed.read_bytes()[:-1])
    assert work(output) == ["r6"]
    assert [line["custom_id"] for line in sealed_lines(failed)] == ["r3", "r6"]


@pytest.mark.parametrize("left", [b"", b'{"v":1,"hash":"'])
def test_a_failures_file_without_a_whole_line_is_removed(tmp_path: Path, left: bytes) -> None:
    output, failed = tmp_path / "labels.jsonl", tmp_path / "labels.failed.jsonl"
    work(output, ROWS[:1])
    failed.write_bytes(left)
    assert work(output, ROWS[:2]) == ["r2"]
    assert not failed.exists()


def test_a_tail_of_zeros_as_a_power_loss_leaves_it_is_cut_off(tmp_path: Path) -> None:
    output = tmp_path / "labels.jsonl"
    work(output)
    data = output.read_bytes()
    output.write_bytes(data + bytes(4096))
    assert work(output) == []
    assert output.read_bytes() == data


def test_a_damaged_line_in_the_middle_is_refused_by_its_number_and_nothing_is_changed(
    tmp_path: Path,
) -> None:
    output = tmp_path / "labels.jsonl"
    work(output)
    data = output.read_bytes().replace(b'"custom_id":"r2"', b'"custom_id":"rX"')
    output.write_bytes(data)
    with pytest.raises(JournalError, match=r"line 2 of .* is damaged") as caught:
        work(output)
    assert "--restart" in caught.value.hint
    assert output.read_bytes() == data


def test_a_row_that_stands_twice_is_refused(tmp_path: Path) -> None:
    output = tmp_path / "labels.jsonl"
    work(output)
    data = output.read_bytes()
    output.write_bytes(data + data.splitlines(keepends=True)[0])
    with pytest.raises(JournalError, match="row 1 occurs twice"):
        work(output)


@pytest.mark.parametrize("foreign", [b"my notes", b"my notes\n", b'{"a": 1}\n', b"one\ntwo\n"])
def test_a_foreign_file_is_refused_and_left_alone_even_by_force(
    tmp_path: Path, foreign: bytes
) -> None:
    output = tmp_path / "labels.jsonl"
    output.write_bytes(foreign)
    with pytest.raises(ConfigError, match="is not a results file of redline"):
        work(output)
    with pytest.raises(JournalError, match=r"line 1 of .* is damaged"):
        work(output, force=True)
    assert output.read_bytes() == foreign


def test_a_foreign_last_line_is_refused(tmp_path: Path) -> None:
    output = tmp_path / "labels.jsonl"
    work(output)
    data = output.read_bytes() + b"seen by Ines\n"
    output.write_bytes(data)
    with pytest.raises(JournalError, match=r"line 5 of .* is damaged"):
        work(output)
    assert output.read_bytes() == data


@pytest.mark.parametrize("name", ["labels.jsonl", "labels.failed.jsonl"])
def test_a_broken_last_line_that_is_ended_is_refused_wherever_it_is_cut(
    tmp_path: Path, name: str
) -> None:
    """No death leaves one: what is written ends in a whole line, or without its newline."""
    work(tmp_path / "labels.jsonl")
    path = tmp_path / name
    data = path.read_bytes()
    begin = data[:-1].rfind(b"\n") + 1
    for end in range(begin, len(data) - 1):
        path.write_bytes(data[:end] + b"\n")
        with pytest.raises(JournalError, match="is damaged"):
            keys(path)
        assert path.read_bytes() == data[:end] + b"\n", f"cut at byte {end}"


def test_an_edited_last_line_is_refused_and_its_row_done_again_after_a_repair(
    tmp_path: Path,
) -> None:
    output = tmp_path / "labels.jsonl"
    work(output)
    data = output.read_bytes()
    begin = data[:-1].rfind(b"\n") + 1
    output.write_bytes(
        data[:begin] + data[begin:].replace(b'"custom_id":"r5"', b'"custom_id":"rX"')
    )
    with pytest.raises(JournalError, match=r"line 4 of .* is damaged") as caught:
        work(output)
    assert "redline repair" in caught.value.hint
    repair(Output(path=output))
    assert work(output) == ["r5"]
    assert verify(Output(path=output), ROWS).is_whole


def sound_keys(path: Path) -> list[int]:
    """Of the lines whose checksum holds."""
    fd = os.open(path, os.O_RDONLY)
    try:
        return [key for stretch in read_stretches(fd) for key in stretch.keys]
    finally:
        os.close(fd)


def test_every_byte_of_a_line_is_under_its_checksum(tmp_path: Path) -> None:
    output = tmp_path / "labels.jsonl"
    work(output, ROWS[:1])
    line = output.read_bytes()
    assert len(sound_keys(output)) == 1
    for at in range(len(line)):
        output.write_bytes(line[:at] + bytes([line[at] ^ 1]) + line[at + 1 :])
        assert sound_keys(output) == [], f"byte {at}"


def test_a_file_is_read_back_across_blocks(tmp_path: Path) -> None:
    output = tmp_path / "labels.jsonl"
    rows = [{"custom_id": f"r{number}", "text": "x" * 300_000} for number in range(1, 9)]
    work(output, rows, keep_input=True)
    assert output.stat().st_size > 1 << 20
    found: list[int] = []
    ends: list[int] = []

    def hear(lines: Stretch) -> None:
        *begins, end = lines.offsets()
        assert end == lines.end
        found.extend(begins)
        ends.append(end)

    ResultsFile(output, hear).close()
    data = output.read_bytes()
    assert found == [0, *(at + 1 for at in range(len(data) - 1) if data[at] == 0x0A)]
    assert ends[-1] == len(data)
