"""Templates send columns and nothing else: no method, no function of Jinja's, no null."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import redline
from redline.errors import ConfigError

Cli = Callable[..., Any]
Rows = Callable[..., str]

SIM = ("--endpoint", "sim", "--model", "m")
SAID = "You said: "
ORDER = {"order": {"items": ["a", "b"], "values": 3, "x": None}}


def sent(cli: Cli, name: str, *flags: str) -> str:
    """What the sim was sent, as it says it."""
    told = cli("run", name, *SIM, *flags)
    assert told.status == 0, told.err
    (output,) = told.outputs
    return str(output).removeprefix(SAID)


def failure(cli: Cli, name: str, *flags: str) -> str:
    told = cli("run", name, *SIM, *flags)
    assert told.status == 1, told.out + told.err
    assert told.out == ""
    return str(told.err)


@pytest.mark.parametrize(
    ("row", "template", "said"),
    [
        (ORDER, "{{ order.items | join('+') }} {{ order.values }}", "a+b 3"),
        (ORDER, "{% for name, value in order.items() %}{% endfor %}x", None),
        ({"order": {"n": 1}}, "{% for k, v in order.items() %}{{ k }}={{ v }}{% endfor %}", "n=1"),
        ({"range": "r", "dict": "d", "self": "s"}, "{{ range }}{{ dict }}{{ self }}", "rds"),
        ({"n": 3}, "{% for i in range(n) %}{{ i }}{% if not loop.last %},{% endif %}{% endfor %}",
         "0,1,2"),
        ({"text": "hi"}, "{{ text.upper() }}", "HI"),
        ({"Customer Name": "Ann"}, '{{ row["Customer Name"] }}', "Ann"),
        ({"row": {"a": 1}}, "{{ row.a }}", "1"),
        ({"note": None, "t": "a"}, "{{ t }}{{ note | default('-') }}", "a-"),
        ({"t": "a"}, "{{ t }}{{ note | default('-') }}", "a-"),
        ({"note": None, "t": "a"}, "{{ t }}{% if note %}!{% endif %}", "a"),
        ({"t": "a"}, "{{ t }}{% if note %}!{% endif %}", "a"),
        ({"note": None}, "{{ note is none }} {{ note is defined }}", "True True"),
        ({"o": {"note": None}}, "{{ o.note | default('-') }} {{ o | json }}", '- {"note":null}'),
    ],
)  # fmt: skip
def test_columns_win(cli: Cli, rows: Rows, row: Any, template: str, said: str | None) -> None:
    name = rows(row)
    if said is None:
        assert "object is not callable" in failure(cli, name, "--prompt", template)
    else:
        assert sent(cli, name, "--prompt", template) == said


@pytest.mark.parametrize(
    ("row", "template", "problem"),
    [
        ({"a": 1}, "{{ range }}", "'range' is undefined"),
        ({"a": 1}, "{{ self }}", "'self' is undefined"),
        ({"a": 1}, "{{ dict }}", "'dict' is undefined"),
        ({"order": {"x": 1}}, "{{ order.keys }}", "has no attribute 'keys'"),
        ({"text": "a"}, "{{ text.title }}", "has no attribute 'title'"),
        ({"tags": ["a"]}, "{{ tags.index }}", "has no attribute 'index'"),
        ({"text": None}, "{{ text }}", "'text' is null"),
        ({"text": None}, "{{ 'a' ~ text }}", "'text' is null"),
        ({"text": None}, "{{ text | upper }}", "'text' is null"),
        (ORDER, "{{ order.x }}", "'order.x' is null"),
        ({"tags": ["a", None]}, "{{ tags | join(',') }}", "'tags.1' is null"),
        ({"a b": 1}, '{{ row["b a"] }}', "has no attribute 'b a'"),
        ({"a": 1}, "{{ [a, b] }}", "'b' is undefined"),
        ({"a": 1}, "{{ {'a': a, 'b': row.b} | pprint }}", "has no attribute 'b'"),
        ({"tags": ["a"]}, "{{ tags | map('upper') }}", "a generator is not text"),
    ],
)
def test_what_is_no_column_fails_its_row(
    cli: Cli, rows: Rows, row: Any, template: str, problem: str
) -> None:
    assert problem in failure(cli, rows(row), "--prompt", template)


@pytest.mark.parametrize(
    "flags",
    [
        ("--prompt", "{{ t }}", "--system", "{{ note }}"),
        ("--body", '{"messages": [{"role": "user", "content": "{{ note }}"}]}'),
        ("--url", "/v1/chat/completions?q={{ note }}", "--prompt", "{{ t }}"),
        ("--prompt", "@prompt.txt"),
    ],
)
def test_every_template_is_read_in_the_same_way(cli: Cli, rows: Rows, flags: Any) -> None:
    Path("prompt.txt").write_text("{{ note }}", "utf-8")
    assert "'note' is null" in failure(cli, rows({"t": "a", "note": None}), *flags)


def test_a_byte_order_mark_of_a_file_is_no_part_of_the_template(cli: Cli, rows: Rows) -> None:
    Path("prompt.txt").write_text("{{ t }}", "utf-8-sig")
    Path("body.json").write_text('{"messages": [{"role": "user", "content": "a"}]}', "utf-8-sig")
    assert sent(cli, rows({"t": "a"}), "--prompt", "@prompt.txt") == "a"
    assert sent(cli, rows({"t": "a"}), "--body", "@body.json", "--constant-prompt") == "a"


def test_a_number_that_is_none_fails_its_row() -> None:
    rows = [{"x": float("nan"), "t": "a"}]
    report = redline.run(rows, endpoint="sim", model="m", prompt="{{ t }} {{ x }}")
    (outcome,) = report.outcomes or []
    assert "'x' is null" in str(outcome.error)
    report = redline.run(
        [{"t": "a"}],
        endpoint="sim",
        model="m",
        prompt="{{ t }} {{ x }}",
        before=lambda row: {**row, "x": float("inf")},
    )
    (outcome,) = report.outcomes or []
    assert "'x' is inf, which is not a number" in str(outcome.error)


@pytest.mark.parametrize(
    ("flags", "hint"),
    [
        (("--prompt", "Classify: {text}"), "did you mean {{ text }}?"),
        (("--prompt", "Tag ${text}", "--system", "In {{ lang }}"), "did you mean {{ text }}?"),
        (("--prompt", "Classify"), "write columns as {{ column }}."),
        (("--prompt", "@prompt.txt"), "did you mean {{ text }}?"),
        (("--body", '{"messages": [{"role": "user", "content": "{text}"}]}'),
         "did you mean {{ text }}?"),
    ],
)  # fmt: skip
def test_a_prompt_without_a_column_is_refused_unless_it_is_meant(
    cli: Cli, rows: Rows, flags: Any, hint: str
) -> None:
    Path("prompt.txt").write_text("Classify: {text}\n", "utf-8")
    name = rows({"text": "a", "lang": "French"})
    command = ("run", name, *SIM, *flags, "-o", "out.jsonl")
    for dry in ((), ("--dry-run",)):
        told = cli(*command, *dry)
        assert told.status == 2
        assert "uses no column, so every row would send the same request\n" in told.err
        assert f"hint: {hint}" in told.err
    assert not Path("out.jsonl").exists()
    assert cli(*command, "--constant-prompt").status == 0


def test_a_system_message_may_be_the_same_for_all_rows(cli: Cli, rows: Rows) -> None:
    assert sent(cli, rows({"prompt": "hi"}), "--system", "Be brief.") == "hi"
    assert sent(cli, rows({"t": "x"}), "--system", "About {{ t }}", "--prompt", "Go.") == "Go."


def test_python_refuses_it_too() -> None:
    with pytest.raises(ConfigError) as caught:
        redline.run([{"text": "a"}], endpoint="sim", model="m", prompt="Classify: {text}")
    assert caught.value.hint.startswith("did you mean {{ text }}?")
    report = redline.run(
        [{"text": "a"}], endpoint="sim", model="m", prompt="Go", constant_prompt=True
    )
    assert report.succeeded == 1


def test_tag_eval_and_synth_refuse_it_too(cli: Cli, rows: Rows) -> None:
    name = rows({"text": "a", "gold": "b"})
    Path("labels.json").write_text('["a", "b"]', "utf-8")
    told = cli("tag", name, *SIM, "--schema", "labels.json", "--prompt", "{text}", "-o", "o.jsonl")
    assert "did you mean {{ text }}?" in told.err
    task = {"metric": "exact", "prompt": "Say {text}", "gold": "gold"}
    lines = "".join(f"{key} = {json.dumps(value)}\n" for key, value in task.items())
    Path("task.toml").write_text(lines, "utf-8")
    told = cli("eval", "--task", "task.toml", "--data", name, *SIM, "-o", "e.jsonl")
    assert "did you mean {{ text }}?" in told.err
    made = ("synth", *SIM, "--count", "2", "-o", "s.jsonl")
    told = cli(*made, "--prompt", "A story about {topic}", "--vary", "topic=tea,rain")
    assert "did you mean {{ topic }}?" in told.err
    assert cli(*made, "--prompt", "A story", "--min-chars", "1").status in (0, 1)
