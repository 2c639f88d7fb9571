"""Rows that change between two runs: each is asked again, and none gets an old answer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]
Rows = Callable[..., str]

RUN = ("--model", "m", "--endpoint", "sim", "-q", "-o", "out.jsonl")


def named(**prompts: str) -> list[dict[str, Any]]:
    return [{"custom_id": name, "prompt": prompt} for name, prompt in prompts.items()]


def answers(path: str = "out.jsonl") -> dict[str, str]:
    """The output of each row by its name; no row has two."""
    lines = [json.loads(line) for line in Path(path).read_text("utf-8").splitlines()]
    found = {line["custom_id"]: _output(line) for line in lines}
    assert len(found) == len(lines)
    return found


def _output(line: dict[str, Any]) -> str:
    if "output" in line:
        return str(line["output"])
    return str(line["response"]["body"]["choices"][0]["message"]["content"])


@pytest.mark.parametrize("flags", [(), ("--format", "batch"), ("--raw", "--keep-input")])
def test_a_named_row_that_has_changed_is_asked_again_and_its_old_line_goes_aside(
    cli: Cli, rows: Rows, flags: tuple[str, ...]
) -> None:
    assert cli("run", rows(*named(a="one", b="two")), *RUN, *flags).status == 0
    old = Path("out.jsonl").read_bytes().splitlines()
    name = rows(*named(a="one", b="a whole other question", c="three"))

    told = cli("verify", "out.jsonl")
    assert (told.status, told.out) == (
        1,
        "verify: 1 of 3; 2 missing, the first is row 2; 1 line answers the former content of a "
        "row that has changed\n",
    )
    assert "= 1 done already + 2 to send" in cli("run", name, *RUN, *flags, "--dry-run").out
    told = cli("run", name, *RUN, *flags)
    assert told.status == 0
    assert told.summary.startswith(
        "2 rows = 2 succeeded + 0 failed + 0 unfinished; 1 was done before"
    )
    assert answers() == {
        "a": "You said: one",
        "b": "You said: a whole other question",
        "c": "You said: three",
    }
    assert cli("verify", "out.jsonl").out == "verify: 3 of 3, each once\n"
    aside = Path("out.redline/out.outdated-1.jsonl").read_bytes()
    assert aside.splitlines() == [line for line in old if b"two" in line]

    assert cli("run", name, *RUN, *flags).status == 0
    assert not Path("out.redline/out.outdated-2.jsonl").exists()


def test_a_row_that_is_only_written_otherwise_is_not_asked_again(cli: Cli, rows: Rows) -> None:
    """Other spaces, another order of the columns, and another place: an export made anew."""
    cli("run", rows(*named(a="one", b="two")), *RUN)
    before = Path("out.jsonl").read_bytes()
    name = rows('{"prompt" :  "two", "custom_id":"b"}\n', '{ "prompt":"one","custom_id":"a" }\n')
    assert cli("verify", "out.jsonl").out == "verify: 2 of 2, each once\n"
    assert cli("run", name, *RUN).status == 0
    assert Path("out.jsonl").read_bytes() == before


@pytest.mark.parametrize("retry", [(), ("--retry-failed",)])
@pytest.mark.parametrize("renamed", [0, 1])
def test_duplicates_that_are_renamed_each_get_their_own_answer(
    cli: Cli, rows: Rows, renamed: int, retry: tuple[str, ...]
) -> None:
    both = [
        {"custom_id": "1", "prompt": "capital of France"},
        {"custom_id": "1", "prompt": "capital of Peru"},
    ]
    assert cli("run", rows(*both), *RUN).status == 1
    both[renamed]["custom_id"] = "1a"
    name = rows(*both)
    cli("run", name, *RUN, *retry)
    assert cli("run", name, *RUN).status == 0
    assert answers() == {row["custom_id"]: f"You said: {row['prompt']}" for row in both}
    assert not Path("out.failed.jsonl").exists()
    assert cli("verify", "out.jsonl").out == "verify: 2 of 2, each once\n"


def test_a_changed_row_that_then_fails_does_not_keep_the_answer_of_what_it_was(
    cli: Cli, rows: Rows
) -> None:
    cli("run", rows(*named(a="one", b="two")), *RUN)
    changed = [*named(a="one"), {"custom_id": "b", "prompt": "x", "max_tokens": 0}]
    name = rows(*changed)
    assert cli("run", name, *RUN).status == 1
    assert answers() == {"a": "You said: one"}
    verdict = "verify: 2 of 2, each once; 1 of them as failures\n"
    assert cli("verify", "out.jsonl").out == verdict
    # Nothing is left to do, and a failure is not tried again unasked.
    assert cli("run", name, *RUN).status == 1
    assert cli("verify", "out.jsonl").out == verdict

    cli("run", rows(*named(a="one", b="two")), *RUN)
    assert answers() == {"a": "You said: one", "b": "You said: two"}


@pytest.mark.parametrize("retry", [(), ("--retry-failed",)])
def test_a_named_row_that_failed_and_was_corrected_is_tried_again(
    cli: Cli, rows: Rows, retry: tuple[str, ...]
) -> None:
    bad = {"custom_id": "b", "prompt": "two", "max_tokens": 0}
    assert cli("run", rows(*named(a="one"), bad), *RUN).status == 1
    assert cli("run", rows(*named(a="one"), {**bad, "max_tokens": 9}), *RUN, *retry).status == 0
    assert answers() == {"a": "You said: one", "b": "You said: two"}
    assert not Path("out.failed.jsonl").exists()
    assert cli("verify", "out.jsonl").out == "verify: 2 of 2, each once\n"


def test_a_row_that_changes_every_time_has_one_line_and_all_its_old_ones_aside(
    cli: Cli, rows: Rows
) -> None:
    for number in range(4):
        assert cli("run", rows(*named(a=f"take {number % 2}")), *RUN).status == 0
    assert answers() == {"a": "You said: take 1"}
    aside = sorted(path.name for path in Path("out.redline").glob("*outdated*"))
    assert aside == [f"out.outdated-{number}.jsonl" for number in (1, 2, 3)]


def test_a_death_before_the_old_line_went_aside_leaves_the_newer_one(cli: Cli, rows: Rows) -> None:
    cli("run", rows(*named(a="one", b="two")), *RUN)
    old = Path("out.jsonl").read_bytes()
    name = rows(*named(a="one", b="other"))
    cli("run", name, *RUN)
    new = Path("out.jsonl").read_bytes()
    both = old + b"".join(line for line in new.splitlines(True) if line not in old)
    Path("out.jsonl").write_bytes(both)
    told = cli("verify", "out.jsonl")
    assert (told.status, "1 line answers the former content of a row" in told.out) == (1, True)
    cli("repair", "out.jsonl")
    assert Path("out.jsonl").read_bytes() == both
    assert cli("run", name, *RUN).status == 0
    assert answers() == {"a": "You said: one", "b": "You said: other"}


def test_a_changed_row_of_a_table_is_asked_again(cli: Cli) -> None:
    text = "custom_id,text\na,one\nb,{}\n"
    Path("in.csv").write_text(text.format("two"), "utf-8")
    run = ("run", "in.csv", "--prompt", "{{ text }}", *RUN)
    cli(*run)
    Path("in.csv").write_text(text.format("other"), "utf-8")
    assert cli(*run).summary.startswith("1 row = 1 succeeded")
    assert answers() == {"a": "You said: one", "b": "You said: other"}


def test_a_broken_line_that_is_mended_leaves_no_failure_behind(cli: Cli, rows: Rows) -> None:
    broken = '{"custom_id": "b", "prompt": \n'
    assert cli("run", rows(*named(a="one"), broken, *named(c="three")), *RUN).status == 1
    name = rows(*named(a="one", b="two", c="three"))
    assert cli("run", name, *RUN).status == 0
    assert answers() == {"a": "You said: one", "b": "You said: two", "c": "You said: three"}
    assert not Path("out.failed.jsonl").exists()
    assert cli("verify", "out.jsonl").out == "verify: 3 of 3, each once\n"
    aside = Path("out.redline/out.failed.outdated-1.jsonl").read_bytes()
    assert json.loads(aside)["input"] == broken.strip()


def test_a_failure_whose_row_was_taken_out_goes_and_others_stay(cli: Cli, rows: Rows) -> None:
    bad = [{"prompt": f"bad {number}", "max_tokens": 0} for number in (1, 2)]
    assert cli("run", rows({"prompt": "good"}, *bad), *RUN).status == 1
    assert cli("run", rows({"prompt": "good"}, bad[1]), *RUN).status == 1
    failed = [json.loads(line) for line in Path("out.failed.jsonl").read_text().splitlines()]
    assert [line["input"]["prompt"] for line in failed] == ["bad 2"]
    assert cli("verify", "out.jsonl").out == "verify: 2 of 2, each once; 1 of them as failures\n"


@pytest.mark.parametrize("flags", [("--limit", "1"), ()])
def test_failures_stay_while_their_rows_may_still_be_somewhere(
    cli: Cli, rows: Rows, flags: tuple[str, ...]
) -> None:
    """Behind the limit, or in another input that went into the same output before."""
    bad = {"prompt": "bad", "max_tokens": 0}
    cli("run", rows({"prompt": "good"}, bad), *RUN)
    failed = Path("out.failed.jsonl").read_bytes()
    name = "in.jsonl" if flags else rows({"prompt": "else"}, name="other.jsonl")
    assert cli("run", name, *RUN, *flags, "--force").status == 1
    assert Path("out.failed.jsonl").read_bytes() == failed


@pytest.mark.parametrize("flags", [(), ("--limit", "3")])
def test_a_run_with_nothing_to_do_says_what_is_done_and_what_has_failed(
    cli: Cli, rows: Rows, flags: tuple[str, ...]
) -> None:
    name = rows(*named(a="one", b="two"), {"custom_id": "c", "prompt": "x", "max_tokens": 0})
    cli("run", name, *RUN, *flags)
    told = cli("run", name, *RUN, *flags)
    assert (told.status, told.err.splitlines()[0]) == (1, "Nothing to do: 2 done, 1 failed")
    told = cli("run", rows(*named(a="one", b="two", d="new")), *RUN, "--retry-failed")
    first = told.summary.splitlines()[0]
    assert first == "Nothing to do: 2 done, 1 untried, which --retry-failed leaves out"
