"""The JSON in a reply: every row of the table, in time that is linear in the tokens read."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from mutants import assert_caught, mutant, with_names
from redline.tasks import json_in_text as json_module
from redline.tasks.json_in_text import find_json
from tables import rows

TABLE = rows("json_replies")


def check_replies(module: Any) -> None:
    for row in TABLE:
        expected = row["value"] if row["found"] else None
        found = module.find_json(row["reply"], row["kind"])
        assert found == expected, row["reply"]
        assert type(found) is type(expected), row["reply"]


def test_the_json_is_that_of_the_table() -> None:
    check_replies(json_module)


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


class Counted:
    """A pattern that counts the characters its matches read, and fails after three for each."""

    def __init__(self, pattern: re.Pattern[str], unit: str) -> None:
        self.pattern = pattern
        self.unit = unit
        self.read = 0

    def match(self, text: str, at: int) -> re.Match[str] | None:
        found = self.pattern.match(text, at)
        self.read += found.end() - at if found else 1
        assert self.read <= 3 * len(text), self.unit
        return found


def check_linear(module: Any) -> None:
    for unit in UNITS:
        module._TOKEN = Counted(json_module._TOKEN, unit)
        module.find_json(unit * (20_000 // len(unit)))


def test_no_token_is_read_again_and_again() -> None:
    check_linear(with_names(json_module))


def test_a_scanner_that_goes_back_is_noticed() -> None:
    changed = mutant(json_module, "at = max(scan.at, start + 1)", "at = start + 1")
    assert_caught(check_linear, with_names(json_module), changed)


@pytest.mark.parametrize(
    ("line", "replacement"),
    [
        ("if scan.has_begun:", "if False:"),
        ("return bool(before[1]) or _FENCE_AFTER.match(text, end) is not None", "return False"),
        ("if token[0] != '\"':", "if False:"),
        (
            "values = [value for value in _values(text) if text[value.start] in wanted]",
            "values = _values(text)",
        ),
    ],
)
def test_the_table_notices(line: str, replacement: str) -> None:
    assert_caught(check_replies, json_module, mutant(json_module, line, replacement))
