"""`redline synth` on the command line: what it takes, refuses and tells."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.scripted import Text, model, scripted

Cli = Callable[..., Any]
Rows = Callable[..., str]

SIM = ("synth", "--endpoint", "sim", "-q")
PROMPT = "Story {{ n }} is told once, of {{ topic }}."
NUMBERED = (*SIM, "--prompt", PROMPT, "--vary", "topic=tea,rain")
OUT = ("-o", "out.jsonl")


def lines(name: str = "out.jsonl") -> list[dict[str, Any]]:
    found = [json.loads(line) for line in Path(name).read_text("utf-8").splitlines()]
    return sorted(found, key=lambda line: line["row"])


def test_as_many_texts_as_are_asked_for_with_what_made_them(cli: Cli) -> None:
    told = cli(*NUMBERED, *OUT, "--count", "3", "--vary", "temperature=0.5,1")
    assert told.status == 0, told.err
    assert told.out.splitlines()[0] == "delivered  3 of 3"
    assert told.out.splitlines()[-1] == "delivered: 3/3"
    assert [line["output"] for line in lines()] == [
        "You said: Story 1 is told once, of tea.",
        "You said: Story 2 is told once, of rain.",
        "You said: Story 3 is told once, of tea.",
    ]
    assert [line["seed"] for line in lines()] == [1, 2, 3]
    assert lines()[1]["input"] == {"n": 2, "seed": 2, "topic": "rain", "temperature": 1.0}
    assert "dropped" not in lines()[0]


def test_a_larger_count_adds_and_a_smaller_one_does_nothing(cli: Cli) -> None:
    cli(*NUMBERED, *OUT, "--count", "2")
    before = Path("out.jsonl").read_bytes()
    told = cli(*NUMBERED, *OUT, "--count", "5")
    assert (told.status, told.out.splitlines()[-1]) == (0, "delivered: 5/5")
    assert "2 were done before" in told.err
    assert Path("out.jsonl").read_bytes().startswith(before)
    told = cli(*NUMBERED, *OUT, "--count", "3")
    assert (told.status, told.out.splitlines()[-1]) == (0, "delivered: 3/3")


def test_texts_that_cannot_be_made_are_told_by_reason_and_tried_again(cli: Cli) -> None:
    same = (*SIM, "--prompt", "The same text for each {{ topic }}.", "--vary", "topic=day,night")
    told = cli(*same, *OUT, "--count", "4", "--tries", "2")
    assert told.status == 1
    assert told.out.splitlines()[:3] == [
        "delivered  2 of 4",
        "dropped    4: 4 near duplicate",
        "missing    2: 2 near duplicate; the same command continues the run",
    ]
    assert told.out.splitlines()[-3:] == ["failed: 2", "unfinished: 0", "delivered: 2/4"]
    assert (
        "no text was accepted in 2 tries; reason for the last: it is nearly a copy of the text of "
        "row" in told.err
    )
    told = cli(*same, *OUT, "--count", "4", "--tries", "2")
    assert (told.status, told.out.splitlines()[-1]) == (1, "delivered: 2/4")
    assert "2 rows = 0 succeeded + 2 failed + 0 unfinished; 2 were done before" in told.err
    failures = lines("out.failed.jsonl")
    assert [line["dropped"] for line in failures] == [["near_duplicate"] * 4] * 2
    told = cli(*same, *OUT, "--count", "5", "--dry-run")
    assert told.out.startswith("5 rows = 2 done already + 3 to send + 0 that cannot be sent\n")
    told = cli(*same, *OUT, "--count", "5", "--tries", "1", "--retry-failed")
    assert "2 rows = 0 succeeded + 2 failed + 0 unfinished" in told.err
    told = cli(*same, *OUT, "--count", "4", "--similarity", "off", "--force")
    assert (told.status, told.out.splitlines()[-1]) == (0, "delivered: 4/4")
    assert not Path("out.failed.jsonl").exists()


def test_texts_of_the_wrong_length_are_dropped(cli: Cli) -> None:
    told = cli(*NUMBERED, *OUT, "--count", "2", "--min-chars", "40", "--tries", "1")
    assert [line["row"] for line in lines()] == [2]
    assert told.out.splitlines()[-1] == "delivered: 1/2"
    assert "too_short: 1" in told.out
    assert "the last: 39 characters, but at least 40 are required" in told.err


def test_a_dry_run_needs_no_file_and_makes_nothing(cli: Cli) -> None:
    told = cli(*NUMBERED, "--count", "7", "--dry-run")
    assert told.status == 0
    assert told.out.startswith("7 rows = 7 to send + 0 that cannot be sent\n")


def test_texts_have_no_input_to_verify(cli: Cli) -> None:
    cli(*NUMBERED, *OUT, "--count", "1")
    told = cli("verify", OUT[1])
    assert told.status == 2
    assert f"{OUT[1]} was made without an input file" in told.err


def test_columns_of_a_file_and_lines_of_a_file(cli: Cli, rows: Rows) -> None:
    name = rows({"custom_id": "a", "hero": "Ada"}, {"custom_id": "b", "hero": "Bo"})
    Path("places.txt").write_text("the sea,\x0cat night\r\n\na town\n", "utf-8-sig")
    told = cli(*SIM, *OUT, "--count", "3", "--rows-from", name, "--vary", "place=@places.txt",
               "--prompt", "{{ n }}: what {{ hero }} did {{ place }}")  # fmt: skip
    assert told.status == 0, told.err
    assert [(line["custom_id"], line["output"]) for line in lines()] == [
        ("a#1", "You said: 1: what Ada did the sea,\x0cat night"),
        ("b#1", "You said: 2: what Bo did a town"),
        ("a#2", "You said: 3: what Ada did a town"),
    ]


@pytest.mark.parametrize(
    "changed",
    [
        ("--vary", "hero=Ada"),
        ("--first-seed", "7"),
        ("--first-seed", "off"),
        ("--similarity", "0.7"),
        ("--max-chars", "500"),
    ],
)
def test_other_settings_under_the_same_output_are_refused(
    cli: Cli, changed: tuple[str, ...]
) -> None:
    cli(*NUMBERED, *OUT, "--count", "2")
    told = cli(*NUMBERED, *OUT, "--count", "2", *changed)
    assert told.status == 2
    assert told.err.startswith("error: out.jsonl was begun with different settings: ")


@pytest.mark.parametrize(
    ("argv", "what", "hint"),
    [
        (("--prompt", "x", *OUT), "the number of texts is not set", "--count 1000"),
        (("--count", "5", *OUT), "no prompt is set", "--prompt"),
        (("--count", "5", "--prompt", "x"), "the texts need a file", "-o stories.jsonl"),
        (("--count", "0", "--prompt", "x", *OUT), "--count must be 1 to 10,000,000", ""),
        (("--count", "5", "--vary", "topic"), "--vary is not NAME=A,B,C: topic", "topic=tea"),
        (("--count", "5", "--vary", "topic=,"), "there is no value for topic", "--vary topic="),
        (("--count", "5", "--vary", "n=1"), "n is already a column of every row", ""),
        (("--count", "4", "--vary", "custom_id=a,b"), "custom_id cannot be varied", "rename"),
        (
            ("--count", "5", "--vary", "a=1", "--vary", "a=2"),
            "--vary a is given twice",
            "put all values in one --vary",
        ),
        (("--count", "5", "--vary", "a=@gone.txt"), "--vary cannot read gone.txt", "NAME=@FILE"),
        (
            ("--count", "5", "--vary", "temperature=hot"),
            "--vary temperature is not a number: hot",
            "0.8",
        ),
        (("--count", "5", "--rows-from", "gone.jsonl"), "gone.jsonl does not exist", ""),
        (
            ("--count", "5", "--prompt", "x", *OUT, "--similarity", "2"),
            "--similarity must be 0.1 to 1, or off, not 2",
            "",
        ),
        (
            ("--count", "5", "--prompt", "x", *OUT, "--min-chars", "9", "--max-chars", "5"),
            "--max-chars 5 is below --min-chars 9",
            "",
        ),
        (
            ("--count", "5", "--prompt", "x", *OUT, "--param", "n=3"),
            "the parameter n must be 1: each text is requested on its own",
            "--param n",
        ),
        (
            (
                "--count",
                "5",
                "--prompt",
                "x",
                *OUT,
                "--first-seed",
                "off",
                "--cache",
                "--cache-sampled",
            ),
            "without seeds, --cache-sampled would return the same text",
            "leave out --cache-sampled",
        ),
    ],
)
def test_what_cannot_work_is_refused(cli: Cli, argv: tuple[str, ...], what: str, hint: str) -> None:
    told = cli(*SIM, *argv)
    assert told.status == 2
    assert told.err.startswith(f"error: {what}")
    assert hint in told.err
    assert not Path("out.jsonl").exists()


def test_a_bad_row_of_the_file_is_named(cli: Cli, rows: Rows) -> None:
    name = rows({"a": 1}, "[]\n")
    told = cli(*SIM, *OUT, "--count", "5", "--prompt", "x", "--rows-from", name)
    assert told.status == 2
    what = "a row cannot be read: not an object but a list"
    assert told.err.startswith(f"error: {what}\nwhere: in.jsonl:2\n")


def test_a_missing_package_is_one_line_with_what_installs_it(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "datasketch", None)
    told = cli(*NUMBERED, *OUT, "--count", "2")
    assert (told.status, told.out) == (2, "")
    assert told.err == (
        "error: finding near-duplicates needs datasketch, which is not installed\n\n"
        "hint: pip install 'redline[synth]', or keep them with --similarity off\n"
    )
    told = cli(*NUMBERED, *OUT, "--count", "2", "--similarity", "off")
    assert (told.status, told.out.splitlines()[-1]) == (0, "delivered: 2/2")


def test_redline_toml_changes_no_rule_of_a_synthesis(cli: Cli) -> None:
    Path("redline.toml").write_text(
        '[run]\nlimit = 1\nformat = "batch"\nvia = "batch"\nfail_on = ["empty"]\nmax_retries = 2\n',
        "utf-8",
    )
    told = cli(*NUMBERED, *OUT, "--count", "2")
    assert (told.status, told.out.splitlines()[-1]) == (0, "delivered: 2/2"), told.err
    assert [line["row"] for line in lines()] == [1, 2]


def test_a_synthesis_that_starts_over_knows_nothing_of_the_old_texts(cli: Cli) -> None:
    cli(*NUMBERED, *OUT, "--count", "2")
    old = [line["output"] for line in lines()]
    told = cli(*NUMBERED, *OUT, "--count", "2", "--restart")
    assert (told.status, told.out.splitlines()[-1]) == (0, "delivered: 2/2")
    assert [line["output"] for line in lines()] == old
    assert all("dropped" not in line for line in lines())


SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


@pytest.mark.parametrize("taken", ["strict", "plain", "none"])
def test_a_schema_is_in_the_prompt_and_in_the_best_format_that_is_taken(
    cli: Cli, taken: str
) -> None:
    Path("schema.json").write_text(json.dumps(SCHEMA))

    def say(body: dict[str, Any]) -> Text:
        form = body.get("response_format", {}).get("json_schema")
        is_taken = {"strict": True, "plain": not (form or {}).get("strict"), "none": form is None}
        if not is_taken[taken]:
            return 400, {"error": {"message": "response_format is not supported in this form"}}
        return json.dumps({"name": f"Ada {body['seed']}"})

    with scripted(model(say)) as server:
        flags = ("--schema", "schema.json", "--count", "4", "--similarity", "off", "-c", "1")
        asked = ("--prompt", "A person.", "--base-url", server.base_url, "--model", "m")
        told = cli("synth", *asked, *flags, *OUT)
    assert told.out.splitlines()[-1] == "delivered: 4/4", told.err
    assert all(
        json.dumps(SCHEMA, separators=(",", ":")) in body["messages"][0]["content"]
        for body in server.bodies
    )
    forms = [body.get("response_format", {}).get("json_schema") for body in server.bodies]
    strict = {"name": "tag", "strict": True, "schema": {**SCHEMA, "additionalProperties": False}}
    plain = {"name": "tag", "schema": SCHEMA}
    tried: list[Any] = [strict, plain, None][: ["strict", "plain", "none"].index(taken) + 1]
    assert forms == [*tried, *[tried[-1]] * 3]


def test_a_dry_run_shows_the_first_request_of_a_task_as_it_is_sent(cli: Cli, rows: Rows) -> None:
    Path("schema.json").write_text(json.dumps(SCHEMA))
    own = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "A person."}]
    asked = {"messages": own, "question": "1 + 1?", "answer": "2"}
    given = rows(asked, {**asked, "messages": own[1:], "question": "2 + 2?"})
    vary = ("--vary", "temperature=0.5", "--vary", "top_p=0.9", "--vary", "of=Ada")
    for command in (
        ("synth", "--prompt", "About {{ of }}.", "--count", "2", *vary, "--schema", "schema.json"),
        ("tag", given, "--schema", "schema.json", "--prompt", "A {{ question }}"),
        ("tag", rows({"messages": own}, name="own.jsonl"), "--schema", "schema.json"),
        ("eval", "gsm8k", "--data", given),
    ):
        with scripted(model(lambda body: '{"name": "Ada"}')) as server:
            flags = ("--base-url", server.base_url, "--model", "m", "-c", "1")
            shown = cli(*command, *flags, "--dry-run").out
            assert server.asked == []
            cli(*command, *flags, *OUT, "--restart")
        request = json.loads(shown[shown.index("the first request:\n") :].partition("\n")[2])
        assert request["body"] == server.bodies[0], command
        # The task's fields are counted: with a schema, they are most of the input.
        tokens = re.search(r": ([\d,]+) in", shown)
        assert tokens is not None
        assert ("--schema" not in command) or int(tokens[1].replace(",", "")) > 50


@pytest.mark.parametrize("command", ["synth", "tag"])
@pytest.mark.parametrize(
    "said",
    [
        (500, {"error": {"message": "response_format is not supported"}}),
        (501, {"error": {"message": "Not implemented: json_schema"}}),
        (405, {"error": {"message": "Structured output is not available"}}),
        (200, {"error": "response_format is not supported"}),
    ],
    ids=["500", "501", "405", "200"],
)
def test_a_format_that_is_refused_by_name_is_left_out_whatever_the_status(
    cli: Cli, rows: Rows, said: Text, command: str
) -> None:
    Path("schema.json").write_text(json.dumps(SCHEMA))

    def say(body: dict[str, Any]) -> Text:
        return said if "response_format" in body else json.dumps({"name": "Ada"})

    of = {
        "synth": ("--prompt", "A person.", "--count", "3", "--similarity", "off"),
        "tag": (rows({"text": "a"}, {"text": "b"}, {"text": "c"}),),
    }[command]
    with scripted(model(say)) as server:
        given = ("--base-url", server.base_url, "--model", "m", "--schema", "schema.json")
        told = cli(command, *of, *given, "-c", "1", "--max-retries", "0", *OUT)
    assert told.status == 0, told.err
    assert [line["output"] for line in lines()] == [{"name": "Ada"}] * 3
    assert ["response_format" in body for body in server.bodies] == [
        True,
        True,
        *[False] * 3,
    ]


def test_texts_too_short_to_be_told_apart_are_warned_of(cli: Cli) -> None:
    short = cli(*NUMBERED, *OUT, "--count", "3")
    assert "half of the texts have at most 9 words; below 29 words" in short.out
    told = cli(*NUMBERED, "-o", "off.jsonl", "--count", "3", "--similarity", "off")
    assert "words" not in told.out
    lower = cli(*NUMBERED, "-o", "low.jsonl", "--count", "1", "--similarity", "0.3")
    assert "words" not in lower.out
