"""A task as a file states it: what is wrong is named, with the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from redline.errors import ConfigError
from redline.tasks.evaluate import load

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
    ("old", "new", "what", "hint"),
    [
        ("gold =", "glod =", "unknown setting: glod", "did you mean gold?"),
        ("shots = 2", 'shots = "two"', "shots must be a whole number, not text", ""),
        ('"capital"', "3", "gold must be text, not a whole number", ""),
        ("prompt =", "system =", "prompt is missing", ""),
        ('metric = "exact"', "judge = {}", "judge.model is missing", ""),
        (
            'metric = "exact"',
            "fields = [1]",
            "fields[0] must be text, not a whole number",
            "",
        ),
        ("gold =", "gold", "cannot read the task: ", ""),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, old: str, new: str, what: str, hint: str) -> None:
    path = tmp_path / "capitals.toml"
    path.write_text(TASK.replace(old, new, 1))
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert caught.value.what.startswith(what)
    assert (caught.value.where, caught.value.hint) == (str(path), hint)
