"""What is told at the end, in between, and of a run that is only planned."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from redline.job.show import PlainProgress
from support.summaries import sums

Cli = Callable[..., Any]
Rows = Callable[..., str]

SIM = ("--endpoint", "sim", "--prompt", "{{ text }}")


def settled(text: str) -> str:
    """The text with what differs from run to run taken out."""
    text = re.sub(r"^(under )?[\d.]+ s, ", "T, ", text, flags=re.M)
    text = re.sub(r"at [\d.,]+/s", "at R/s", text)
    return re.sub(r"at most \d+ in flight", "at most N in flight", text)


def test_the_summary_of_a_run_that_succeeds(cli: Cli, rows: Rows) -> None:
    told = cli("run", rows({"text": "a"}, {"text": "b"}), *SIM, "-o", "out.jsonl")
    assert told.status == 0
    assert settled(told.err) == (
        "2 rows = 2 succeeded + 0 failed + 0 unfinished\n"
        "T, 2 requests at R/s, 0 retries, 0 x 429, at most N in flight\n"
        "2 tokens in, 6 out\n"
        "results: out.jsonl\n"
    )


def test_the_summary_of_one_row(cli: Cli, rows: Rows) -> None:
    told = cli("run", rows({"text": "a"}), *SIM)
    assert settled(told.err) == (
        "1 row = 1 succeeded + 0 failed + 0 unfinished\n"
        "T, 1 request at R/s, 0 retries, 0 x 429, at most N in flight\n"
        "1 token in, 3 out\n"
    )


def test_a_search_that_has_found_nothing_yet_is_not_in_the_summary(cli: Cli, rows: Rows) -> None:
    told = cli("run", rows({"text": "a"}), *SIM, "-c", "auto", "--rate", "auto")
    assert told.status == 0
    assert "limits found" not in told.err


def test_the_summary_of_a_run_that_had_nothing_left_to_do(cli: Cli, rows: Rows) -> None:
    command = ("run", rows({"text": "a"}, {"text": "b"}), *SIM, "-o", "out.jsonl")
    cli(*command)
    told = cli(*command)
    assert (told.status, told.err) == (0, "Nothing to do: 2 done\nresults: out.jsonl\n")


def test_old_failures_keep_the_status_at_1_until_they_are_mended(cli: Cli, rows: Rows) -> None:
    command = ("run", "in.jsonl", *SIM, "-o", "out.jsonl", "--fail-on", "length")
    rows({"text": "a"}, {"text": "b"})
    assert cli(*command, "--max-tokens", "1").status == 1
    told = cli(*command, "--max-tokens", "1")
    assert told.status == 1
    assert told.err == (
        "Nothing to do: 0 done, 2 failed\n"
        "results: out.jsonl\n"
        "failures: out.failed.jsonl (--retry-failed tries them again)\n"
    )
    told = cli(*command, "--max-tokens", "90", "--force", "--retry-failed")
    assert told.status == 0
    assert told.summary.startswith("2 rows = 2 succeeded + 0 failed + 0 unfinished\n")
    assert not Path("out.failed.jsonl").exists()
    assert cli("verify", "out.jsonl").out == "verify: 2 of 2, each once\n"


def test_retrying_failures_leaves_untried_rows_to_the_plain_command(cli: Cli, rows: Rows) -> None:
    name = rows({"txt": "bad"}, {"text": "b"}, {"text": "c"})
    command = ("run", name, *SIM, "-o", "out.jsonl")
    assert cli(*command, "--limit", "2").status == 1
    plan = cli(*command, "--retry-failed", "--dry-run").out.splitlines()[0]
    assert plan == (
        "3 rows = 1 done already + 0 to send + 1 that cannot be sent + 1 untried, which "
        "--retry-failed leaves out"
    )
    told = cli(*command, "--retry-failed")
    assert told.summary.startswith(
        "1 row = 0 succeeded + 1 failed + 0 unfinished; 1 was done before; "
        "1 untried, which --retry-failed leaves out\n"
    )
    assert told.err.endswith(
        "continue with: redline run in.jsonl --endpoint sim --prompt '{{ text }}' -o out.jsonl\n"
    )


def test_a_deadline_leaves_rows_for_the_next_run(cli: Cli, rows: Rows) -> None:
    name = rows(*({"text": str(number)} for number in range(50)))
    command = ("run", name, *SIM, "-o", "out.jsonl")
    told = cli(*command, "--rps", "20", "--deadline", "300ms", "--restart")
    assert told.status == 2
    assert "\nsaved: " in told.err
    assert (
        "\ncontinue with: redline run in.jsonl --endpoint sim --prompt '{{ text }}' -o out.jsonl "
        "--rps 20 --deadline 300ms\n"
    ) in told.err  # without --restart
    told = cli(*command)
    assert told.status == 0
    assert cli("verify", "out.jsonl").out == "verify: 50 of 50, each once\n"


def test_a_continued_run_tells_what_failed_before(cli: Cli, rows: Rows) -> None:
    name = rows({"txt": "bad"}, *({"text": str(number)} for number in range(6)))
    command = ("run", name, *SIM, "-o", "out.jsonl")
    assert cli(*command, "--limit", "3").status == 1
    told = cli(*command)
    assert told.status == 1
    assert told.summary.startswith(
        "4 rows = 4 succeeded + 0 failed + 0 unfinished; 2 were done before; 1 failed before\n"
    )
    rows({"txt": "bad"}, *({"text": str(number)} for number in range(50)))
    told = cli(*command, "--rps", "20", "--deadline", "300ms")
    found = re.search(
        r"^saved: (\d+) of 51 results in out.jsonl, failures beside it$", told.err, re.M
    )
    assert found is not None, told.err
    assert int(found[1]) == len(Path("out.jsonl").read_text().splitlines()) < 50


def test_the_summary_as_json(cli: Cli, rows: Rows) -> None:
    told = cli("run", rows({"text": "a"}, "x\n"), *SIM, "-o", "out.jsonl", "--log", "json")
    summary = json.loads(told.err)
    assert summary.pop("elapsed_s") >= 0
    assert summary.pop("first_failure")["message"].startswith("the row cannot be read")
    assert summary.pop("input") == {
        "rows": 2,
        "done": 1,
        "failed": 1,
        "left": 0,
        "untried": 0,
        "is_exact": True,
    }
    assert summary == {
        "event": "summary",
        "offered": 2,
        "succeeded": 1,
        "failed": 1,
        "unfinished": 0,
        "skipped": 0,
        "untried": 0,
        "attempts": 1,
        "retries": 0,
        "rate_limited": 0,
        "most_in_flight": 1,
        "input_tokens": 1,
        "output_tokens": 3,
        "spent_usd": None,
        "expected_usd": None,
        "spent_tokens": None,
        "errors_by_kind": {},
        "found_limits": [],
        "is_input_done": True,
        "is_interrupted": False,
        "stopped": None,
        "output": "out.jsonl",
        "continue_with": None,
    }


def test_a_dry_run_sends_nothing_and_needs_no_key(cli: Cli, rows: Rows, odd: Any) -> None:
    name = rows({"text": "a"}, {"txt": "b"}, {"text": "c"})
    told = cli("run", name, "--prompt", "{{ text }}", "--model", "m", "--rpm", "1", "--dry-run")
    assert told.status == 1
    assert told.out == (
        "3 rows = 2 to send + 1 that cannot be sent\n"
        "the first row that cannot be sent: in.jsonl:2: the prompt template does not fit the row: "
        "'text' is undefined; the row's columns are: txt\n"
        "about 522 tokens: 10 in (±20 %), and up to 512 out\n"
        "at least 1 m 00 s, bound by 1/60s requests\n"
        "the first request:\n"
        "{\n"
        '  "method": "POST",\n'
        '  "url": "/v1/chat/completions",\n'
        '  "body": {\n'
        '    "model": "m",\n'
        '    "messages": [\n'
        "      {\n"
        '        "role": "user",\n'
        '        "content": "a"\n'
        "      }\n"
        "    ]\n"
        "  }\n"
        "}\n"
    )
    cli("run", name, "--base-url", f"{odd.url}/v1", "--prompt", "x", "-o", "o.jsonl", "--dry-run")
    assert odd.asked == []
    assert sorted(path.name for path in Path().iterdir()) == [".stdin", "in.jsonl"]


def test_a_dry_run_counts_what_is_done_already(cli: Cli, rows: Rows) -> None:
    name = rows(*({"text": str(number)} for number in range(5)))
    command = ("run", name, *SIM, "-o", "out.jsonl")
    cli(*command, "--limit", "2")
    lines = cli(*command, "--dry-run", "--rps", "1").out.splitlines()
    assert lines[0] == "5 rows = 2 done already + 3 to send + 0 that cannot be sent"
    assert lines[2] == "at least 2.1 s, bound by 1/1s requests"
    lines = cli(*command, "--dry-run", "--restart").out.splitlines()
    assert lines[0] == "5 rows = 0 done already + 5 to send + 0 that cannot be sent"
    cli(*command)
    assert cli(*command, "--dry-run").out == (
        "5 rows = 5 done already + 0 to send + 0 that cannot be sent\n"
    )


def test_a_row_above_the_token_limit_is_found_by_a_dry_run(cli: Cli, rows: Rows) -> None:
    name = rows({"text": "a"}, {"text": "word " * 3000})
    told = cli("run", name, *SIM, "--tpm", "600", "--dry-run")
    assert told.out.splitlines()[:2] == [
        "2 rows = 1 to send + 1 that cannot be sent",
        "the first row that cannot be sent: in.jsonl:2: the call needs at least 1,442 tokens, "
        "more than the limit of 600/60s ever allows",
    ]
    assert "the limits require no wait: the server and " in told.out


@pytest.mark.parametrize("flag", ["--tokens", "--input-tokens"])
@pytest.mark.parametrize(("limit", "refused"), [("950/60s", 1), ("1000/60s", 0)])
def test_a_run_refuses_the_rows_that_its_dry_run_does(
    cli: Cli, rows: Rows, flag: str, limit: str, refused: int
) -> None:
    """A row that only a guess puts above the limit is sent: the guess may be too high."""
    # It surely has 960 tokens, by the estimate 2,400.
    name = rows({"text": "word " * 2000})
    command = ("run", name, *SIM, flag, limit, "--max-tokens", "5")
    planned = cli(*command, "--dry-run").out.splitlines()[0]
    assert planned == f"1 row = {1 - refused} to send + {refused} that cannot be sent"
    told = cli(*command, "-o", "out.jsonl")
    assert told.summary.startswith(f"1 row = {1 - refused} succeeded + {refused} failed")


def test_progress_off_a_terminal_is_plain_lines(
    cli: Cli, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PlainProgress, "__init__", _often)
    name = rows(*({"text": str(number)} for number in range(40)))
    told = cli("run", name, *SIM, "-o", "out.jsonl", "--rps", "50")
    lines = [line for line in told.err.splitlines() if " in flight, " in line and "left" in line]
    assert len(lines) >= 2
    pattern = re.compile(
        r"40 rows: \d+ done, 0 failed, \d+ left, 0 retrying, \d+ in flight, [\d.]+ rows/s, "
        r"[\d.]+ tokens/s, 0 x 429(, ETA (under )?[\d.]+ s)?(, bound by 50 requests/s)?"
    )
    assert all(pattern.fullmatch(line) for line in lines), lines
    quiet = cli("run", name, *SIM, "-o", "quiet.jsonl", "--rps", "50", "--quiet")
    assert quiet.err.startswith("40 rows = 40 succeeded")


def _often(self: Any, stream: Any, every_s: float = 10.0) -> None:
    assert every_s == 10.0
    self._stream, self._every_s = stream, 0.2


def test_sums_that_do_not_add_up_are_seen() -> None:
    assert sums("2 rows = 1 succeeded + 0 failed + 0 unfinished; 3 were done before\n") == [(2, 1)]
    assert sums("1,003 rows = 1,000 done already + 2 to send + 1 that cannot be sent") == [
        (1003, 1003)
    ]
    assert sums('{"event":"summary","offered":3,"succeeded":1,"failed":1,"unfinished":0}') == [
        (3, 2)
    ]
    assert sums("1 row = 1 to send + 1 that cannot be sent") == [(1, 2)]
