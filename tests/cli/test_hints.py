"""What redline says to a name it does not have: the right one, or nothing at all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import redline

Cli = Callable[..., Any]

CONTINUES = "no flag is needed to continue an output: the same command sends the remaining rows"


def hint(told: Any) -> str:
    assert told.status == 2
    return str(told.err.partition("hint: ")[2].strip())


@pytest.mark.parametrize(
    ("flag", "right"),
    [
        ("--resume", CONTINUES),
        ("--continue", CONTINUES),
        ("--out", "did you mean --output?"),
        ("--output_file", "did you mean --output?"),
        ("--workers", "did you mean --concurrency?"),
        ("--max-concurrency", "did you mean --concurrency?"),
        ("--retries", "did you mean --max-retries?"),
        ("--retry", "did you mean --retry-failed?"),
        ("--api-key", "did you mean --api-key-env?"),
        ("--api-base", "did you mean --base-url?"),
        ("--overwrite", "did you mean --restart?"),
        ("--max-cost", "did you mean --budget?"),
        ("--qps", "did you mean --rps?"),
        ("--rpd", "did you mean --requests?"),
        ("--tps", "did you mean --tokens?"),
        ("--seed", "set it as a field of the body: --param NAME=VALUE"),
        (
            "--input",
            "pass rows without a flag to run and tag, as --data to eval, as --rows-from to synth",
        ),
        ("--tempereture", "did you mean --temperature?"),
        ("--retry-faield", "did you mean --retry-failed?"),
        # Nothing of redline's: names that merely look alike would lead astray.
        ("--verbose", ""),
        ("--reasoning", ""),
        ("--stream", ""),
        ("--region", ""),
        ("--cert", ""),
        ("--user-agent", ""),
        ("--loop", ""),
        ("--schema", ""),
    ],
)
def test_an_unknown_flag(cli: Cli, flag: str, right: str) -> None:
    told = cli("run", "in.jsonl", flag, "x")
    assert hint(told) == (right or "see redline run --help")


@pytest.mark.parametrize(
    ("words", "right"),
    [
        (["eval", "gsm8k", "--resume"], CONTINUES),
        (["tag", "in.jsonl", "--workers", "4"], "did you mean --concurrency?"),
        (["sim", "--workers", "4"], "did you mean --concurrency?"),
        (["sim", "--resume"], "see redline sim --help"),
        (["verify", "o.jsonl", "--inptu", "x"], "did you mean --input?"),
        (["verify", "o.jsonl", "--out", "x"], "see redline verify --help"),
        (["gateway"], "did you mean serve?"),
        (["classify"], "did you mean tag?"),
        (["resume"], "did you mean run?"),
        (["validate"], "did you mean verify?"),
        (["models"], "see redline --help"),
        (["tune"], "see redline --help"),
    ],
)
def test_other_commands(cli: Cli, words: list[str], right: str) -> None:
    assert hint(cli(*words)) == right


@pytest.mark.parametrize(
    ("key", "right"),
    [
        ("workers", "did you mean concurrency?"),
        ("out", "did you mean output?"),
        ("max_attempts", "did you mean max_retries?"),
        ("resume", CONTINUES),
        ("concurency", "did you mean concurrency?"),
    ],
)
def test_settings_and_options_of_python(cli: Cli, key: str, right: str) -> None:
    Path("redline.toml").write_text(f"[run]\n{key} = 3\n", "utf-8")
    assert hint(cli("run", "in.jsonl")) == right
    with pytest.raises(redline.errors.ConfigError) as caught:
        redline.run([], **{key: 3})
    assert caught.value.hint == right


def test_settings_that_are_merely_alike_get_the_list(cli: Cli) -> None:
    Path("redline.toml").write_text("[run]\nreason = 3\n", "utf-8")
    assert hint(cli("run", "in.jsonl")).startswith("known settings: ")


@pytest.mark.parametrize(
    ("name", "right"),
    [("timeout", "timeout_s"), ("deadline", "deadline_s"), ("base_url", "endpoint")],
)
def test_a_name_of_the_command_line_is_that_of_python(name: str, right: str) -> None:
    options: dict[str, Any] = {name: 3}
    with pytest.raises(redline.errors.ConfigError) as caught:
        redline.run([], **options)
    assert caught.value.hint == f"did you mean {right}?"
