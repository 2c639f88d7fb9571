"""`--via`: what is told, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]
Rows = Callable[..., str]
SIM = ("--endpoint", "sim", "-o", "out.jsonl")


def three(rows: Rows) -> str:
    return rows(*({"prompt": f"say {number}"} for number in range(3)))


def test_a_run_by_batches_tells_what_went_by_them(cli: Cli, rows: Rows) -> None:
    told = cli("run", three(rows), *SIM, "--via", "batch", "--quiet")
    assert told.status == 0
    assert told.err == (
        "3 rows = 3 succeeded + 0 failed + 0 unfinished\n"
        "6 tokens in, 12 out\n"
        "batches: 1 made, 3 rows answered\n"
        "results: out.jsonl\n"
    )
    again = cli("run", three(rows), *SIM, "--via", "batch", "--log", "json")
    summary = json.loads(again.err.splitlines()[-1])
    assert (summary["offered"], summary["skipped"]) == (0, 3)
    counts = {"made": 0, "running": 0, "rows": 0, "answered": 0, "again": 0}
    assert summary["batches"] == {**counts, "states": {}, "finished": 0}


def test_show_counts_what_batches_have_spent_of_a_budget(cli: Cli, rows: Rows) -> None:
    budget = ("--budget-tokens", "10k", "--max-tokens", "9")
    cli("run", three(rows), *SIM, "--via", "batch", *budget)
    assert "spent       18 tokens by runs with a budget" in cli("show", "out.jsonl").out


def test_a_live_run_says_nothing_of_batches(cli: Cli, rows: Rows) -> None:
    told = cli("run", three(rows), *SIM, "--via", "live", "--log", "json")
    assert told.status == 0
    assert "batches" not in json.loads(told.err.splitlines()[-1])
    assert not Path("out.redline/batches.jsonl").exists()


@pytest.mark.parametrize("via", ["batch", "live"])
def test_damaged_notes_of_batches_are_put_aside_by_restart(cli: Cli, rows: Rows, via: str) -> None:
    cli("run", three(rows), *SIM, "--via", "batch")
    notes = Path("out.redline/batches.jsonl")
    notes.write_bytes(b"damaged\n")
    told = cli("run", three(rows), *SIM, "--via", via)
    assert told.status == 2
    assert "line 1 of out.redline/batches.jsonl is damaged" in told.err
    assert "start over with --restart" in told.err
    assert cli("run", three(rows), *SIM, "--via", via, "--restart").status == 0
    assert Path("out.redline/batches.old-1.jsonl").read_bytes() == b"damaged\n"
    assert cli("run", three(rows), *SIM, "--via", via).status == 0


def test_redline_toml_may_say_it(cli: Cli, rows: Rows) -> None:
    Path("redline.toml").write_text('[run]\nvia = "batch"\n')
    told = cli("run", three(rows), *SIM)
    assert "batches: 1 made, 3 rows answered" in told.err


def test_an_evaluation_goes_by_batches_and_a_question_without_gold_is_not_sent(
    cli: Cli, rows: Rows
) -> None:
    Path("task.toml").write_text(
        'prompt = "{{ q }}"\ngold = "a"\nmetric = "regex"\npattern = "(\\\\w+)$"\n'
    )
    name = rows({"q": "Is it Lima", "a": "Lima"}, {"q": "Is it Cuzco", "a": "Lima"}, {"q": "what"})
    told = cli("eval", "--task", "task.toml", "--data", name, *SIM, "--via", "batch")
    assert "accuracy: 1/3" in told.out
    assert "batches: 1 made, 2 rows answered" in told.err
    lines = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    assert sorted(line["correct"] for line in lines) == [False, True]
    assert all(line["batched"] for line in lines)


@pytest.mark.parametrize(
    ("flags", "what"),
    [
        ((*SIM, "--via", "btch"), "--via must be one of live, batch, auto, not btch"),
        (("--endpoint", "sim", "--via", "batch"), "batches need an output file"),
        (
            (*SIM, "--via", "auto"),
            "via auto needs a deadline: shortly before it, the rest is sent live",
        ),
        ((*SIM, "--via", "batch", "--cache"), "batches and a cache of answers cannot be combined"),
    ],
)
def test_what_cannot_work_is_refused(
    cli: Cli, rows: Rows, flags: tuple[str, ...], what: str
) -> None:
    told = cli("run", three(rows), *flags)
    assert told.status == 2
    assert f"error: {what}" in told.err


def test_a_row_that_no_batch_takes_is_a_failure(cli: Cli, rows: Rows) -> None:
    name = rows({"url": "/v1/models", "method": "GET"}, {"prompt": "say 0"})
    told = cli("run", name, *SIM, "--via", "batch")
    assert told.status == 1
    failure = json.loads(Path("out.failed.jsonl").read_text())
    assert (
        failure["error"]["message"]
        == "the Batch API takes only POST requests with a JSON object as the body"
    )
