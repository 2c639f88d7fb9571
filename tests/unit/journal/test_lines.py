"""What a line of a results file holds, byte by byte."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from redline.errors import Rejected, ServerFailed
from redline.journal import Output, Result, failure_writer, line_writer
from redline.sources import Row
from redline.waist import Outcome, Reply

BEGINNING = b'{"v":1,"hash":"00000000000000ff","custom_id":null,"row":3'
REPLY = Reply(
    output="hi",
    finish_reason="stop",
    usage={"total_tokens": 3},
    model="m",
    body=b'{"choices":\r\n [1.5]}\n',
    request_id="r",
)
PLAIN = (
    b',"output":"hi","tool_calls":null,"finish_reason":"stop","usage":{"total_tokens":3},'
    b'"model":"m","endpoint":"e","attempts":1,"latency_s":0.1235'
)


def line(outcome: dict[str, Any], mark: int = 0, **output: Any) -> bytes:
    of: dict[str, Any] = {
        "status": "succeeded",
        "reply": REPLY,
        "endpoint": "e",
        "latency_s": 0.12345678,
    }
    result = Result(
        row=Row(3, 4, {"a": 1}, b""),
        key=255,
        mark=mark,
        custom_id=None,
        outcome=Outcome(**of | outcome),
    )
    return line_writer(Output(path=Path("out.jsonl"), **output))(result)


def test_an_outcome_is_named_after_its_row() -> None:
    outcome = Outcome(status="succeeded", reply=REPLY)
    Result(Row(3, 4, {"a": 1}, b""), 255, "r3", outcome).name_outcome()
    assert (outcome.custom_id, outcome.row, outcome.input) == ("r3", 3, {"a": 1})


def sealed(body: bytes) -> bytes:
    return b'%b,"crc":"%08x"}\n' % (body, crc32(body))


@pytest.mark.parametrize(
    ("outcome", "output", "expected"),
    [
        ({}, {}, PLAIN),
        ({"is_cached": True}, {}, PLAIN + b',"cached":true'),
        ({"is_batched": True}, {"keep_input": True}, PLAIN + b',"batched":true,"input":{"a":1}'),
        ({}, {"raw": True}, PLAIN + b',"response":{"choices":[1.5]}'),
        # A task's fields come before those that not every line has, and may replace any other one.
        (
            {"fields": {"tag": None, "model": "t"}, "is_cached": True},
            {"keep_input": True},
            PLAIN.replace(b'"m"', b'"t"') + b',"tag":null,"cached":true,"input":{"a":1}',
        ),
    ],
)
def test_fields_of_a_success(
    outcome: dict[str, Any], output: dict[str, Any], expected: bytes
) -> None:
    assert line(outcome, **output) == sealed(BEGINNING + expected)


def test_a_named_rows_line_has_the_mark_of_its_content() -> None:
    assert line({}, mark=10) == sealed(BEGINNING + PLAIN + b',"row_hash":"0000000a"')


def test_the_mark_has_its_form_behind_a_reply_that_was_mended() -> None:
    """Readers look for these bytes."""
    reply = Reply(output="x", body=b'{"a":1e999,\n"b":2}')
    found = line({"reply": reply}, mark=10, raw=True)
    assert found[:-19].endswith(b',"row_hash":"0000000a"'), found


def test_a_success_without_a_reply() -> None:
    nothing = b',"output":null,"tool_calls":null,"finish_reason":null,"usage":null,"model":null'
    ending = b',"endpoint":"e","attempts":1,"latency_s":0.1235'
    assert line({"reply": None}) == sealed(BEGINNING + nothing + ending)


def failure(error: Rejected | ServerFailed, content: bytes = b"", **output: Any) -> dict[str, Any]:
    """The line of a row that has failed, of which `content` is all that is known, if any."""
    result = Result(
        row=Row(3, 4, None if content else {"a": 1}, content),
        key=255,
        mark=10,
        custom_id="r3",
        outcome=Outcome(
            status="rejected", error=error, endpoint="e", attempts=2, latency_s=0.12345678
        ),
    )
    line = failure_writer(Output(path=Path("out.jsonl"), **output))(result)
    body, _, checksum = line.rpartition(b',"crc":"')
    assert checksum == b'%08x"}\n' % crc32(body)
    assert body.endswith(b',"row_hash":"0000000a"')
    found: dict[str, Any] = json.loads(line)
    return found


def test_a_failures_line_says_which_row_failed_how_and_what_it_was() -> None:
    error = Rejected("no such\ud800 model", status=404, where="endpoint e", hint="use\x1b another")
    found = failure(error)
    del found["crc"], found["row_hash"]
    assert found == {
        "v": 1,
        "hash": "00000000000000ff",
        "custom_id": "r3",
        "row": 3,
        "line": 4,
        "status": "rejected",
        "error": found["error"],
        "output": None,
        "endpoint": "e",
        "attempts": 2,
        "latency_s": 0.1235,
        "input": {"a": 1},
    }
    said = found["error"]
    assert (said["kind"], said["status"], said["where"]) == (error.kind, 404, "endpoint e")
    # What no file or terminal can take is replaced.
    assert said["message"].startswith("no such")
    assert said["hint"].startswith("use")
    assert "\ud800" not in said["message"]
    assert "\x1b" not in said["hint"]


def test_a_row_that_could_not_be_read_is_known_by_its_beginning() -> None:
    assert failure(Rejected("not JSON"), b"{\xff" + b"x" * 5000)["input"] == "{\ufffd" + "x" * 998


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (404, b'{"error":{"message":"no"}}', {"error": {"message": "no"}}),
        (502, b"<h1>Bad \xff gateway</h1>", "<h1>Bad \ufffd gateway</h1>"),
        (502, b"", None),
        (None, b"{}", None),
    ],
)
def test_a_failure_of_the_batch_format_holds_the_endpoints_own_answer(
    status: int | None, body: bytes, expected: object
) -> None:
    error = ServerFailed("no", status=status)
    error.keep_body(body)
    found = failure(error, format="batch").get("response")
    if expected is None:
        assert found is None
    else:
        assert found is not None
        assert (found["status_code"], found["body"]) == (status, expected)
    assert "response" not in failure(error)


@pytest.mark.parametrize("custom_id", ["a", None])
def test_a_success_of_the_batch_format(custom_id: str | None) -> None:
    result = Result(
        row=Row(3, 4, {"a": 1}, b""),
        key=255,
        mark=0,
        custom_id=custom_id,
        outcome=Outcome(
            status="succeeded",
            reply=REPLY,
            attempts=2,
            latency_s=0.12345678,
            is_cached=True,
            is_batched=True,
            fields={"tag": "x"},
        ),
    )
    output = Output(path=Path("out.jsonl"), format="batch", keep_input=True)
    found = json.loads(line_writer(output)(result))
    assert found["custom_id"] == (custom_id or "row-3")
    assert found["response"] == {
        "status_code": 200,
        "request_id": "r",
        "body": {"choices": [1.5]},
    }
    assert found["error"] is None
    own = ("id", "hash", "row", "attempts", "latency_s", "tag", "cached", "batched", "input")
    assert [found[name] for name in own] == [
        "redline_00000000000000ff",
        "00000000000000ff",
        3,
        2,
        0.1235,
        "x",
        True,
        True,
        {"a": 1},
    ]
