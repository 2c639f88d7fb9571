"""`redline show`: what it says of an output is true of all its rows, and safe to print."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from cli.conftest import Cli, Odd
from cli.test_outputs import contents
from fixtures.make import FOLDER, restored
from support.output_files import failure, result, write_output

Rows = Callable[..., str]

OLD = FOLDER / "4294e90"
SIM = ("--model", "gpt-4o-mini", "--endpoint", "sim", "-q")
THREE = (
    {"custom_id": "greet", "prompt": "Say hello."},
    {"custom_id": "long", "prompt": "Count from one to a hundred.", "max_tokens": 5},
    {"custom_id": "wrong", "prompt": "Say goodbye.", "max_tokens": 0},
)


def fields(cli: Cli, *argv: str) -> Any:
    told = cli("show", *argv, "--json")
    assert (told.status, told.err) == (0, "")
    return json.loads(told.out)


def labels(*results: bytes, failures: tuple[bytes, ...] = (), **settings: Any) -> str:
    write_output(Path("labels.jsonl"), results, failures, **settings)
    return "labels.jsonl"


def nested(row: int, levels: int) -> bytes:
    """The line of an answer that is a list in a list in a list."""
    deep = b"[" * levels + b"]" * levels
    body = result(row, "deep").rpartition(b',"crc"')[0].replace(b'"deep"', deep)
    return b'%b,"crc":"%08x"}\n' % (body, crc32(body))


def test_a_line_that_is_nested_too_deeply_still_counts(cli: Cli) -> None:
    told = cli("show", labels(nested(1, 3000), result(2)))
    assert (told.status, told.err) == (0, "")
    assert told.out.startswith("2 rows = 2 succeeded + 0 failed so far")
    told = cli("show", "labels.jsonl", "--sample", "2")
    assert "a line that is nested too deeply, or written by another version of redline" in told.out
    told = cli("show", "labels.jsonl", "--row", "1")
    assert (told.status, told.err) == (0, "")
    assert told.out.encode() == nested(1, 3000)


def test_a_finished_job_in_numbers(cli: Cli, rows: Rows) -> None:
    cli("run", rows(*THREE), *SIM, "-o", "labels.jsonl")
    told = cli("show", "labels.jsonl")
    assert (told.status, told.err) == (0, "")
    lines = told.out.splitlines()
    assert lines[0] == "3 rows = 2 succeeded + 1 failed"
    assert lines[1].startswith("from in.jsonl, model gpt-4o-mini, begun ")
    assert "  1   33.3 %  stop" in lines
    assert (
        "  1   33.3 %  length: the answer was cut at the token limit, such as row 2 (long)" in lines
    )
    assert "  1   33.3 %  rejected, HTTP 400, such as row 3 (wrong): the endpoint" in told.out
    assert "tokens      10 in, 10 out; 5.0 in and 5.0 out per answer" in lines
    assert "endpoints   sim 2" in lines
    # The simulated provider costs nothing.
    assert "cost" not in told.out
    found = fields(cli, "labels.jsonl")
    assert (found["rows"], found["succeeded"], found["failed"], found["cut"]) == (3, 2, 1, 1)
    assert found["errors"][0]["example"] == "row 3 (wrong)"
    assert found["input"]["rows"] == 3


def test_rows_by_flag_number_and_name(cli: Cli, rows: Rows) -> None:
    cli("run", rows(*THREE), *SIM, "-o", "labels.jsonl")
    failed = cli("show", "labels.jsonl", "--failed").out
    assert failed.startswith("row 3 (wrong)  failed: rejected, HTTP 400  sim")
    assert "\n  | custom_id: wrong\n  | prompt: Say goodbye.\n" in failed
    assert cli("show", "labels.jsonl", "--cut").out.startswith("row 2 (long)  length  sim")
    by_number, by_name = (cli("show", "labels.jsonl", "--row", each) for each in ("2", "long"))
    assert by_number == by_name
    assert by_number.out.endswith("\nanswer\nYou said: Count from\n")
    whole = cli("show", "labels.jsonl", "--row", "wrong").out
    assert "\nasked\ncustom_id: wrong\nprompt: Say goodbye.\nmax_tokens: 0\n" in whole
    assert "\nerror\nthe endpoint rejected the request: HTTP 400" in whole
    assert "compare the request with the API's documentation" in whole
    as_json = cli("show", "labels.jsonl", "--row", "2", "--json").out
    assert as_json in Path("labels.jsonl").read_text("utf-8")
    both = cli("show", "labels.jsonl", "--cut", "--failed", "--json").out
    assert [json.loads(line)["row"] for line in both.splitlines()] == [2, 3]


def test_a_sample_is_the_same_each_time_and_follows_its_seed(cli: Cli) -> None:
    labels(*(result(row) for row in range(50)), failures=tuple(map(failure, range(50, 60))))

    def drawn(*flags: str) -> list[int]:
        out = cli("show", "labels.jsonl", "--json", *flags).out
        return [json.loads(line)["row"] for line in out.splitlines()]

    first = drawn("--sample", "5")
    assert len(first) == 5
    assert drawn("--sample", "5", "--seed", "0") == first
    assert drawn("--sample", "5", "--seed", "1") != first
    assert len(drawn("--sample", "100")) == 60
    assert set(drawn("--failed", "--sample", "3")) < set(range(50, 60))


def test_a_sample_of_a_question_asked_several_times_is_found_by_its_name(cli: Cli) -> None:
    labels(result(1, custom_id="q#1"), result(2, custom_id="q#2"), result(3, custom_id="q#x"))
    out = cli("show", "labels.jsonl", "--row", "q", "--json").out
    assert [json.loads(line)["row"] for line in out.splitlines()] == [1, 2]


def test_long_texts_are_folded_and_whole_with_row(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "word " * 200 + "日本語" * 100
    labels(result(1, text))
    for columns in ("60", "80", "120"):
        monkeypatch.setenv("COLUMNS", columns)
        lines = cli("show", "labels.jsonl", "--sample", "1").out.splitlines()
        assert len(lines) == 7
        assert max(map(len, lines)) <= int(columns)
        assert lines[-1].endswith(" more characters")
        summary = cli("show", "labels.jsonl").out.splitlines()
        assert max(map(len, summary)) <= int(columns)
    assert text in cli("show", "labels.jsonl", "--row", "1").out
    labels(result(1, "one\ntwo\n\nthree"))
    assert "\n  one\n  two\n\n  three\n" in cli("show", "labels.jsonl", "--sample", "1").out


@pytest.mark.parametrize(
    "flags", [("--sample", "9"), ("--row", "1"), ("--sample", "9", "--json"), ()]
)
def test_nothing_of_others_moves_the_cursor(cli: Cli, flags: tuple[str, ...]) -> None:
    evil = "\x1b[2J\x1b]0;owned\x07 \u202egnp.exe \x9b31m \r over"
    error = {"kind": evil, "message": evil, "status": None, "where": evil, "hint": evil}
    labels(
        result(1, evil, model=evil, finish_reason=evil, endpoint=evil, custom_id=evil),
        failures=(failure(1, error=error, input={evil: evil}), failure(2, error=error)),
        prompt=evil,
    )
    told = cli("show", "labels.jsonl", *flags)
    assert told.status == 0
    assert not set("\x1b\x07\x9b\u202e\r") & set(told.out)


def test_a_job_that_no_run_has_finished_says_so(cli: Cli) -> None:
    labels(result(1), rows=None)
    assert cli("show", "labels.jsonl").out.startswith(
        "1 row = 1 succeeded + 0 failed so far; the last run did not finish\n"
    )
    labels(result(1), rows=3)
    assert "1 row = 1 succeeded + 0 failed; of 3 in the input\n" in cli("show", "labels.jsonl").out
    labels()
    assert cli("show", "labels.jsonl").out.startswith("0 rows = 0 succeeded + 0 failed so far")
    assert cli("show", "labels.jsonl", "--sample", "3").out == "no row has an outcome yet\n"
    assert cli("show", "labels.jsonl", "--failed").out == "no row has failed\n"


def test_what_was_asked_is_read_from_the_input_if_the_line_does_not_repeat_it(
    cli: Cli, rows: Rows
) -> None:
    equal = {"prompt": "Say hello."}
    cli("run", rows(*THREE[:2], equal, equal), *SIM, "-o", "labels.jsonl")
    for flags in (("--sample", "9"), ("--row", "greet"), ("--row", "4")):
        assert "prompt: Say hello." in cli("show", "labels.jsonl", *flags).out
    # The file now has another row of that name, which was not asked.
    rows({**THREE[0], "prompt": "Say more."}, THREE[1], equal)
    assert "prompt:" not in cli("show", "labels.jsonl", "--row", "greet").out
    assert "prompt: Count from" in cli("show", "labels.jsonl", "--row", "long").out
    assert "prompt: Say hello." in cli("show", "labels.jsonl", "--row", "3").out
    assert "prompt:" not in cli("show", "labels.jsonl", "--row", "4").out
    Path("in.jsonl").write_bytes(b"\xff{\n")
    assert "prompt:" not in cli("show", "labels.jsonl", "--row", "long").out
    Path("in.jsonl").unlink()
    assert cli("show", "labels.jsonl", "--row", "long").status == 0


def test_a_name_with_a_space_is_quoted_in_commands(cli: Cli) -> None:
    labels(result(1), result(2).replace(b"yes", b"yea"))
    Path("labels.jsonl").rename("my labels.jsonl")
    text = " ".join(cli("show", "my labels.jsonl").out.split())
    assert "redline repair 'my labels.jsonl' moves the lines out" in text
    assert "rows: redline show 'my labels.jsonl' --sample 5, --row N" in text


def test_lines_that_do_not_count_are_told(cli: Cli) -> None:
    labels(
        result(1, mark=3),
        result(1, mark=4),
        result(2).replace(b"yes", b"yea"),
        result(3),
        result(3),
        result(4)[:40],
        failures=(failure(5, mark=1), failure(5, mark=1), failure(1, mark=3)),
    )
    told = cli("show", "labels.jsonl")
    assert told.out.startswith("3 rows = 2 succeeded + 1 failed")
    text = " ".join(told.out.split())
    for note in (
        "1 line is damaged and not counted: redline verify labels.jsonl counts missing rows",
        "the last line is incomplete and is not counted",
        "1 line repeats a row and is not counted: redline repair labels.jsonl",
        "3 older lines of rows that were sent again are not counted",
        "1 row has an answer and a failure with different contents",
    ):
        assert note in text
    found = fields(cli, "labels.jsonl")
    names = ("damaged", "repeated", "outdated", "contested", "is_torn")
    assert [found[name] for name in names] == [1, 1, 3, 1, True]


def test_prices_are_those_of_the_folder_and_a_broken_file_of_them_is_no_obstacle(cli: Cli) -> None:
    labels(result(1), result(2, model="mine"))
    assert (
        'cost        unknown: no price is known for m and mine (set [prices."m"]'
        in cli("show", "labels.jsonl").out
    )
    prices = (
        '[prices.mine]\ninput = 1\noutput = 2\n[endpoints.api]\nbase_url = "http://127.0.0.1/v1"\n'
    )
    Path("redline.toml").write_text(prices)
    out = cli("show", "labels.jsonl").out
    assert "cost        $0.000017 for 1 answer; unknown for 1 answer: no price is known for" in out
    assert fields(cli, "labels.jsonl")["cost_usd"] == pytest.approx(17e-6)
    Path("redline.toml").write_text("[prices.mine]\ninput = 'dear'\n")
    told = cli("show", "labels.jsonl")
    assert (told.status, told.err) == (0, "")
    assert "the prices in redline.toml are not used: the price of mine has no output" in told.out


def test_what_a_budget_has_spent_is_told(cli: Cli, rows: Rows) -> None:
    cli(
        "run",
        rows(*THREE),
        *SIM,
        "-o",
        "labels.jsonl",
        "--budget-tokens",
        "1k",
        "--max-tokens",
        "9",
    )
    spent = fields(cli, "labels.jsonl")["spent"]
    assert spent["tokens"] >= 20
    text = "tokens by runs with a budget, including failed and open calls"
    text = f"spent       {spent['tokens']} {text}"
    assert text in cli("show", "labels.jsonl").out
    Path("labels.redline/spent").write_text("torn")
    assert "labels.redline/spent is damaged" in " ".join(cli("show", "labels.jsonl").out.split())


def test_rows_without_a_manifest_are_shown(cli: Cli) -> None:
    labels(result(1))
    Path("labels.redline/manifest.json").write_text("{")
    told = cli("show", "labels.jsonl")
    assert told.out.startswith("1 row = 1 succeeded + 0 failed\n")
    assert "some facts are unknown: labels.redline/manifest.json is damaged" in told.out
    Path("labels.redline/manifest.json").unlink()
    told = cli("show", "labels.jsonl")
    assert (told.status, told.err) == (0, "")
    assert "some facts are unknown: there is no labels.redline/manifest.json" in told.out


# State: rows, succeeded, failed, damaged, and what its text has.
OLDER = {
    "batch-format": (5, 4, 1, 0, "m 4"),
    "budget": (5, 5, 0, 0, "spent       40 tokens"),
    "cache": (10, 10, 0, 0, "m 10"),
    "damaged": (4, 3, 1, 1, "1 line is damaged"),
    "eval": (5, 5, 0, 0, "verdicts    correct 4, wrong 1"),
    "failures": (12, 5, 7, 0, "5   41.7 %  server_failed, HTTP 500"),
    "in-batch": (0, 0, 0, 0, "0 rows"),
    "no-suffix": (5, 4, 1, 0, "m 4"),
    "synth": (5, 5, 0, 0, "m 5"),
    "tag": (5, 4, 1, 0, "re-asks     2"),
    "torn": (3, 2, 1, 0, "the last line is incomplete"),
    "unnamed": (5, 5, 0, 0, "m 5"),
    "whole-lines": (5, 5, 0, 0, "m 5"),
}


@pytest.mark.parametrize("name", OLDER)
def test_outputs_of_every_command_and_of_an_older_redline(
    cli: Cli, tmp_path: Path, name: str
) -> None:
    restored(OLD / name, tmp_path, "http://127.0.0.1:9/v1")
    output = "out" if name == "no-suffix" else "out.jsonl"
    *counts, text = OLDER[name]
    found = fields(cli, output)
    assert [found[each] for each in ("rows", "succeeded", "failed", "damaged")] == counts
    assert text in cli("show", output).out
    shown = cli("show", output, "--sample", "100", "--json").out.splitlines()
    assert len(shown) == found["rows"]
    assert cli("show", output, "--sample", "100").status == 0


def test_embeddings_are_short_and_batch_lines_have_their_answer(cli: Cli, rows: Rows) -> None:
    name = rows({"custom_id": "v", "input": "hello"})
    cli("run", name, *SIM, "--url", "/v1/embeddings", "-o", "vectors.jsonl")
    assert " numbers\n" in cli("show", "vectors.jsonl", "--sample", "1").out
    assert "  1  100.0 %  no finish reason\n" in cli("show", "vectors.jsonl").out
    cli("run", rows(*THREE), *SIM, "--format", "batch", "-o", "batch.jsonl")
    assert cli("show", "batch.jsonl", "--row", "long").out.endswith(
        "answer\nYou said: Count from\n"
    )
    found = fields(cli, "batch.jsonl")
    assert found["finish_reasons"] == {"stop": 1, "length": 1}
    # The lines do not name the endpoint, but the run's record does: the simulated one is free.
    assert (found["cost_usd"], found["priced"], found["unpriced"]) == (None, 0, {})


def test_answers_of_a_plain_endpoint_and_of_odd_ones(cli: Cli, rows: Rows, odd: Odd) -> None:
    name = rows({"text": "a"}, {"text": "b"})
    where = ("--base-url", odd.url, "-q", "-o")
    cli("run", name, "--url", "/ask", "--body", '{"q": "{{ text }}"}', *where, "plain.jsonl")
    assert '{"result": {"items": ' in cli("show", "plain.jsonl", "--sample", "1").out
    where = ("--model", "m", "--base-url", f"{odd.url}/empty/v1", "-q", "-o", "e.jsonl")
    cli("run", name, "--prompt", "{{ text }}", *where)
    assert "100.0 %  empty: the answer is empty, such as row " in cli("show", "e.jsonl").out


@pytest.mark.parametrize(
    ("argv", "what", "hint"),
    [
        (["label.jsonl"], "label.jsonl does not exist", "did you mean labels.jsonl?"),
        (["nothing"], "nothing does not exist", "pass the file that the run was given with -o"),
        (["."], "is a folder", "pass the file that the run was given with -o"),
        (["labels.redline"], "labels.redline holds the state of labels.jsonl", "pass labels.jsonl"),
        (["labels.failed.jsonl"], "holds the failures of labels.jsonl", "pass labels.jsonl"),
        (
            ["in.jsonl"],
            "in.jsonl is not a results file of redline",
            "redline wrote none of its lines",
        ),
        (
            ["empty.jsonl"],
            "empty.jsonl is not a results file of redline",
            "redline wrote none of its lines",
        ),
        (["labels.jsonl.gz"], "is not a results file of redline", "it is compressed: unpack it"),
        (["labels.jsonl", "--row", "9"], "labels.jsonl has no row 9", "its input has 3 rows"),
        (["labels.jsonl", "--row", "gone"], "labels.jsonl has no row gone", "or its custom_id"),
        (
            ["labels.jsonl", "--row", "1", "--cut"],
            "--row and --cut cannot be combined",
            "leave one",
        ),
        (["labels.jsonl", "--seed", "1"], "--seed needs --sample", "add --sample 5"),
        (["labels.jsonl", "--failed", "--seed", "1"], "--seed needs --sample", "add --sample 5"),
        (
            ["labels.jsonl", "--row", "1", "--seed", "1"],
            "--row and --seed cannot be combined",
            "leave one out",
        ),
        (["labels.jsonl", "--sample", "0"], "sample must be", ""),
        ([], "OUT is missing", "redline show OUT [FLAGS]"),
    ],
)
def test_a_mistake_is_named_with_its_remedy(
    cli: Cli, rows: Rows, argv: list[str], what: str, hint: str
) -> None:
    cli("run", rows(*THREE), *SIM, "-o", "labels.jsonl")
    Path("empty.jsonl").touch()
    Path("labels.jsonl.gz").write_bytes(gzip.compress(Path("labels.jsonl").read_bytes()))
    before = contents()
    told = cli("show", *argv)
    assert (told.status, told.out) == (2, "")
    assert what in told.err
    assert hint in told.err
    assert before == contents()


def test_nothing_is_written_and_a_run_may_hold_the_lock(cli: Cli, rows: Rows) -> None:
    from redline.journal import Output, OutputLock

    cli("run", rows(*THREE), *SIM, "-o", "labels.jsonl")
    cli("run", "in.jsonl", *SIM, "-o", "other.jsonl")
    manifest = Path("labels.redline/manifest.json")
    manifest.write_text(manifest.read_text("utf-8").replace('"rows": 3', '"rows": null'))
    said = "3 rows = 2 succeeded + 1 failed so far; "
    assert cli("show", "labels.jsonl").out.startswith(said + "the last run did not finish\n")
    with OutputLock(Output(path=Path("labels.jsonl"))):
        before = contents()
        assert cli("show", "labels.jsonl").out.startswith(said + "a run is in progress\n")
        assert fields(cli, "labels.jsonl")["is_running"] is True
        note = "labels.jsonl: a run is still adding rows"
        assert note in cli("compare", "labels.jsonl", "other.jsonl").out
        assert cli("show", "labels.jsonl", "--sample", "2").status == 0
        assert before == contents()
