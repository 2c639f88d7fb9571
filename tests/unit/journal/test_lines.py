"""What a line of a results file holds, byte by byte."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from redline.journal import Output, Result, line_writer
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
