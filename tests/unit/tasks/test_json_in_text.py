"""The JSON in a reply: every row of the table, in time that is linear in the tokens read."""

from __future__ import annotations

import json
import sys
from types import FrameType

import pytest

from redline.tasks.answers import find_json
from support.tables import rows

TABLE = rows("json_replies")


def test_the_json_is_that_of_the_table() -> None:
    for row in TABLE:
        expected = row["value"] if row["found"] else None
        found = find_json(row["reply"], row["kind"])
        assert found == expected, row["reply"]
        assert type(found) is type(expected), row["reply"]


@pytest.mark.parametrize(
    "reply",
    [
        '{"a": ' + "9" * 5000 + "}",  # more digits than Python converts
        '{"a": 1e999}',  # infinite as a float, and no JSON any more once written again
        "[" * 100_000 + "]" * 100_000,
    ],
)
def test_what_python_could_not_hold_is_not_taken(reply: str) -> None:
    assert find_json(reply) is None
    assert find_json(reply + ' {"b": 1}') == {"b": 1}


@pytest.mark.parametrize("depth", [1, 10, 150])
def test_values_may_nest(depth: int) -> None:
    text = '{"a":' * depth + "[1]" + "}" * depth
    assert find_json(f"Here: {text}!") == json.loads(text)


UNITS = (
    "[", "{", '{"a":', '["', '{"', '"', '\\"', "[1,", "{}", "[[]", '{"a":{}', "}", "]{", '["\\',
    '"[', '{"a":"b",', "```json\n{", '{"a":1}{', "[{", '{"a\n',
)  # fmt: skip


def calls_of(text: str, most: int) -> int:
    """The calls that Python makes to read `text`; it fails at more than `most`."""
    calls = 0

    def count(frame: FrameType, event: str, arg: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")
        assert calls <= most, "it reads again and again"

    sys.setprofile(count)
    try:
        find_json(text)
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize("unit", UNITS)
def test_no_token_is_read_again_and_again(unit: str) -> None:
    text = unit * (4_000 // len(unit))
    assert calls_of(text, 20 * len(text)) > 0


@pytest.mark.parametrize(
    "value",
    [
        {"question": "2+2?", "answer": "<think>2 and 2 make 4.</think>4"},
        {"html": "<s>$20</s> now $15"},
        {"prompt": "[INST] Hi [/INST]", "n": [1, [2]]},
        {"note": 'a \\ "quoted" </think> end', "t": "<|im_end|>"},
        ["◁think▷", "<think>"],
    ],
)
@pytest.mark.parametrize(
    "reply",
    ["{}", "```json\n{}\n```", "<think>Is it {{}} or [1]?</think>\n{}<|im_end|>\n{{}}"],
)
def test_tags_inside_strings_are_data(value: object, reply: str) -> None:
    assert find_json(reply.format(json.dumps(value, ensure_ascii=False))) == value
