"""Answers that are cut, empty or filtered are successes, and the screen says so."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import redline
from cli.conftest import Cli

Rows = Callable[..., str]
SIM = ("--endpoint", "sim", "--prompt", "{{ text }}")
ASKED = ("--prompt", "{{ text }}", "--model", "m")


def texts(number: int, begin: int = 0) -> list[dict[str, str]]:
    return [{"text": f"text {at}"} for at in range(begin, begin + number)]


@pytest.mark.parametrize(
    "flags",
    [
        ("-o", "out.jsonl"),
        ("-o", "out.jsonl", "--raw", "--keep-input"),
        ("-o", "out.jsonl", "--format", "batch"),
        ("-o", "out.jsonl", "--via", "batch"),
        ("--format", "batch"),
        (),
    ],
)
def test_cut_answers_are_in_the_summary(cli: Cli, rows: Rows, flags: tuple[str, ...]) -> None:
    # Some answers are shorter than the limit: an answer repeats its prompt.
    name = rows(*texts(3), *({"text": "word " * 30} for _ in range(4)))
    told = cli("run", name, *SIM, "--max-tokens", "20", *flags)
    assert told.status == 0
    assert told.summary.splitlines()[:2] == [
        "7 rows = 7 succeeded + 0 failed + 0 unfinished",
        "7 succeeded, of which 4 cut by max_tokens: --fail-on length",
    ]
    told = cli("run", name, *SIM, "--max-tokens", "90", "-o", "whole.jsonl")
    assert "of which" not in told.err


def test_each_kind_has_its_words_and_its_reason(cli: Cli, rows: Rows, odd: Any) -> None:
    name = rows(*texts(3))
    for kind, words, reason in (
        ("empty", "3 empty", "empty"),
        ("cut", "3 cut by max_tokens", "length"),
        ("filtered", "3 cut by a content filter", "content_filter"),
    ):
        told = cli("run", name, *ASKED, "--base-url", f"{odd.url}/{kind}/v1", "-o", f"{kind}.jsonl")
        assert told.summary.splitlines()[1] == f"3 succeeded, of which {words}: --fail-on {reason}"
        failing = (*ASKED, "--base-url", f"{odd.url}/{kind}/v1", "--fail-on", reason)
        told = cli("run", name, *failing, "-o", f"{kind}2.jsonl")
        assert told.status == 1
        assert told.summary.startswith("3 rows = 0 succeeded + 3 failed + 0 unfinished\n")
        assert "of them" not in told.err


@pytest.mark.parametrize("more", [(), ("--raw", "--keep-input"), ("--format", "batch")])
def test_the_summary_speaks_of_all_runs_of_the_output(
    cli: Cli, rows: Rows, odd: Any, more: tuple[str, ...]
) -> None:
    decoy = {"finish_reason": "length", "usage": None}
    name = rows(*({**text, "old": decoy} for text in texts(5)))
    command = ("run", name, *ASKED, "-o", "out.jsonl", *more, "--force", "--base-url")
    assert "of them" not in cli(*command, f"{odd.url}/v1", "--limit", "1").err
    cli(*command, f"{odd.url}/cut/v1", "--limit", "3")
    told = cli(*command, f"{odd.url}/v1")
    assert told.summary.splitlines()[:2] == [
        "2 rows = 2 succeeded + 0 failed + 0 unfinished; 3 were done before",
        "5 succeeded, of which 2 cut by max_tokens: --fail-on length",
    ]
    told = cli(*command, f"{odd.url}/v1", "--fail-on", "length", "--log", "json")
    summary = json.loads(told.err)
    assert (summary["results"], summary["flawed"]) == (5, {"length": 2})


def test_a_row_that_is_asked_again_is_counted_once(cli: Cli, rows: Rows, odd: Any) -> None:
    named = [{"custom_id": f"r{at}", "text": "a"} for at in range(3)]
    command = ("run", rows(*named), *ASKED, "-o", "out.jsonl", "--force", "--base-url")
    assert "3 succeeded, of which 3 cut" in cli(*command, f"{odd.url}/cut/v1").err
    rows({**named[0], "text": "b"}, *named[1:])
    assert "3 succeeded, of which 2 cut" in cli(*command, f"{odd.url}/v1").err
    assert "3 succeeded, of which 2 cut" in cli(*command, f"{odd.url}/v1").err


def test_a_command_without_the_flag_is_not_told_to_use_it(cli: Cli, rows: Rows) -> None:
    Path("labels.json").write_text('["yes", "no"]')
    name = rows({"text": "no, or else"})
    told = cli("tag", name, "--schema", "labels.json", "--endpoint", "sim", "--max-tokens", "8",
               "-o", "out.jsonl", "--reasks", "0")  # fmt: skip
    assert "--fail-on" not in told.err
    questions = rows({"question": "word " * 30, "answer": "4"}, name="q.jsonl")
    told = cli(
        "eval",
        "gsm8k",
        "--data",
        questions,
        "--endpoint",
        "sim",
        "--max-tokens",
        "2",
        "-o",
        "e.jsonl",
    )
    assert "1 succeeded, of which 1 cut by max_tokens: raise --max-tokens\n" in told.err


@pytest.mark.parametrize("kind", ["cut", "empty"])
def test_a_run_whose_answers_are_all_flawed_warns_while_it_runs(
    cli: Cli, rows: Rows, odd: Any, kind: str
) -> None:
    url = ("--base-url", f"{odd.url}/{kind}/v1")
    slowly = (*url, "--rps", "40")
    told = cli("run", rows(*texts(40)), *ASKED, *slowly, "-o", "out.jsonl")
    words = {"cut": "cut by max_tokens: raise --max-tokens"}.get(kind, "empty: check the prompt")
    warnings = [line for line in told.err.splitlines() if line.startswith("warning: ")]
    assert len(warnings) == 1
    assert f"answers so far are {words}" in warnings[0]
    assert told.err.index("warning: ") < told.err.index("40 rows = 40 succeeded")
    told = cli("run", "in.jsonl", *ASKED, *slowly, "-o", "json.jsonl", "--log", "json")
    events = [json.loads(line) for line in told.err.splitlines()]
    assert [event["event"] for event in events] == ["progress", "summary"]
    assert f"answers so far are {words}" in events[0]["notices"]["answers"]
    assert not events[0]["is_on_hold"]
    told = cli("run", "in.jsonl", *ASKED, *url, "-o", "quiet.jsonl", "--quiet")
    assert "warning" not in told.err


def test_an_answer_with_one_cut_choice_is_counted_once(cli: Cli, rows: Rows) -> None:
    name = rows(*texts(2), {"text": "word " * 30})
    command = ("run", name, *SIM, "--param", "n=3", "--max-tokens", "20", "-o", "out.jsonl")
    assert "\n3 succeeded, of which 1 cut by max_tokens: --fail-on length\n" in cli(*command).err
    assert "\n3 succeeded, of which 1 cut by max_tokens: --fail-on length\n" in cli(*command).err


def test_a_report_counts_them(odd: Any) -> None:
    rows = [{"prompt": "a"}, {"prompt": "b"}]
    report = redline.run(rows, model="m", endpoint=f"{odd.url}/empty/v1")
    assert (report.succeeded, report.results, report.flawed) == (2, 2, {"empty": 2})
    report = redline.run(rows, model="m", endpoint=f"{odd.url}/v1")
    assert report.flawed == {}
