"""What `verify` counts: each row once, lines that are sound, lines of no row."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import redline
from redline.errors import Rejected
from redline.job.outputs import Verification, verify
from redline.journal import Output

ROWS = [{"custom_id": f"r{number}", "text": f"text {number}"} for number in range(1, 7)]


@pytest.fixture
def output(tmp_path: Path) -> Output:
    """A finished run over ROWS, of which r3 and r5 have failed."""
    output = Output(path=tmp_path / "labels.jsonl")
    work(output)
    return output


def work(output: Output, **options: Any) -> None:
    async def call(row: dict[str, Any]) -> str:
        if row["custom_id"] in ("r3", "r5"):
            raise Rejected("told to fail")
        return "yes"

    redline.run(ROWS, call=call, output=output.path, concurrency=1, progress=False, **options)


def counts(verdict: Verification) -> tuple[int, int, int, int, int]:
    """rows, succeeded, failed, missing, strange."""
    return (
        verdict.rows,
        verdict.succeeded,
        verdict.failed,
        verdict.missing,
        verdict.strange,
    )


def test_a_finished_output_is_whole(output: Output) -> None:
    verdict = verify(output, ROWS)
    assert verdict.is_whole
    assert counts(verdict) == (6, 4, 2, 0, 0)


@pytest.mark.parametrize("limit", [1, 3, 5, 6, 100])
def test_lines_of_rows_behind_the_limit_are_no_strange_lines(output: Output, limit: int) -> None:
    verdict = verify(output, ROWS, limit)
    failed = len({3, 5} & set(range(1, limit + 1)))
    rows = min(limit, 6)
    assert counts(verdict) == (rows, rows - failed, failed, 0, 0)
    assert verdict.is_whole
    assert "belong to no row" not in str(verdict)


def test_a_line_of_no_row_at_all_is_strange_below_a_limit_too(output: Output) -> None:
    assert verify(output, ROWS[:4], 2).strange == 2
    assert verify(output, ROWS[2:], 1).strange == 2


def test_rows_behind_the_limit_need_not_be_there(tmp_path: Path) -> None:
    output = Output(path=tmp_path / "labels.jsonl")
    work(output, limit=3)
    assert verify(output, ROWS, 3).is_whole
    assert counts(verify(output, ROWS)) == (6, 2, 1, 3, 0)


def test_a_row_that_stands_in_both_files_is_repeated_and_not_strange(output: Output) -> None:
    """A run that died before it took a mended failure out leaves this."""
    lines = output.failed_path.read_bytes().splitlines(keepends=True)
    output.path.write_bytes(output.path.read_bytes() + lines[0])
    verdict = verify(output, ROWS)
    assert (verdict.repeated, verdict.strange, verdict.missing) == (1, 0, 0)
    assert not verdict.is_whole


def test_every_single_line_taken_out_is_missed(output: Output) -> None:
    for path in (output.path, output.failed_path):
        data = path.read_bytes()
        lines = data.splitlines(keepends=True)
        for at in range(len(lines)):
            path.write_bytes(b"".join(lines[:at] + lines[at + 1 :]))
            verdict = verify(output, ROWS)
            assert not verdict.is_whole
            assert verdict.first_missing == json.loads(lines[at])["row"]
        path.write_bytes(data)


def test_a_damaged_line_does_not_stand_for_its_row(output: Output) -> None:
    data = output.path.read_bytes()
    output.path.write_bytes(data.replace(b'"yes"', b'"yep"', 1))
    verdict = verify(output, ROWS)
    assert (verdict.damaged, verdict.missing, verdict.first_missing) == (1, 1, 1)


def test_a_line_of_a_row_after_the_limit_is_told_from_one_of_no_row(output: Output) -> None:
    assert verify(output, ROWS, 2).strange == 0
    assert verify(output, ROWS[:4], 2).strange == 2
