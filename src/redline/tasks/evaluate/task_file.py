"""Reads a task from a TOML file; an error names the unknown or invalid key. An example:

name = "capitals"
prompt = "What is the capital of {{ country }}? Answer with its name alone."
gold = "capital"
metric = "exact"

[params]
temperature = 0
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from redline.errors import ConfigError, Rejected, nearest
from redline.job.settings import read_toml, struct_in
from redline.process import counted
from redline.sources import first_rows
from redline.store import local_path, url_of
from redline.tasks.evaluate.evaluation import BUILT_IN, Evaluation, Grading


def load(path: Path) -> Evaluation:
    """Loads an evaluation, which is named after the file if the file sets no name.

    Raises ConfigError, which names the file and the key, if it is not valid.
    """
    try:
        table = read_toml(path)
    except FileNotFoundError as error:
        raise ConfigError(f"{path} does not exist", hint="pass the path of a TOML file") from error
    shots = table.get("shots_file")
    if isinstance(shots, str) and url_of(shots) is None:
        # The path is relative to the task's file, not to the working directory.
        table["shots_file"] = str(path.parent / local_path(shots))
    table.setdefault("name", path.stem)
    return struct_in(table, Evaluation, str(path))


def built_in(name: str) -> Evaluation:
    """Returns the built-in evaluation with this name. Raises ConfigError for an unknown name."""
    if name not in BUILT_IN:
        raise ConfigError(
            f"unknown evaluation: {name}",
            hint=nearest(name, BUILT_IN)
            or f"built in: {', '.join(BUILT_IN)}; for others, --task my_task.toml",
        )
    return BUILT_IN[name]


def shots_of(
    evaluation: Evaluation, prompt_of: Callable[[dict[str, Any]], str]
) -> list[tuple[str, str]]:
    """Returns the prompts and right answers of the first rows of `shots_file`.

    prompt_of: renders the prompt of a row. Raises ConfigError if there are too few rows, or if a
    row cannot be read or has no right answer.
    """
    grading = Grading(evaluation)
    path = str(evaluation.shots_file)
    shots = []
    for row in _first_rows(path, evaluation.shots):
        if evaluation.gold not in row:
            raise ConfigError(
                f"a shot has no column {evaluation.gold} with its right answer", where=path
            )
        try:
            answer = grading.example(row)
        except Rejected as error:
            raise ConfigError(f"a shot cannot be used: {error.what}", where=path) from error
        shots.append((prompt_of(row), answer))
    if len(shots) < evaluation.shots:
        raise ConfigError(
            f"{path} has only {counted(len(shots), 'row')} for {counted(evaluation.shots, 'shot')}"
        )
    return shots


def _first_rows(path: str, count: int) -> list[dict[str, Any]]:
    found = []
    with first_rows(path, count) as rows:
        for row in rows:
            if row.data is None:
                what = f"a shot cannot be read: {row.problem}"
                raise ConfigError(what, where=f"{path}:{row.line}")
            found.append(row.data)
    return found
