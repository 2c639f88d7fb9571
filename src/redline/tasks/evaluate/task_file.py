"""A task from a TOML file: every key is known, and a wrong one is refused by name.

name = "capitals"
prompt = "What is the capital of {{ country }}? Answer with its name alone."
gold = "capital"
metric = "exact"

[params]
temperature = 0
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from redline.errors import ConfigError, nearest
from redline.job.settings import struct_in
from redline.process import counted
from redline.sources import first_rows
from redline.tasks.evaluate.evaluation import BUILT_IN, Evaluation


def load(path: Path) -> Evaluation:
    """The evaluation that a file describes. Raises ConfigError that names the file and the key."""
    try:
        table = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(f"{path} does not exist", hint="a task is a TOML file") from error
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"cannot read the task: {error}", where=str(path)) from error
    if isinstance(table.get("shots_file"), str):
        # Beside the task, wherever the command is given.
        table["shots_file"] = str(path.parent / table["shots_file"])
    table.setdefault("name", path.stem)
    return struct_in(table, Evaluation, str(path))


def built_in(name: str) -> Evaluation:
    """The evaluation of that name. Raises ConfigError."""
    if name not in BUILT_IN:
        raise ConfigError(
            f"unknown evaluation: {name}",
            hint=nearest(name, BUILT_IN)
            or f"known are {', '.join(BUILT_IN)}; anything else by --task my_task.toml",
        )
    return BUILT_IN[name]


def shots_of(
    evaluation: Evaluation, prompt_of: Callable[[dict[str, Any]], str]
) -> list[tuple[str, str]]:
    """What was asked and answered, for the first rows of the shots' file.

    Raises ConfigError if there are too few, or one has no answer.
    """
    path = str(evaluation.shots_file)
    shots = []
    for row in _first_rows(path, evaluation.shots):
        if evaluation.gold not in row:
            raise ConfigError(f"a shot has no {evaluation.gold}", where=path)
        shots.append((prompt_of(row), str(row[evaluation.gold])))
    if len(shots) < evaluation.shots:
        raise ConfigError(
            f"{path} has {counted(len(shots), 'row')} for {counted(evaluation.shots, 'shot')}"
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
