"""What a user's own code, a slow reader or a strange server does to one row stays with that row."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import redline
from redline.job import build
from redline.job.outputs import resume

ROWS = [{"n": number} for number in range(8)]


async def answer(row: dict[str, Any]) -> Any:
    return row["n"]


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_what_a_before_function_forgets_to_return_fails_its_row(tmp_path: Path) -> None:
    report = redline.run(
        ROWS,
        call=answer,
        before=lambda row: None if row["n"] == 3 else row,  # type: ignore[arg-type,return-value]
        output=tmp_path / "out.jsonl",
    )
    assert (report.succeeded, report.failed, report.unfinished) == (7, 1, 0)
    error = lines(tmp_path / "out.failed.jsonl")[0]["error"]
    assert error["message"] == "the `before` function returned a value of type NoneType, not a dict"


@pytest.mark.parametrize(
    "value", [object(), {"cut \ud83d": {object()}}, float], ids=["object", "half", "type"]
)
def test_an_output_that_is_not_json_fails_its_row(tmp_path: Path, value: object) -> None:
    async def call(row: dict[str, Any]) -> Any:
        return value if row["n"] == 3 else row["n"]

    report = redline.run(ROWS, call=call, output=tmp_path / "out.jsonl")
    assert (report.succeeded, report.failed, report.unfinished) == (7, 1, 0)
    message = lines(tmp_path / "out.failed.jsonl")[0]["error"]["message"]
    assert "cannot be written as JSON" in message


@dataclass
class Cut:
    text: str


def test_halves_of_surrogate_pairs_in_an_output_are_written_as_replacement_characters(
    tmp_path: Path,
) -> None:
    async def call(row: dict[str, Any]) -> Any:
        return Cut("cut \ud83d") if row["n"] else {"both \ud83d\ude00": ("\ude00", 1.5, None)}

    path = tmp_path / "out.jsonl"
    report = redline.run(ROWS[:2], call=call, output=path, concurrency=1)
    assert (report.succeeded, report.failed) == (2, 0)
    written = [{"both \U0001f600": ["\ufffd", 1.5, None]}, {"text": "cut \ufffd"}]
    assert [line["output"] for line in lines(path)] == written

    def fail(output: Any) -> Any:
        raise ValueError("no")

    redline.run(ROWS[:2], call=call, after=fail, output=path, concurrency=1, restart=True)
    assert [line["output"] for line in lines(tmp_path / "out.failed.jsonl")] == written


class Vector:
    """An array, or a tensor, as far as JSON is concerned."""

    def __init__(self, *numbers: float) -> None:
        self.numbers = numbers

    def tolist(self) -> list[float]:
        if not self.numbers:
            raise KeyError("nothing")
        return [*self.numbers]


class Model:
    """A model of pydantic's, which is no dependency here."""

    def model_dump(self) -> dict[str, Any]:
        return {"vector": Vector(1.5, 2), "at": dt.date(2024, 5, 6)}


def test_outputs_and_rows_of_other_libraries_are_written_as_json_holds_them(
    tmp_path: Path,
) -> None:
    async def call(row: dict[str, Any]) -> Any:
        assert row == {"vector": [1.5, 2], "at": "2024-05-06"}
        return kinds.pop()

    kinds = [Vector(), Model(), Vector(3)]
    path = tmp_path / "out.jsonl"
    report = redline.run([Model(), Model(), Model()], call=call, output=path, concurrency=1)
    assert (report.succeeded, report.failed) == (2, 1)
    dumped = {"vector": [1.5, 2], "at": "2024-05-06"}
    assert [line["output"] for line in lines(path)] == [[3], dumped]
    message = lines(tmp_path / "out.failed.jsonl")[0]["error"]["message"]
    assert message == "the output cannot be written as JSON: a Vector raised KeyError: 'nothing'"


def test_a_failing_after_function_keeps_the_answer_that_was_paid_for(tmp_path: Path) -> None:
    def after(output: Any) -> Any:
        return 1 // (output - 3)

    report = redline.run(ROWS, call=answer, after=after, output=tmp_path / "out.jsonl")
    assert (report.succeeded, report.failed) == (7, 1)
    failure = lines(tmp_path / "out.failed.jsonl")[0]
    assert failure["output"] == 3
    assert "ZeroDivisionError" in failure["error"]["message"]


def test_an_answer_without_json_that_an_after_function_refuses_fails_its_row_alone(
    tmp_path: Path,
) -> None:
    async def call(row: dict[str, Any]) -> Any:
        return object() if row["n"] == 3 else row["n"]

    report = redline.run(ROWS, call=call, after=int, output=tmp_path / "out.jsonl")
    assert (report.succeeded, report.failed, report.unfinished) == (7, 1, 0)
    (failure,) = lines(tmp_path / "out.failed.jsonl")
    assert (failure["output"], failure["input"]) == (None, {"n": 3})
    assert "the `after` function raised TypeError" in failure["error"]["message"]


def test_a_row_that_a_function_changed_is_whole_again_when_it_is_tried_again() -> None:
    tries: list[int] = []

    async def call(row: dict[str, Any]) -> int:
        number = row.pop("n")
        tries.append(number)
        if tries.count(number) == 1:
            raise ConnectionError("the first time")
        return number

    report = redline.run(ROWS[:2], call=call)
    assert report.succeeded == 2
    assert [outcome.input for outcome in report.outcomes] == ROWS[:2]


def test_something_cancelled_inside_a_function_fails_its_row_and_loses_no_worker() -> None:
    async def call(row: dict[str, Any]) -> int:
        if row["n"] % 2:
            inner = asyncio.ensure_future(asyncio.sleep(9))
            inner.cancel()
            await inner
        return 1

    report = redline.run([{"n": number} for number in range(300)], call=call)
    assert (report.succeeded, report.failed, report.unfinished) == (150, 150, 0)


def test_rows_that_fail_with_the_same_exception_keep_their_own_places() -> None:
    refused, cause = redline.errors.Rejected("no login"), LookupError("no key")

    async def call(row: dict[str, Any]) -> Any:
        raise refused from cause

    report = redline.run(["a", "b", "c"], call=call)
    errors = [outcome.error for outcome in report.outcomes]
    assert [error.where.split(",")[0] for error in errors if error is not None] == [
        *("<iterable>:1", "<iterable>:2", "<iterable>:3")
    ]
    assert all(error is not None and error.__cause__ is cause for error in errors)


def test_a_row_whose_call_fails_while_it_handles_an_exception_shows_both() -> None:
    async def call(row: dict[str, Any]) -> Any:
        try:
            return {}["answer"]
        except KeyError:
            raise redline.errors.Rejected("no answer")  # noqa: B904

    (outcome,) = redline.run(["a"], call=call).outcomes
    assert outcome.error is not None
    shown = "".join(traceback.format_exception(outcome.error))
    assert "KeyError: 'answer'" in shown


def test_an_iterable_that_raises_ends_the_run_and_saves_what_is_in_flight(tmp_path: Path) -> None:
    def broken() -> Iterator[dict[str, int]]:
        yield from ROWS
        raise ValueError("the database went away")

    async def slow(row: dict[str, Any]) -> int:
        await asyncio.sleep(0.3)
        return 1

    report = redline.run(broken(), call=slow, output=tmp_path / "out.jsonl")
    assert isinstance(report.stopped, redline.ConfigError)
    assert "ValueError: the database went away" in report.stopped.what
    assert isinstance(report.stopped.__cause__, ValueError)
    assert traceback.extract_tb(report.stopped.__cause__.__traceback__)[-1].name == "broken"
    assert report.succeeded == len(lines(tmp_path / "out.jsonl")) > 0


def test_a_deadline_does_not_wait_for_a_slow_iterable() -> None:
    def slow() -> Iterator[dict[str, int]]:
        yield {"n": 1}
        time.sleep(5)
        yield {"n": 2}

    begun_s = time.monotonic()
    report = redline.run(slow(), call=answer, deadline_s=0.5)
    # The source's thread cannot be interrupted, but the run's own end does not wait for it.
    assert report.elapsed_s < 4
    assert report.succeeded == 1
    assert isinstance(report.stopped, redline.errors.TimedOut)
    assert time.monotonic() - begun_s < 30


def test_a_limit_does_not_wait_for_the_row_after_it() -> None:
    def live() -> Iterator[dict[str, int]]:
        yield from ROWS[:3]
        raise AssertionError("a fourth row was asked for")

    report = redline.run(live(), call=answer, limit=3)
    assert (report.succeeded, report.is_input_done) == (3, True)


def test_failures_that_fail_again_do_not_keep_the_rows_behind_them_from_a_retry(
    tmp_path: Path,
) -> None:
    rows = [{"n": number} for number in range(400)]
    is_mended = False

    async def call(row: dict[str, Any]) -> int:
        if 50 <= row["n"] < 200 or (row["n"] >= 200 and not is_mended):
            raise ValueError("no")
        return 1

    output = tmp_path / "out.jsonl"
    assert redline.run(rows, call=call, output=output).failed == 350
    is_mended = True
    again = redline.run(rows, call=call, output=output, retry_failed=True)
    assert (again.offered, again.succeeded, again.failed) == (350, 200, 150)


def test_failures_under_settings_that_never_worked_are_done_anew(tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    rows = [{"prompt": "a"}, {"prompt": "b"}]
    # The embedded server rejects a body without a model.
    first = redline.run(rows, endpoint="sim", params={"model": None}, output=output)
    assert first.failed == 2
    second = redline.run(rows, endpoint="sim", model="right", output=output)
    assert (second.succeeded, second.skipped) == (2, 0)


def test_two_outputs_of_one_stem_share_nothing(tmp_path: Path) -> None:
    async def bad(row: dict[str, Any]) -> int:
        raise ValueError("no")

    assert redline.run(ROWS, call=bad, output=tmp_path / "s.jsonl").failed == 8
    assert redline.run(ROWS, call=answer, output=tmp_path / "s.json").succeeded == 8


async def test_a_stream_left_while_it_opens_calls_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0

    async def count(row: dict[str, Any]) -> int:
        nonlocal calls
        calls += 1
        return 1

    opened = resume.open_journal

    def slow(*arguments: Any) -> Any:
        time.sleep(0.5)
        return opened(*arguments)

    monkeypatch.setattr(build, "open_journal", slow)
    stream = redline.stream(ROWS * 100, call=count, output=tmp_path / "out.jsonl")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(stream), 0.1)
    await stream.aclose()
    assert calls == 0


def test_a_reader_of_stdout_that_is_slow_costs_no_request_twice(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"prompt": f"{n} " * 500}) + "\n" for n in range(300)))
    command = [sys.executable, "-m", "redline", "run", str(rows), "--endpoint", "sim"]
    process = subprocess.Popen(
        [*command, "--keep-input", "-q", "--timeout", "1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )
    time.sleep(3.5)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert len(out.splitlines()) == 300
    assert b"300 requests" in err
    assert b"0 retries" in err


@pytest.mark.parametrize("when", ["Mon, 01 Jan 99999999999 00:00:00 GMT", "1e999", "-3"])
async def test_a_nonsensical_retry_after_is_taken_for_none(when: str) -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = b'{"error":{"message":"full"}}'
        head = f"HTTP/1.1 429 Full\r\nRetry-After: {when}\r\nContent-Length: {len(body)}\r\n"
        writer.write(head.encode() + b"Connection: close\r\n\r\n" + body)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    no_retry = redline.RetryPolicy(max_retries=0)
    async with server, redline.Client(f"http://127.0.0.1:{port}/v1", retry=no_retry) as client:
        outcome = await client.call(redline.Request(method="GET", url="/chat"))
    assert isinstance(outcome.error, redline.errors.RateLimited)
    assert outcome.error.retry_after_s is None
