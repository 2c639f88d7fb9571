"""Endpoints that are down, wrong, or will not serve us."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]
Rows = Callable[..., str]


def line_by_line(text: str) -> list[str]:
    """The part of stderr after the summary."""
    return text.partition("\n\n")[2].splitlines()


@pytest.mark.parametrize(
    ("kind", "what", "hint"),
    [
        (
            "refused",
            "the endpoint refused the key: HTTP 401: Incorrect API key",
            "set OPENAI_API_KEY or --api-key-env, or in Python api_key, then run the same command "
            "again",
        ),
        (
            "unpaid",
            "the account has no credit left: HTTP 402: no credit",
            "add credit or use another key, then run the same command again",
        ),
        (
            "quota",
            "the account has no credit left: HTTP 429: quota exceeded",
            "add credit or use another key, then run the same command again",
        ),
    ],
)
def test_what_no_row_can_get_around_stops_the_run(
    cli: Cli, rows: Rows, odd: Any, kind: str, what: str, hint: str
) -> None:
    name = rows(*({"prompt": str(i)} for i in range(500)))
    where = odd.url.removeprefix("http://")
    told = cli("run", name, "--base-url", f"{odd.url}/{kind}/v1", "-c", "1", "-o", "out.jsonl")
    assert told.status == 2
    assert re.match(r"(\d+) rows? = 0 succeeded \+ 0 failed \+ \1 unfinished; the in", told.summary)
    assert line_by_line(told.err) == [
        f"error: {what}",
        f"where: in.jsonl:1, endpoint {where}, attempt 1 of 9",
        "saved: 0 results in out.jsonl",
        "",
        f"hint: {hint}",
    ]
    # Of 500 rows; a few may go out before the first answer is read.
    assert len(odd.asked) < 20
    assert not Path("out.failed.jsonl").exists()


def test_a_wrong_path_is_each_rows_failure(cli: Cli, rows: Rows, odd: Any) -> None:
    name = rows({"prompt": "a"}, {"prompt": "b"})
    told = cli("run", name, "--base-url", f"{odd.url}/missing/v1", "-o", "out.jsonl", "-c", "1")
    assert told.status == 1
    assert told.summary.startswith("2 rows = 0 succeeded + 2 failed + 0 unfinished\n")
    assert told.err.splitlines()[-1] == (
        "first failure: the endpoint rejected the request: HTTP 404: no such model "
        f"(in.jsonl:1, endpoint {odd.url.removeprefix('http://')}, attempt 1 of 9): "
        "check the model, the path, and that the base URL ends in the API's /v1"
    )


def test_a_web_page_is_told_as_one(cli: Cli, rows: Rows, odd: Any) -> None:
    told = cli("run", rows({"prompt": "a"}), "--base-url", f"{odd.url}/html/v1", "-o", "out.jsonl")
    assert told.status == 1
    assert "3 requests" in told.err
    assert "failed attempts: 3 bad_reply" in told.err
    assert "it begins `<html>welcome</html>`" in told.err
    assert told.err.endswith(
        "this is a web page; check the path and the base URL, which usually ends in /v1\n"
    )


def test_a_run_whose_first_rows_all_fail_is_ended(cli: Cli, rows: Rows, odd: Any) -> None:
    name = rows(*({"prompt": str(i)} for i in range(2000)))
    told = cli("run", name, "--base-url", f"{odd.url}/missing/v1", "-o", "out.jsonl")
    assert told.status == 2
    assert line_by_line(told.err)[0].startswith(
        "error: the first 100 rows all failed, the last with: the endpoint rejected the request"
    )
    assert len(odd.asked) < 1000


def test_a_server_that_breaks_is_tried_again(cli: Cli, rows: Rows, odd: Any) -> None:
    common = ("run", rows({"prompt": "a"}), "--base-url", f"{odd.url}/broken/v1")
    told = cli(*common, "--max-retries", "1", "-o", "out.jsonl")
    assert told.status == 1
    assert "2 requests" in told.err
    assert ", 1 retry, " in told.err
    assert "attempt 2 of 2" in told.err


def test_an_endpoint_that_is_down_stops_the_run(
    cli: Cli, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redline.calls.http.outage._NEVER_ANSWERED_S", 0.5)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # not listening: connections are refused
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
        told = cli("run", rows({"prompt": "a"}), "--base-url", url, "-o", "out.jsonl")
    assert told.status == 2
    assert told.summary.startswith("1 row = 0 succeeded + 0 failed + 1 unfinished\n")
    error, where, saved, _, hint = line_by_line(told.err)
    assert error.startswith("error: the endpoint has not been reachable for ")
    assert where.startswith("where: in.jsonl:1, endpoint 127.0.0.1:")
    assert saved == "saved: 0 of 1 results in out.jsonl"
    assert hint == "hint: nothing listens there: check the base URL, and that the server is running"


def test_failures_and_summary_as_json(cli: Cli, rows: Rows, odd: Any) -> None:
    told = cli(
        "run", rows({"prompt": "a"}), "--base-url", f"{odd.url}/missing/v1", "--log", "json"
    )  # fmt: skip
    failure, summary = (json.loads(line) for line in told.err.splitlines())
    assert (failure["event"], failure["row"]) == ("failure", 1)
    assert failure["error"]["kind"] == "rejected"
    assert failure["error"]["status"] == 404
    assert (
        failure["error"]["hint"]
        == "check the model, the path, and that the base URL ends in the API's /v1"
    )
    assert (summary["event"], summary["failed"], summary["stopped"]) == ("summary", 1, None)


def test_what_stopped_the_run_as_json(cli: Cli, rows: Rows, odd: Any) -> None:
    url = f"{odd.url}/refused/v1"
    told = cli(
        "run", rows({"prompt": "a"}), "--base-url", url, "--log", "json", "-o", "out.jsonl"
    )  # fmt: skip
    (summary,) = (json.loads(line) for line in told.err.splitlines())
    assert told.status == 2
    assert summary["unfinished"] == 1
    assert summary["stopped"]["kind"] == "refused"
    assert summary["stopped"]["where"].startswith("in.jsonl:1, endpoint ")
    assert summary["continue_with"] == (
        f"redline run in.jsonl --base-url {url} --log json -o out.jsonl"
    )
