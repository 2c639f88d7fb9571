"""What a synthesis has delivered, and why not more, read from its files."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from redline.calls import Outcome, Reply
from redline.errors import Rejected
from redline.journal import Output, Result, failure_writer, line_writer
from redline.sources import Row
from redline.tasks.synth import NotKept, delivered


def line(output: Output, n: int, outcome: Outcome) -> bytes:
    row = Row(n, n, {"n": n}, b"{}")
    result = Result(row=row, key=n, custom_id=None, outcome=outcome)
    return line_writer(output)(result) if outcome.is_success else failure_writer(output)(result)


def text(*dropped: str) -> Outcome:
    fields = {"dropped": list(dropped)} if dropped else {}
    return Outcome(status="succeeded", reply=Reply(output="a text"), fields=fields)


def failed(error: Rejected, *dropped: str) -> Outcome:
    return Outcome(status="rejected", error=error, fields={"dropped": list(dropped)})


@pytest.fixture
def output(tmp_path: Path) -> Output:
    """Of rows 1 to 5 the last three failed; then 3 was made, and its failure is still there."""
    output = Output(path=tmp_path / "stories.jsonl")
    made = [(1, text()), (2, text("near_duplicate", "too_short")), (3, text("cut"))]
    output.path.write_bytes(b"".join(line(output, n, outcome) for n, outcome in made))
    failures = [
        (3, failed(NotKept("no text was accepted"), "cut")),
        (4, failed(NotKept("no text was accepted"), "near_duplicate", "near_duplicate")),
        (5, failed(Rejected("HTTP 400", status=400), "too_long")),
    ]
    output.failed_path.write_bytes(b"".join(line(output, n, outcome) for n, outcome in failures))
    return output


def test_each_row_is_counted_once_with_all_that_was_dropped_for_it(output: Output) -> None:
    told = delivered(output, 7)
    assert (told.wanted, told.delivered, told.unfinished) == (7, 3, 2)
    assert told.failed == Counter(near_duplicate=1, rejected=1)
    assert told.dropped == Counter(near_duplicate=3, too_short=1, cut=1, too_long=1)


def test_it_is_told_to_a_person_and_to_a_program(output: Output) -> None:
    assert delivered(output, 7).text() == (
        "delivered  3 of 7\n"
        "dropped    6: 3 near duplicate, 1 too short, 1 cut, 1 too long\n"
        "missing    4: 2 unfinished, 1 near duplicate, 1 rejected; the same command continues the "
        "run\n"
        "\n"
        "near_duplicate: 3\n"
        "too_short: 1\n"
        "too_long: 1\n"
        "invalid: 0\n"
        "cut: 1\n"
        "filtered: 0\n"
        "failed: 2\n"
        "unfinished: 2\n"
        "delivered: 3/7\n"
    )


def test_a_smaller_count_looks_at_its_own_rows_only(output: Output) -> None:
    told = delivered(output, 2)
    assert (told.delivered, told.failed, told.unfinished) == (2, Counter(), 0)
    assert told.text().startswith("delivered  2 of 2\ndropped    2: ")
    assert told.text().endswith("\ndelivered: 2/2\n")


def test_a_torn_last_line_is_not_delivered(output: Output) -> None:
    data = output.path.read_bytes()
    output.path.write_bytes(data[:-10])
    assert delivered(output, 3).delivered == 2
