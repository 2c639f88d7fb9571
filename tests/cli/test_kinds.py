"""The kind of a failure says what is to be mended: the row, the template, or the request."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import redline
from support.scripted import Answer, Asked, completion, scripted

Cli = Callable[..., Any]
Rows = Callable[..., str]


def answer(asked: Asked) -> Answer:
    is_bad = "bad" in json.dumps(asked.body)
    return Answer(400, {"error": {"message": "no"}}) if is_bad else Answer(200, completion())


def kinds() -> dict[int, str]:
    """The kind of each failure, by row."""
    lines = Path("out.failed.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    assert {line["status"] for line in found} == {"rejected"}
    return {line["row"]: line["error"]["kind"] for line in found}


def test_a_bad_row_a_bad_template_and_a_400(cli: Cli, rows: Rows) -> None:
    given = rows(
        {"custom_id": "a", "n": 1},
        {"custom_id": "b", "n": 0},
        "{not json}\n",
        {"custom_id": "a", "n": 2},
        {"custom_id": "d", "n": "bad"},
        {"custom_id": "e"},
    )
    with scripted(answer) as server:
        prompt = "{{ n if n == 'bad' else 1 / n }}"
        where = ("--base-url", f"{server.url}/v1", "-o", "out.jsonl")
        told = cli("run", given, "--prompt", prompt, *where)
    assert told.status == 1
    assert kinds() == {
        2: "bad_template", 3: "bad_row", 4: "bad_row", 5: "rejected", 6: "bad_template"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("row", "flags", "kind"),
    [
        ({"text": "a"}, (), "bad_row"),
        ({"messages": []}, (), "bad_row"),
        ({"prompt": "a", "stream": True}, (), "bad_row"),
        ({"url": 3, "body": {}}, (), "bad_row"),
        ({"text": 'a"'}, ("--body", '{"messages": "{{ text }}"}'), "bad_template"),
        ({"prompt": "bad"}, (), "rejected"),
    ],
)
def test_what_is_to_be_mended(
    cli: Cli, rows: Rows, row: dict[str, Any], flags: tuple[str, ...], kind: str
) -> None:
    with scripted(answer) as server:
        where = ("--base-url", f"{server.url}/v1", "-o", "out.jsonl")
        cli("run", rows(row), *flags, *where)
    assert kinds() == {1: kind}
    assert len(server.asked) == (kind == "rejected")


def test_python_catches_both_as_rejected() -> None:
    report = redline.run([{"x": 1}], prompt="{{ 1 / (x - 1) }}", endpoint="sim", progress=False)
    (outcome,) = report.outcomes
    assert isinstance(outcome.error, redline.errors.BadTemplate)
    assert issubclass(redline.errors.BadTemplate, redline.errors.Rejected)
    assert issubclass(redline.errors.BadRow, redline.errors.Rejected)
