"""A task as a file states it: what is wrong is named, with the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from redline.errors import ConfigError
from redline.tasks.evaluate import Evaluation, JudgeSettings, load, shots_of

TASK = """
prompt = "What is the capital of {{ country }}?"
gold = "capital"
metric = "exact"
shots = 2
shots_file = "shots.jsonl"
"""


def test_a_task_is_named_by_its_file_and_its_shots_are_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "capitals.toml"
    path.write_text(TASK)
    found = load(path)
    assert (found.name, found.shots) == ("capitals", 2)
    assert found.shots_file == str(tmp_path / "shots.jsonl")


@pytest.mark.parametrize(
    ("stated", "read"),
    [
        ("s3://bucket/shots.jsonl", "s3://bucket/shots.jsonl"),
        ("https://host/shots.jsonl", "https://host/shots.jsonl"),
        ("file:///data/shots.jsonl", "/data/shots.jsonl"),
        ("/data/shots.jsonl", "/data/shots.jsonl"),
    ],
)
def test_shots_may_be_an_object_or_anywhere_on_this_machine(
    tmp_path: Path, stated: str, read: str
) -> None:
    path = tmp_path / "capitals.toml"
    path.write_text(TASK.replace("shots.jsonl", stated))
    assert load(path).shots_file == read


@pytest.mark.parametrize(
    ("old", "new", "what", "hint"),
    [
        ("gold =", "glod =", "unknown setting: glod", "did you mean gold?"),
        ("shots = 2", 'shots = "two"', "shots must be a whole number, not text", ""),
        ("shots = 2", "shots = -1", "shots must be a whole number of at least 0", ""),
        ("shots = 2", "shots = 1001", "shots must be a whole number of at most 1000", ""),
        ('"capital"', "3", "gold must be text, not a whole number", ""),
        ("prompt =", "system =", "prompt is missing", ""),
        ('metric = "exact"', "judge = {}", "judge.model is missing", ""),
        ('metric = "exact"', "judge = 'gpt-4o'", "judge must be a table, not text", ""),
        (
            'metric = "exact"',
            "fields = [1]",
            "fields[0] must be text, not a whole number",
            "",
        ),
        *(
            (old, new, f"capitals.toml is not valid TOML: {why}", "see https://toml.io")
            for old, new, why in (
                ("gold =", "gold", "Expected"),
                ("shots = 2", f"shots = {'[' * 5000}", "lists are nested too deeply"),
                ("shots = 2", f"shots = {'2' * 5000}", "a number is too long"),
            )
        ),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, old: str, new: str, what: str, hint: str) -> None:
    path = tmp_path / "capitals.toml"
    path.write_text(TASK.replace(old, new, 1))
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert caught.value.what.startswith(what)
    assert (caught.value.where, caught.value.hint) == (str(path), hint)


def shots(tmp_path: Path, metric: str, gold: object, **settings: Any) -> list[tuple[str, str]]:
    """The prompts and answers of the only row of a file of shots."""
    path = tmp_path / "shots.jsonl"
    path.write_text(json.dumps({"q": "Where?", "gold": gold}))
    given = {"prompt": "{{ q }}", "gold": "gold", "shots": 1, "shots_file": str(path), **settings}
    task = Evaluation(name="task", metric=metric, **given)
    return shots_of(task, lambda row: str(row["q"]))


@pytest.mark.parametrize(
    ("metric", "gold", "answer"),
    [
        ("json", {"a": 1, "b": True}, '{"a":1,"b":true}'),
        ("json", '{"a": 1}', '{"a": 1}'),
        ("json", [1, None], "[1,null]"),
        ("exact", ["NYC", "New York"], "NYC"),
        ("exact", '["NYC", "New York"]', "NYC"),
        ("exact", True, "true"),
        ("number", "2 + 2 = 4\n#### 4", "2 + 2 = 4\n#### 4"),
        ("number", 4.5, "4.5"),
        ("choice", 2, "C"),
        ("choice", [1, "C"], "B"),
        ("judge", {"a": True}, '{"a":true}'),
    ],
)
def test_a_shot_is_answered_as_a_model_should_answer(
    tmp_path: Path, metric: str, gold: object, answer: str
) -> None:
    judge = JudgeSettings(model="m") if metric == "judge" else None
    assert shots(tmp_path, metric, gold, judge=judge) == [("Where?", answer)]


@pytest.mark.parametrize(
    ("metric", "gold", "what"),
    [
        ("exact", None, "the gold answer is neither text nor a number: null"),
        ("number", "many", "the gold answer holds no number: many"),
    ],
)
def test_a_shot_without_a_right_answer_is_refused(
    tmp_path: Path, metric: str, gold: object, what: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        shots(tmp_path, metric, gold)
    assert caught.value.what == f"a shot cannot be used: {what}"
    assert caught.value.where == str(tmp_path / "shots.jsonl")
