"""Which column is tagged where nobody says it, and which one is gold."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from redline.errors import ConfigError
from redline.job.settings import Prompting
from redline.job.work import Renderer
from redline.tasks.tag import Gold, Schema, as_json_schema, first_row, gold_of, prompt_of

ONE = Schema(as_json_schema(["a", "b"]))
TWO = Schema(as_json_schema({"label": ["a", "b"], "urgency": ["low", "high"]}))
FREE = Schema({"type": "object", "properties": {"n": {"type": "integer"}}})


@pytest.mark.parametrize(
    ("columns", "prompt"),
    [
        (["text"], "{{ text }}"),
        (["id", "text", "gold"], "{{ text }}"),
        (["utterance"], "{{ utterance }}"),
        (["custom_id", "utterance"], "{{ utterance }}"),
        (["utterance", "gold"], "{{ utterance }}"),
        (["messages", "text"], None),
        (["prompt"], None),
        (["url", "body"], None),
        (["url", "text"], "{{ text }}"),
    ],
)
def test_the_column_to_be_tagged(columns: list[str], prompt: str | None) -> None:
    assert prompt_of(dict.fromkeys(columns, "x"), "in.csv", Gold("label", "gold")) == prompt


@pytest.mark.parametrize(
    "column",
    [
        *("none", "None", "true", "True", "false", "False", "not"),
        *("loop", "self", "row", "and", "in", "is", "if", "else", "for", "block", "range", "class"),
        *(
            "a b",
            "1",
            "",
            "ü",
            "😀",
            'a"b',
            "a'b",
            "a\\n",
            "a\n\x7f",
            "{{ x }}",
            "}}",
            "{% if %}",
            "#}",
        ),
    ],
)
def test_an_only_column_is_tagged_by_any_name(column: str) -> None:
    prompt = prompt_of({column: "", "custom_id": "7"}, "in.csv", None)
    assert prompt is not None
    assert Renderer(Prompting(prompt=prompt)).prompt({column: "its text"}) == "its text"


@pytest.mark.parametrize(
    ("columns", "example"),
    [
        (["id", "title", "more"], "'{{ id }}'"),
        (["a b", "title"], """'{{ row["a b"] }}'"""),
        (["a'b", "title"], """'{{ row["a'"'"'b"] }}'"""),
        # Tables whose separator is no comma.
        (["id;utterance"], """'{{ row["id;utterance"] }}'"""),
        (["id\tutterance"], """'{{ row["id\\tutterance"] }}'"""),
        ([], "'{{ text }}'"),
    ],
)
def test_nobody_can_tell_which_column(columns: list[str], example: str) -> None:
    with pytest.raises(ConfigError) as caught:
        prompt_of(dict.fromkeys(columns, "x"), "in.csv", None)
    assert caught.value.hint.startswith(f"choose it with --prompt {example}; the columns are: ")


def test_a_pipe_is_not_looked_into() -> None:
    assert prompt_of(None, "-", None) == "{{ text }}"
    assert first_row("-") is None


def test_a_named_pipe_is_not_looked_into(tmp_path: Path) -> None:
    pipe = tmp_path / "rows.jsonl"
    os.mkfifo(pipe)
    assert first_row(str(pipe)) is None


def test_the_first_row_that_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text('{broken\n{"text": "a"}\n{"other": "b"}\n')
    assert first_row(str(path)) == {"text": "a"}
    path.write_text("{broken\n" * 2000 + '{"text": "a"}\n')
    assert first_row(str(path)) is None


ROW: dict[str, Any] = {"text": "x", "category": "a", "a=b": "a", "level": "low"}


@pytest.mark.parametrize(
    ("text", "schema", "gold"),
    [
        ("category", ONE, Gold("label", "category")),
        ("a=b", ONE, Gold("label", "a=b")),
        ("label=category", TWO, Gold("label", "category")),
        ("urgency=level", TWO, Gold("urgency", "level")),
        ("category", FREE, Gold("n", "category")),
    ],
)
def test_gold_names_a_column_and_its_field(text: str, schema: Schema, gold: Gold) -> None:
    assert gold_of(text, schema, ROW) == gold
    if "a=b" not in text:
        assert gold_of(text, schema, None) == gold


@pytest.mark.parametrize(
    ("text", "schema", "what", "hint"),
    [
        (
            "category",
            TWO,
            "--gold category does not say which field of a tag it is compared with",
            "--gold FIELD=category, where FIELD is one of: label, urgency",
        ),
        (
            "lable=category",
            TWO,
            "--gold lable=category names no field of a tag: lable",
            "did you mean label?",
        ),
        ("categry", ONE, "the first row has no column categry", "did you mean category?"),
        ("zzz", ONE, "the first row has no column zzz", "it has: text, category, a=b, level"),
    ],
)
def test_a_gold_that_is_not_there_is_told(text: str, schema: Schema, what: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        gold_of(text, schema, ROW)
    assert (caught.value.what, caught.value.hint) == (what, hint)
