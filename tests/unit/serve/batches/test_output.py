"""Output and error files from a job's results, and the check of a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from redline.calls import Outcome, Reply, failed
from redline.errors import RateLimited, Rejected, TimedOut
from redline.journal import Result, failure_writer, line_writer
from redline.serve.batches.checking import check_file
from redline.serve.batches.output import Folder
from redline.sources import MAX_ROW_BYTES, Row
from support.batch_files import CHAT, line, lines

BODY = {"usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}}


def folder_of(path: Path, outcomes: dict[str, Outcome], *, asked: int = 0) -> Folder:
    """The folder of a batch whose lines have these outcomes; `asked`: how many lines it has."""
    folder = Folder(path)
    folder.input.write_bytes(lines(asked))
    with folder.results.path.open("wb") as results, folder.results.failed_path.open("wb") as wrong:
        for number, (name, outcome) in enumerate(outcomes.items(), 1):
            row = Row(number, number, line(name), b"{}")
            result = Result(row=row, key=number, custom_id=name, outcome=outcome, mark=7)
            writer = line_writer if outcome.is_success else failure_writer
            file = results if outcome.is_success else wrong
            file.write(writer(folder.results)(result))
    return folder


def answered(**fields: Any) -> Outcome:
    body = json.dumps({**BODY, **fields}).encode()
    return Outcome(status="succeeded", reply=Reply(output="x", body=body, request_id="req-1"))


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(text) for text in path.read_text().splitlines()]


def refused() -> Outcome:
    error = Rejected("it is bad", status=422)
    error.keep_body(b'{"error": {"message": "bad", "mine": [1, null]}}')
    return failed(error)


def test_lines_of_two_batches_have_different_ids(tmp_path: Path) -> None:
    ids = list[str]()
    for name in ("batch_a", "batch_b"):
        (tmp_path / name).mkdir()
        folder = folder_of(tmp_path / name, {"r0": answered(), "r1": refused()}, asked=3)
        folder.write("cancelled")
        ids += [one["id"] for one in read(folder.output) + read(folder.errors)]
    assert len(set(ids)) == len(ids) == 6


def test_answers_and_errors_have_the_lines_of_the_api(tmp_path: Path) -> None:
    outcomes = {
        "r0": answered(),
        "r1": refused(),
        "r2": failed(RateLimited("too many", status=429)),
        "r3": failed(TimedOut("attempt", 3.0)),
        "r4": answered(usage=None),
    }
    folder = folder_of(tmp_path, outcomes)
    assert folder.counts() == (2, 3)
    written = folder.write("completed")
    assert (written.completed, written.failed) == (2, 3)
    assert written.usage["total_tokens"] == 5
    assert written.output_bytes == folder.output.stat().st_size
    assert written.error_bytes == folder.errors.stat().st_size
    output = read(folder.output)
    assert output[0] == {
        "id": f"batch_req_{tmp_path.name}_0000000000000001",
        "custom_id": "r0",
        "response": {"status_code": 200, "request_id": "req-1", "body": BODY},
        "error": None,
    }
    wrong = {one["custom_id"]: one for one in read(folder.errors)}
    assert wrong["r1"]["response"]["status_code"] == 422
    # As the endpoint wrote it.
    assert wrong["r1"]["response"]["body"] == {"error": {"message": "bad", "mine": [1, None]}}
    assert wrong["r2"]["response"]["status_code"] == 429
    assert wrong["r2"]["response"]["body"]["error"]["code"] == "rate_limited"
    assert wrong["r3"]["response"] is None
    assert wrong["r3"]["error"]["code"] == "timed_out"


@pytest.mark.parametrize("ending", ["expired", "cancelled"])
def test_lines_without_an_outcome_say_why(tmp_path: Path, ending: str) -> None:
    folder = folder_of(tmp_path, {"r1": answered(), "r3": refused()}, asked=5)
    written = folder.write(ending)
    assert (written.completed, written.failed) == (1, 4)
    codes = {one["custom_id"]: one["error"] and one["error"]["code"] for one in read(folder.errors)}
    unfinished = f"batch_{ending}"
    assert codes == {"r3": None, "r0": unfinished, "r2": unfinished, "r4": unfinished}


def test_files_are_the_same_when_they_are_written_again(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, {"r1": answered(), "r3": refused()}, asked=5)
    first = folder.write("expired"), folder.output.read_bytes(), folder.errors.read_bytes()
    again = folder.write("expired"), folder.output.read_bytes(), folder.errors.read_bytes()
    assert first == again


def test_a_line_that_failed_and_then_succeeded_counts_once(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, {"r1": answered()})
    row = Row(1, 1, line("r1"), b"{}")
    result = Result(row=row, key=1, custom_id="r1", outcome=refused())
    with folder.results.failed_path.open("ab") as wrong:
        wrong.write(failure_writer(folder.results)(result))
    written = folder.write("completed")
    assert (written.completed, written.failed, written.error_bytes) == (1, 0, 0)


def test_a_torn_line_and_no_results_at_all_are_passed_over(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, {"r1": answered()})
    with folder.results.path.open("ab") as results:
        results.write(b'{"id":"redline_')
    folder.results.failed_path.unlink()
    assert folder.write("completed").completed == 1
    folder.results.path.unlink()
    assert folder.write("completed").completed == 0


def checked(path: Path, data: bytes, most: int = 100) -> tuple[int, list[tuple[Any, Any]]]:
    path.write_bytes(data)
    found = check_file(path, CHAT, most)
    return found.lines, [(problem.code, problem.line) for problem in found.problems]


def test_blank_lines_marks_and_ends_of_lines_are_no_problem(tmp_path: Path) -> None:
    place = tmp_path / "in.jsonl"
    data = b"\xef\xbb\xbf" + lines(3).replace(b"\n", b"\r\n") + b"\r\n  \n"
    assert checked(place, data) == (3, [])
    assert checked(place, lines(3).rstrip()) == (3, [])
    assert checked(place, b"\n \n") == (0, [("empty_file", None)])
    assert checked(place, lines(5), most=5) == (5, [])
    assert checked(place, lines(6), most=5)[1] == [("too_many_requests", None)]


def test_lines_that_are_too_long_have_their_number_and_those_after_them_too(
    tmp_path: Path,
) -> None:
    place = tmp_path / "in.jsonl"
    long = json.dumps(line("long", body={"x": "y" * MAX_ROW_BYTES})).encode()
    data = lines(2) + long + b"\n" + b"{\n" + long
    assert checked(place, data)[1] == [
        ("line_too_long", 3),
        ("invalid_json_line", 4),
        ("line_too_long", 5),
    ]


def test_problems_are_bounded(tmp_path: Path) -> None:
    assert len(checked(tmp_path / "in.jsonl", b"{\n" * 5000)[1]) == 100
