"""`redline tag` at the command line: what it asks, what it refuses, and what it says."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]
Rows = Callable[..., str]

LISTS = {"label": ["bug", "question"], "urgency": ["low", "high"]}
# The simulated model says what it is asked, after "You said: ".
ECHO = ("--endpoint", "sim", "--response-format", "never", "--quiet")
SAID = '{"label": "{{ said }}"}'


@pytest.fixture
def labels(tmp_path: Path) -> str:
    (tmp_path / "labels.json").write_text('["bug", "question"]')
    (tmp_path / "both.json").write_text(json.dumps(LISTS))
    return "labels.json"


@pytest.fixture
def given(rows: Rows) -> str:
    return rows(
        {"text": "It breaks.", "said": "bug", "gold": "bug"},
        {"text": "How?", "said": "Question", "gold": "bug"},
        {"text": "Hm.", "said": "rant", "gold": "question"},
    )


def lines(path: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text("utf-8").splitlines()]


def test_the_schema_decides_the_output(cli: Cli, rows: Rows, labels: str) -> None:
    given = rows({"text": "It breaks.", "custom_id": "T-1"}, {"text": "How?"})
    told = cli("tag", given, "--schema", "both.json", "--endpoint", "sim")
    assert told.status == 0
    for line in told.results:
        assert line["output"].keys() == {"label", "urgency"}
        assert line["reasks"] == 0
        assert line["input"]["text"]
    assert told.results[0]["custom_id"] == "T-1"
    # Results are on stdout, so nothing else is.
    assert len(told.out.splitlines()) == 2


def test_tags_are_compared_with_gold_and_failures_are_told_apart(
    cli: Cli, given: str, labels: str
) -> None:
    flags = ["tag", given, "--schema", labels, *ECHO, "--prompt", SAID, "-o", "out.jsonl"]
    told = cli(*flags, "--gold", "gold", "--export", "out.csv", "--ordered")
    assert told.status == 1
    assert told.out == (
        "tagged 2, failed 1, re-asks 2\n"
        "accuracy  50.0%  1 of 2  (95 %: 9.5 to 90.5 %)\n"
        "macro F1  0.333  over 2 labels\n"
        "     1 x bug tagged as question\n"
        "not compared: 1 failed, 0 without gold\n"
        "confusion matrix: out.confusion.csv\n"
        "table: out.csv, 2 rows; without the 1 that failed\n\n"
        "tagged: 2\nfailed: 1\nreasks: 2\nwithout_gold: 0\nmacro_f1: 0.333333\naccuracy: 1/2\n"
    )
    matrix = "gold \\ said,bug,question\nbug,1,1\nquestion,0,0\n"
    assert Path("out.confusion.csv").read_text() == matrix
    with open("out.csv", newline="") as file:
        assert [row["label"] for row in csv.DictReader(file)] == ["bug", "question"]
    (failure,) = lines("out.failed.jsonl")
    assert failure["error"]["message"].startswith("no valid answer in 3 tries; the last: ")
    assert failure["reasks"] == 2
    # Compared again, or with nothing: nobody is asked.
    again = cli(*flags, "--gold", "said")
    assert again.out.endswith("accuracy: 1/2\n")
    assert again.err.startswith("Nothing to do: 2 done, 1 failed\n")
    assert cli(*flags).out == ("tagged 2, failed 1, re-asks 2\n\ntagged: 2\nfailed: 1\nreasks: 2\n")


def test_tags_of_rows_that_were_corrected_are_not_passed_off_as_the_inputs(
    cli: Cli, rows: Rows, labels: str
) -> None:
    flags = ["--schema", labels, *ECHO, "--prompt", SAID, "-o", "out.jsonl"]
    flags += ["--export", "out.csv"]
    wrong = rows({"said": "bug", "text": "Hwo?"}, {"said": "bug", "text": "Wy?"})
    first = cli("tag", wrong, *flags)
    assert first.out.startswith("tagged 2, failed 0")
    right = rows({"said": "question", "text": "How?"}, {"said": "question", "text": "Why?"})
    told = cli("tag", right, *flags)
    assert told.out.startswith(
        "2 of these results are from rows that the last run did not read: changed,\n"
        "removed or beyond the limit; tagging into a new file leaves them out\n\n"
        "tagged 4, failed 0"
    )
    assert (
        "table: out.csv, 4 rows; with rows of earlier runs that the last run did not read\n"
        in told.out
    )


def test_a_confusion_matrix_is_replaced_as_a_whole(cli: Cli, given: str, labels: str) -> None:
    flags = ["tag", given, "--schema", labels, *ECHO, "--prompt", SAID, "-o", "out.jsonl"]
    cli(*flags, "--gold", "gold")
    # On a full disk, the old one must stay.
    before = Path("out.confusion.csv").read_text()
    os.link("out.confusion.csv", "kept.csv")
    cli(*flags, "--gold", "said")
    assert Path("out.confusion.csv").read_text() != before == Path("kept.csv").read_text()


def test_a_tag_that_failed_is_asked_for_again_whatever_the_cache_has(
    cli: Cli, given: str, labels: str
) -> None:
    flags = ["tag", given, "--schema", labels, *ECHO, "--prompt", SAID]
    flags += ["--temperature", "0", "--cache-dir", "kept", "-o"]
    assert "failed 1, re-asks 2" in cli(*flags, "out.jsonl").out
    again = cli(*flags, "out.jsonl", "--retry-failed")
    assert "1 failed" in again.err
    assert ", 3 requests at" in again.err
    # Other runs have what the last one got.
    # A row may take several requests, so the share is not one of rows.
    other = cli(*flags, "other.jsonl").err
    assert "cache: 5 hits, 0 shared in flight, 0 misses: 100 % of requests saved\n" in other


def test_a_row_that_was_begun_goes_before_rows_that_were_not(
    cli: Cli, rows: Rows, labels: str, odd: Any
) -> None:
    # Otherwise an end of the run costs the paid answers of every row that was read ahead.
    given = rows(*({"text": f"row {number}"} for number in range(20)))
    cli("tag", given, "--schema", labels, "--response-format", "never", "--quiet",
        "--base-url", f"{odd.url}/v1", "--rps", "40")  # fmt: skip
    turns = [len(body["messages"]) for _, _, body in odd.asked]
    assert len(turns) == 60
    assert sum(turn > 2 for turn in turns[:12]) >= 4


def test_a_dry_run_shows_what_is_asked(cli: Cli, given: str, labels: str) -> None:
    told = cli("tag", given, "--schema", labels, "--system", "Be {{ said }}.", "--model", "m",
               "--dry-run", "-o", "out.jsonl")  # fmt: skip
    assert told.status == 0
    assert "Be bug.\\n\\nAnswer with JSON and nothing else" in told.out
    assert "It breaks." in told.out
    assert "not counted: re-asks after an answer that is not accepted, at most 2 t" in told.out
    assert not Path("out.jsonl").exists()


def test_braces_and_quotes_in_labels_reach_the_model_as_they_are(
    cli: Cli, rows: Rows, tmp_path: Path
) -> None:
    odd = ["{{ text }}", "{% if %}", 'a "b" \\ c', "é\n漢", "}}"]
    (tmp_path / "odd.json").write_text(json.dumps(odd))
    given = rows({"text": "x"})
    told = cli("tag", given, "--schema", "odd.json", "--model", "m", "--dry-run")
    shown = json.loads(told.out[told.out.index("{") :])
    schema = shown["body"]["messages"][0]["content"].partition("\n")[2]
    assert json.loads(schema)["properties"]["label"]["enum"] == odd


def test_another_schema_does_not_go_on_in_the_same_file(cli: Cli, given: str, labels: str) -> None:
    flags = ["tag", given, *ECHO, "--prompt", SAID, "-o", "out.jsonl"]
    assert cli(*flags, "--schema", labels).status == 1
    told = cli(*flags, "--schema", "both.json")
    assert told.status == 2
    assert "out.jsonl was begun with different settings: schema was" in told.err


def test_a_pydantic_model_of_this_folder(cli: Cli, given: str) -> None:
    Path("my_models.py").write_text(
        "from typing import Literal\nfrom pydantic import BaseModel\n\n\n"
        "class Ticket(BaseModel):\n    label: Literal['bug', 'question']\n    team: str = 'web'\n"
    )
    told = cli("tag", given, "--schema", "my_models:Ticket", *ECHO, "--prompt", SAID,
               "--limit", "1")  # fmt: skip
    assert told.outputs == [{"label": "bug", "team": "web"}]


def test_settings_of_the_project_that_tagging_has_no_use_for(
    cli: Cli, given: str, labels: str
) -> None:
    Path("redline.toml").write_text('[run]\nformat = "batch"\nvia = "batch"\nmodel = "m"\n')
    told = cli("tag", given, "--schema", labels, *ECHO, "--prompt", SAID, "--limit", "1")
    assert told.outputs == [{"label": "bug"}]
    Path("redline.toml").write_text("[run]\nbody = '{\"q\": {{ text | json }}}'\n")
    told = cli("tag", given, "--schema", labels, "--endpoint", "sim")
    assert (told.status, len(told.outputs)) == (0, 3)


def test_what_a_project_fails_on_does_not_hide_why_a_tag_failed(
    cli: Cli, given: str, labels: str
) -> None:
    Path("redline.toml").write_text('[run]\nfail_on = ["length"]\n')
    flags = ["tag", given, "--schema", labels, *ECHO, "--limit", "1", "-o", "out.jsonl"]
    assert cli(*flags, "--prompt", SAID, "--max-tokens", "5", "--reasks", "0").status == 1
    (failure,) = lines("out.failed.jsonl")
    assert failure["error"]["message"] == (
        "no valid answer in 1 try; the last: the answer was cut at the token limit before its "
        "JSON was whole"
    )


def test_rows_from_a_pipe(cli: Cli, labels: str) -> None:
    told = cli("tag", "-", "--schema", labels, "--endpoint", "sim", "--quiet",
               stdin='{"text": "It breaks."}\n')  # fmt: skip
    assert (told.status, len(told.results)) == (0, 1)


# What follows `redline tag in.jsonl --endpoint sim`; the error; the hint.
MISTAKES = [
    ([], "tagging needs a schema", "set it with --schema labels.json"),
    (["--schema", "none.json"], "the schema none.json does not exist",
     "give a JSON file, or package.module:Model"),
    (["--schema", "labels.json", "--gold", "gold"], "--gold needs an output file",
     "set it with -o tagged.jsonl"),
    (["--schema", "labels.json", "--export", "a.csv"], "--export needs an output file",
     "set it with -o tagged.jsonl"),
    (["--schema", "labels.json", "--gold", "glod", "-o", "out.jsonl"],
     "the first row has no column glod", "did you mean gold?"),
    (["--schema", "both.json", "--gold", "gold", "-o", "out.jsonl"],
     "--gold gold does not say which field of a tag it is compared with",
     "--gold FIELD=gold, where FIELD is one of: label, urgency"),
    (["--schema", "labels.json", "--export", "a.xlsx", "-o", "out.jsonl"],
     "cannot export to a.xlsx", "use one of .csv, .parquet"),
    (["--schema", "labels.json", "--export", "labels.json", "-o", "out.jsonl"],
     "--export would overwrite labels.json", "choose another file"),
    (["--schema", "labels.json", "--export", "./in.jsonl", "-o", "out.jsonl"],
     "--export would overwrite in.jsonl", "choose another file"),
    (["--schema", "labels.json", "--export", "out.confusion.csv", "-o", "out.jsonl"],
     "--export would overwrite out.confusion.csv", "choose another file"),
    (["--schema", "labels.json", "--reasks", "21"], "--reasks must be 0 to 20, not 21", ""),
    (["--schema", "labels.json", "--response-format", "maybe"],
     "--response-format must be one of auto, always, never, not maybe", ""),
    (["--schema", "labels.json", "--format", "batch"], "unknown flag: --format", ""),
]  # fmt: skip


@pytest.mark.parametrize(("flags", "what", "hint"), MISTAKES)
def test_a_mistake_is_told_before_anything_is_sent(
    cli: Cli, given: str, labels: str, flags: list[str], what: str, hint: str
) -> None:
    told = cli("tag", given, "--endpoint", "sim", *flags)
    assert told.status == 2
    assert told.out == ""
    assert told.err.startswith(f"error: {what}\n")
    assert hint in told.err
    assert not Path("out.jsonl").exists()


def test_which_column_is_not_guessed(cli: Cli, rows: Rows, labels: str) -> None:
    told = cli("tag", rows({"title": "x", "said": "y"}), "--schema", labels, "--endpoint", "sim")
    assert told.status == 2
    assert told.err == (
        "error: it is unclear which column to tag\nwhere: in.jsonl\n\n"
        "hint: choose it with --prompt '{{ title }}'; the columns are: title, said\n"
    )
