"""Errors, summaries and plans as text."""

from __future__ import annotations

import io
import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from redline.calls.cost import Allowance
from redline.cli.session import Notes, error_text, plan_text, summary_line, summary_text, tell
from redline.errors import ConfigError, Refused, Rejected
from redline.job import Plan, Report
from redline.job.show import InputCounts
from redline.job.work import Spent
from redline.journal import Output

ARGV = ["run", "in put.jsonl", "-o", "out.jsonl", "--restart"]


def report(tmp_path: Path | None = None, **changes: Any) -> Report:
    output = Output(path=tmp_path / "out.jsonl") if tmp_path is not None else None
    fields: dict[str, Any] = {"is_input_done": True, "elapsed_s": 75.0, "output": output}
    return Report(**{**fields, **changes})


def test_an_error_has_up_to_four_parts() -> None:
    whole = ConfigError("what", where="here", hint="do this")
    assert error_text(whole, "87 of 500 results in labels.jsonl") == (
        "error: what\nwhere: here\nsaved: 87 of 500 results in labels.jsonl\n\nhint: do this\n"
    )
    assert error_text(ConfigError("what")) == "error: what\n"


def test_a_summary_with_everything(tmp_path: Path) -> None:
    (tmp_path / "out.failed.jsonl").touch()
    notes = Notes()
    notes.first_failure = Rejected("too long", where="in.jsonl:3", hint="shorten it")
    text = summary_text(
        report(
            tmp_path, offered=1500, succeeded=1490, failed=8, skipped=20, attempts=1600,
            retries=100, rate_limited=3, most_in_flight=64, input_tokens=12_000,
            output_tokens=3_000, is_input_done=False,
            errors_by_kind={"server_failed": 97, "rate_limited": 3},
        ),
        ARGV,
        notes,
    )  # fmt: skip
    assert text == (
        "1,500 rows = 1,490 succeeded + 8 failed + 2 unfinished; 20 were done before; the input "
        "was not read to its end\n"
        "1 m 15 s, 1,600 requests at 21.3/s, 100 retries, 3 x 429, at most 64 in flight\n"
        "12,000 tokens in, 3,000 out\n"
        "failed attempts: 97 server_failed, 3 rate_limited\n"
        f"results: {tmp_path}/out.jsonl\n"
        f"failures: {tmp_path}/out.failed.jsonl (--retry-failed tries them again)\n"
        "first failure: too long (in.jsonl:3): shorten it\n"
        "continue with: redline run 'in put.jsonl' -o out.jsonl\n"
    )


def test_a_low_rate_is_not_rounded_to_zero() -> None:
    text = summary_text(report(offered=3, succeeded=3, attempts=3), ARGV, Notes())
    assert "1 m 15 s, 3 requests at 0.0400/s, " in text


def test_a_run_that_was_stopped_says_why_once(tmp_path: Path) -> None:
    stopped = Refused("the endpoint refused the key: HTTP 401", where="in.jsonl:88", hint="set it")
    notes = Notes()
    notes.first_failure = stopped
    text = summary_text(
        report(tmp_path, offered=88, succeeded=87, stopped=stopped, attempts=88), ARGV, notes
    )
    assert text.count("HTTP 401") == 1
    assert text.endswith(
        "continue with: redline run 'in put.jsonl' -o out.jsonl\n\n"
        "error: the endpoint refused the key: HTTP 401\n"
        "where: in.jsonl:88\n"
        f"saved: 87 of 88 results in {tmp_path}/out.jsonl\n\n"
        "hint: set it\n"
    )


def test_a_run_that_did_not_begin_is_only_an_error(tmp_path: Path) -> None:
    nothing = report(tmp_path, stopped=ConfigError("no rows in x"), is_input_done=False)
    assert summary_text(nothing, ARGV, Notes()) == "error: no rows in x\n"


def test_the_line_of_json(tmp_path: Path) -> None:
    fields = json.loads(
        summary_line(report(tmp_path, offered=2, succeeded=1, interrupted=True), ARGV, Notes())
    )
    assert (fields["unfinished"], fields["is_interrupted"]) == (1, True)
    assert fields["continue_with"] == "redline run 'in put.jsonl' -o out.jsonl"
    assert json.loads(summary_line(report(offered=1), ARGV, Notes()))["continue_with"] is None


@pytest.mark.parametrize(
    "name", ["not_traced", "not_recorded", "not_notified", "not_exported", "abandoned"]
)
def test_what_is_incomplete_is_in_both_summaries(name: str) -> None:
    reason = "2 alerts did not arrive"
    found = report(offered=1, **{name: [reason] if name == "abandoned" else reason})
    assert reason in summary_text(found, ARGV, Notes())
    assert reason in json.loads(summary_line(found, ARGV, Notes()))[name]


def test_the_command_that_continues_shows_no_secret(tmp_path: Path) -> None:
    argv = [
        *("run", "a", "--header", "Authorization: Bearer sk-1", "--header=X-Key:sk-2"),
        *("--proxy", "http://me:sk-3@proxy:80", "--proxy=http://sk-4@p", "-o", "out.jsonl"),
    ]
    text = summary_text(report(tmp_path, offered=1), argv, Notes())
    assert text.endswith(
        "continue with: redline run a --header 'Authorization: ...' '--header=X-Key: ...' "
        "--proxy http://...@proxy:80 --proxy=http://...@p -o out.jsonl\n"
    )


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://h/v1?key=sk-1", "'https://h/v1?...'"),
        ("https://me:sk-1@h/v1", "https://...@h/v1"),
        ("redis://:sk-1@h/0", "redis://...@h/0"),
        ("redis://h/0?password=sk-1&db=2", "'redis://h/0?password=...&db=2'"),
        ("s3://me:sk-1@bucket/a.jsonl", "s3://...@bucket/a.jsonl"),
    ],
)
@pytest.mark.parametrize("form", ["{}", "--base-url {}", "--share={}", "-o {}", "-o{}"])
def test_no_url_in_the_command_that_continues_shows_a_secret(
    tmp_path: Path, form: str, url: str, shown: str
) -> None:
    argv = ["run", *form.format(url).split()]
    fields = json.loads(summary_line(report(tmp_path, offered=1), argv, Notes()))
    # The shell's quotes begin where the word does.
    words = shlex.split(form.format(shown))
    assert fields["continue_with"] == f"redline run {shlex.join(words)}"


def test_a_plan_without_an_output_says_nothing_of_done_rows() -> None:
    plan = Plan(rows=3, bad_rows=1, input_tokens=1, first_problem="in.jsonl:2: bad")
    assert plan_text(plan, has_output=False) == (
        "3 rows = 2 to send + 1 that cannot be sent\n"
        "the first row that cannot be sent: in.jsonl:2: bad\n"
        "about 1 token: 1 in, and up to 0 out\n"
        "the limits require no wait: the server and the concurrency determine the time\n"
    )


def test_nobody_reading_stderr_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr("sys.stderr", Closed())
    tell("text")


def test_numbers_of_a_continued_run_are_of_all_runs_or_say_of_which(tmp_path: Path) -> None:
    dollar = 10**12
    one = Spent(allowance=Allowance(), picodollars=dollar, here=dollar)
    counts = InputCounts(rows=60, done=44, failed=6)
    continued = report(
        tmp_path, offered=20, succeeded=10, skipped=40, failed_before=6, spent=one, input=counts,
        stopped=Refused("no"), attempts=10,
    )  # fmt: skip
    (tmp_path / "out.failed.jsonl").touch()
    lines = summary_text(continued, ARGV, Notes()).splitlines()
    assert lines[0] == (
        "20 rows = 10 succeeded + 0 failed + 10 unfinished; 34 were done before; 6 failed before"
    )
    assert lines[1] == "60 rows: 44 done, 6 failed, 10 left"
    assert "spent by this run: $1.00; about $2.00 with the rows left" in lines
    saved = f"saved: 44 of 60 results in {tmp_path}/out.jsonl, failures beside it"
    assert saved in lines
    paid = Spent(allowance=Allowance(picodollars=9 * dollar), picodollars=3 * dollar, here=dollar)
    continued.spent = paid
    lines = summary_text(continued, ARGV, Notes()).splitlines()
    assert "spent: $3.00 of $9.00; about $4.00 with the rows left" in lines
