"""`redline eval`: scores and comparisons that say no more than the answers prove."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.conftest import Cli, Told

Rows = Callable[..., str]
# The simulated model repeats its prompt, so a task is right where its column holds the gold answer.
TASK = """prompt = "Say {{{{ {column} }}}}"
gold = "gold"
metric = "regex"
pattern = 'Say (\\w+)'
[params]
max_tokens = 50
"""
# Right in both, in the first alone, in the second alone, in neither.
COUNTS = (2, 1, 7, 2)


@pytest.fixture
def data(rows: Rows, tmp_path: Path) -> str:
    """Twelve questions of which `one` and `two` have some right."""
    for column in ("one", "two"):
        (tmp_path / f"{column}.toml").write_text(TASK.format(column=column))
    pairs = [(True, True), (True, False), (False, True), (False, False)]
    rights = [pair for pair, count in zip(pairs, COUNTS, strict=True) for _ in range(count)]
    return rows(
        *(
            {"q": at, "gold": f"yes{at}"}
            | {
                name: f"{'yes' if is_right else 'no'}{at}"
                for name, is_right in zip(("one", "two"), pair, strict=True)
            }
            for at, pair in enumerate(rights)
        ),
        name="data.jsonl",
    )


def evaluated(cli: Cli, task: str, data: str, samples: int, *flags: str) -> Told:
    output = f"{task}-{samples}.jsonl"
    given = ("--task", f"{task}.toml", "--data", data, "--endpoint", "sim", "-o", output)
    sampling = ("--samples", str(samples), "--temperature", "1") if samples > 1 else ()
    told = cli("eval", *given, *sampling, *flags)
    assert told.status == 0, told.err
    return told


def interval(told: Told, name: str) -> str:
    found = re.search(rf"^{name} .*?\((95 %: .*?)\)$", told.out, re.M)
    assert found, told.out
    return found[1]


def test_equal_samples_prove_no_more_than_one(cli: Cli, data: str) -> None:
    once, often = (evaluated(cli, "two", data, samples) for samples in (1, 8))
    assert interval(often, "accuracy") == interval(once, "accuracy")
    assert interval(often, "strict") == interval(once, "strict")
    assert "72 of 96 to 12 questions" in often.out
    assert often.out.splitlines()[-1] == "accuracy: 72/96"


@pytest.mark.parametrize("samples", [(1, 1), (8, 8), (1, 8), (8, 2)])
def test_a_comparison_is_over_questions(cli: Cli, data: str, samples: tuple[int, int]) -> None:
    for task, count in zip(("one", "two"), samples, strict=True):
        evaluated(cli, task, data, count)
    first, second = (f"{t}-{n}.jsonl" for t, n in zip(("one", "two"), samples, strict=True))
    told = cli("eval", "compare", first, second)
    assert told.status == 0, told.err
    # Two-sided binomial test of 1 against 7.
    assert "p: 0.0703125\n" in told.out
    assert "difference: +0.500000\n" in told.out
    assert (told.out.count("only_first: 1\n"), told.out.count("only_second: 7\n")) == (1, 1)
    assert "no difference is shown" in told.out


def test_named_questions_are_paired_whatever_the_number_of_samples(
    cli: Cli, rows: Rows, data: str, tmp_path: Path
) -> None:
    lines = (tmp_path / data).read_text().splitlines()
    named = [
        line.replace("{", f'{{"custom_id": "q{at}", ', 1) + "\n" for at, line in enumerate(lines)
    ]
    rows(*named, name=data)
    evaluated(cli, "one", data, 1)
    evaluated(cli, "two", data, 3)
    told = cli("eval", "compare", "one-1.jsonl", "two-3.jsonl")
    assert "p: 0.0703125\n" in told.out, told.out + told.err
    assert "left out" not in told.out


def test_three_equal_questions_do_not_prove_that_two_models_are_equal(cli: Cli, data: str) -> None:
    for task in ("one", "two"):
        evaluated(cli, task, data, 1, "--limit", "2")
    told = cli("eval", "compare", "one-1.jsonl", "two-1.jsonl")
    found = re.search(r"difference \+0\.0 points \(95 %: (\S+) to (\S+)\)", told.out)
    assert found, told.out
    assert float(found[1]) < -20 < 20 < float(found[2])
