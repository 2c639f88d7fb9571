"""Answers that are half, broken, miscounted or loosely written: whole results, or errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cli.conftest import Cli, Told
from support.scripted import Answer, Asked, Script, Scripted, chat, said, scripted

Rows = Callable[..., str]
CUT_OFF = [
    "error",
    "network_error",
    "insufficient_system_resource",
    "ERROR",
    "abort",
]


def asked(cli: Cli, script: Script, path: str, *flags: str) -> tuple[Told, Scripted]:
    """The run of `path` against a server of this script, without retries."""
    with scripted(script) as server:
        told = cli(
            "run", path, "--model", "m", "--base-url", server.base_url, "--max-retries", "0", *flags
        )
    return told, server


def failures(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "o.failed.jsonl").read_text().splitlines()
    return sorted(map(json.loads, lines), key=lambda line: int(line["row"]))


def test_each_choice_has_its_finish_reason_and_its_place(cli: Cli, rows: Rows) -> None:
    def script(request: Asked) -> Any:
        tools = [{"id": "t", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
        third = said("", "tool_calls", index=2)
        third["message"]["tool_calls"] = tools
        return chat(said("B", index=1), third, said("A cu", "length", index=0))

    told, _ = asked(cli, script, rows({"prompt": "a", "n": 3}))
    (line,) = told.results
    assert line["output"] == ["A cu", "B", ""]
    assert line["finish_reason"] == ["length", "stop", "tool_calls"]
    assert [bool(calls) for calls in line["tool_calls"]] == [False, False, True]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize("reason", ["length", "content_filter", "empty"])
def test_one_unwanted_choice_of_two_fails_its_row(
    cli: Cli, rows: Rows, order: tuple[int, int], reason: str
) -> None:
    bad = said("", "stop") if reason == "empty" else said("cu", reason)

    def script(request: Asked) -> Any:
        both = {0: said("whole", index=0), 1: {**bad, "index": 1}}
        return chat(*(both[index] for index in order))

    told, _ = asked(cli, script, rows({"prompt": "a", "n": 2}), "--fail-on", reason)
    assert told.status == 1
    assert "choice 1: the answer" in told.err
    assert f"({reason})" in told.err


def numbered(*indices: int | None) -> list[dict[str, Any]]:
    return [
        {"embedding": [float(index or 0)]} | ({} if index is None else {"index": index})
        for index in indices
    ]


THREE_TEXTS = {"choices": [{"index": index, "text": "x"} for index in (0, 1, 3)]}


# By URL: what a row asks for, the answer, and what is said of it.
MISCOUNTED: dict[str, list[tuple[dict[str, Any], Any, str]]] = {
    "/v1/chat/completions": [
        ({"prompt": "a", "n": 3}, chat(said(), said(index=2)), "got 2: index 1 is missing"),
        ({"prompt": "a", "n": 2}, chat(said()), "asked for 2 choices, got 1"),
        ({"prompt": "a", "n": "2"}, chat(said()), "asked for 2 choices, got 1"),
        ({"prompt": "a"}, chat(said(), said()), "asked for 1 choice, got 2"),
        ({"prompt": "a", "n": 2}, chat(said(index=0), said(index=0)), "index 1 is missing"),
        ({"prompt": "a", "n": 2}, chat(said(index=1), said(index=2)), "index 0 is missing"),
    ],
    "/v1/embeddings": [
        ({"input": ["a", "b", "c"]}, {"data": numbered(0, 2)}, "got 2: index 1 is missing"),
        ({"input": ["a", "b"]}, {"data": numbered(0, 0)}, "index 1 is missing"),
        ({"input": ["a", "b"]}, {"data": numbered(None)}, "asked for 2 embeddings, got 1"),
        ({"input": "a"}, {"data": numbered(0, 1)}, "asked for 1 embedding, got 2"),
        ({"input": [[1, 2], [3]]}, {"data": numbered(0)}, "asked for 2 embeddings, got 1"),
        ({"input": ["a"]}, {"data": [{"index": 0, "embedding": []}]}, "index 0 is empty"),
    ],
    "/v1/completions": [
        ({"prompt": ["a", "b"], "n": 2}, THREE_TEXTS, "asked for 4 choices, got 3: index 2"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("url", MISCOUNTED)
def test_an_answer_has_as_many_parts_as_were_asked_for(
    cli: Cli, rows: Rows, tmp_path: Path, url: str
) -> None:
    cases = MISCOUNTED[url]
    answers = iter([answer for _, answer, _ in cases])
    given = rows(*(row for row, _, _ in cases))
    flags = ("--url", url, "-c", "1", "-o", "o.jsonl")
    told, _ = asked(cli, lambda _: next(answers), given, *flags)
    assert told.status == 1
    found = failures(tmp_path)
    assert len(found) == len(cases)
    for line, (_, _, what) in zip(found, cases, strict=True):
        assert what in line["error"]["message"]


def test_parts_come_back_in_the_order_they_were_asked_for(cli: Cli, rows: Rows) -> None:
    def script(request: Asked) -> Any:
        body = request.body
        if "input" in body:
            return {"data": [*reversed(numbered(0, 1, 2))]}
        texts = [f"{prompt}{copy}" for prompt in body["prompt"] for copy in "xy"]
        choices = [{"index": index, "text": text} for index, text in enumerate(texts)]
        return {"choices": choices[::-1]}

    told, _ = asked(cli, script, rows({"input": ["a", "b", "c"]}), "--url", "/v1/embeddings")
    assert told.outputs == [[[0.0], [1.0], [2.0]]]
    told, _ = asked(cli, script, rows({"prompt": ["a", "b"], "n": 2}), "--url", "/v1/completions")
    assert told.outputs == [["ax", "ay", "bx", "by"]]


@pytest.mark.parametrize("reason", CUT_OFF)
def test_a_choice_that_the_server_broke_off_is_a_failure(cli: Cli, rows: Rows, reason: str) -> None:
    def script(request: Asked) -> Any:
        return chat(said("whole"), said("half an ans", reason))

    told, _ = asked(cli, script, rows({"prompt": "a", "n": 2}))
    assert told.status == 1
    assert not told.results
    assert f"choice 1 broke off with finish_reason `{reason}`" in told.err
    # Wherever the answer is picked from.
    path = ("--output-path", "choices.0.message.content")
    told, _ = asked(cli, script, rows({"prompt": "a", "n": 2}), *path)
    assert told.status == 1
    assert not told.results


def test_an_error_in_a_choice_or_beside_the_choices_is_a_failure(cli: Cli, rows: Rows) -> None:
    def script(request: Asked) -> Any:
        error = {"code": 502, "message": "upstream died"}
        if "beside" in str(request.body):
            return chat(said("half an ans"), error=error)
        return chat(said("half an ans", error=error))

    told, _ = asked(cli, script, rows({"prompt": "inside"}, {"prompt": "beside"}))
    assert told.status == 1
    assert not told.results
    assert told.err.count("HTTP 502: ") >= 1
    assert "upstream died" in told.err
    assert "2 server_failed" in told.err


def minimax(code: int) -> dict[str, Any]:
    return {"base_resp": {"status_code": code, "status_msg": "no"}}


INSIDE: list[tuple[Any, str, int | None]] = [
    ({"error": {"message": "overloaded", "code": 503}}, "server_failed", 503),
    ({"error": {"message": "overloaded", "code": "503"}}, "server_failed", 503),
    ({"error": {"message": "slow", "code": 429}, "user_id": "u"}, "rate_limited", 429),
    ({"error": {"message": "slow", "type": "rate_limit_error"}}, "rate_limited", 429),
    ({"error": {"message": "too long", "code": 400}}, "rejected", 400),
    ({"error": {"message": "no", "type": "invalid_request_error"}}, "rejected", 400),
    ({"error": "no such model", "status": 404}, "rejected", 404),
    ([{"error": {"code": 503, "message": "busy"}}], "server_failed", 503),
    ({"error": {"message": "busy", "status": "UNAVAILABLE"}}, "server_failed", 503),
    ({"object": "error", "message": "too long", "code": 400}, "rejected", 400),
    ({"choices": [], "error": {"message": "busy", "code": 503}}, "server_failed", 503),
    ({"choices": None, "error": {"message": "busy", "code": 503}}, "server_failed", 503),
    ({"choices": None, **minimax(1002)}, "rate_limited", 429),
    # The filter of the output, and the quota of five hours.
    (minimax(1027), "rejected", 400),
    (minimax(2056), "rate_limited", 429),
    (minimax(2013), "rejected", 400),
    (minimax(1000), "server_failed", 500),
    ({"error": {"message": "boom"}}, "bad_reply", None),
    ({"error": "boom"}, "bad_reply", None),
]


@pytest.mark.parametrize("url", ["/v1/chat/completions", "/v1/embeddings", "/v1/ask"])
def test_an_error_with_http_200_is_judged_by_the_status_inside(
    cli: Cli, rows: Rows, tmp_path: Path, url: str
) -> None:
    # A plain endpoint may have choices of another kind.
    cases = [case for case in INSIDE if url != "/v1/ask" or "choices" not in case[0]]
    answers = iter([answer for answer, _, _ in cases])
    given = rows(*({"input": f"{index}"} for index in range(len(cases))))
    flags = ("--url", url, "-c", "1", "-o", "o.jsonl")
    told, _ = asked(cli, lambda _: next(answers), given, *flags)
    assert told.status == 1
    errors = [line["error"] for line in failures(tmp_path)]
    assert [(error["kind"], error["status"]) for error in errors] == [case[1:] for case in cases]


def test_an_unpaid_account_told_with_http_200_ends_the_run(cli: Cli, rows: Rows) -> None:
    answer = {"error": {"message": "add credits", "code": 402}}
    told, server = asked(cli, lambda _: answer, rows(*[{"prompt": "a"}] * 5), "-c", "1")
    assert told.status == 2
    assert "the account has no credit left" in told.err
    assert len(server.asked) == 1


def test_an_overloaded_upstream_told_with_http_200_is_tried_again(cli: Cli, rows: Rows) -> None:
    answers: list[Any] = [
        Answer(200, {"error": {"message": "in use", "code": 402}}, {"Retry-After": "0.01"}),
        Answer(200, {"error": {"message": "busy", "code": 429}}, {"Retry-After": "0.01"}),
        {"error": {"message": "overloaded", "code": 503}},
        chat(said("half", "error")),
        chat(said("whole")),
    ]
    with scripted(lambda _: answers.pop(0)) as server:
        told = cli("run", rows({"prompt": "a"}), "--model", "m", "--base-url", server.base_url)
    assert told.outputs == ["whole"]
    assert "2 rate_limited" in told.err
    assert "2 server_failed" in told.err


@pytest.mark.parametrize("status", ["queued", "in_progress", "cancelled", "failed"])
def test_a_response_that_is_not_whole_is_a_failure(cli: Cli, rows: Rows, status: str) -> None:
    text = {"type": "output_text", "text": "half"}
    output = [{"type": "message", "content": [text]}]
    answer = {"id": "r", "status": status, "error": None, "output": output}
    told, _ = asked(cli, lambda _: answer, rows({"input": "a"}), "--url", "/v1/responses")
    assert told.status == 1
    assert not told.results
    assert (status if status != "failed" else "the response failed") in told.err


@pytest.mark.parametrize(
    ("find", "replacement", "output", "reason"),
    [
        (b"{", b"\xef\xbb\xbf{", "yes", "stop"),
        (b'"id"', b'"x": [NaN, -Infinity, 1e999], "id"', "yes", "stop"),
        (b'"yes"', rb'"y\ud83des \ude00\ud83d\ude00"', "y�es �😀", "stop"),
        (b'"id"', rb'"x": "\ud83d", "id"', "yes", "stop"),
        (b'"id"', b'"x": 1e999, "id"', "yes", "stop"),
        (b'"stop"', b"0", "yes", "0"),
        (b'"id"', b'"usage": {"prompt_tokens": 3, "x": NaN}, "id"', "yes", "stop"),
    ],
)
def test_answers_that_are_loosely_written_are_read(
    cli: Cli, rows: Rows, tmp_path: Path, find: bytes, replacement: bytes, output: str, reason: str
) -> None:
    body = json.dumps(chat(said("yes")), indent=1).encode().replace(find, replacement, 1)
    path = rows({"prompt": "a"})
    told, _ = asked(cli, lambda _: body, path, "-o", "o.jsonl", "--raw")
    assert told.status == 0, told.err
    (line,) = map(json.loads, (tmp_path / "o.jsonl").read_text().splitlines())
    assert (line["output"], line["finish_reason"]) == (output, reason)
    assert line["response"]["model"] == "m"
    assert cli("verify", "o.jsonl").status == 0
    assert "NaN" not in (tmp_path / "o.jsonl").read_text()


@pytest.mark.parametrize(
    ("row", "flags"),
    [
        ({"prompt": "a", "body": {"stream": True}}, ()),
        ({"prompt": "a", "stream": True}, ()),
        ({"messages": [{"role": "user", "content": "a"}], "stream": True}, ()),
        ({"url": "/v1/chat/completions", "body": {"messages": [], "stream": "true"}}, ()),
        ({"prompt": "a"}, ("--param", "stream=true")),
        ({"text": "a"}, ("--body", '{"prompt": {{ text | json }}, "stream": true}')),
        ({"input": "a", "body": {"background": True}}, ("--url", "/v1/responses")),
    ],
)
def test_a_row_whose_answer_would_not_come_whole_is_refused_at_once(
    cli: Cli, rows: Rows, row: dict[str, Any], flags: tuple[str, ...]
) -> None:
    for via in ((), ("--via", "batch", "-o", "o.jsonl")):
        told, server = asked(cli, lambda _: chat(said()), rows(row), *flags, *via)
        assert told.status == 1
        assert "the request asks for a" in told.err
        assert "remove `" in told.err
        assert not [request for request in server.asked if "batches" not in request.path]


def test_columns_of_these_names_are_the_users_own(cli: Cli, rows: Rows) -> None:
    given = rows(
        {"prompt": "a", "stream": False},
        {"prompt": "a", "stream": "river", "background": "a farm"},
    )
    told, _ = asked(cli, lambda _: chat(said()), given)
    assert told.outputs == ["yes", "yes"]


@pytest.mark.parametrize("field", ["n", "best_of"])
@pytest.mark.parametrize("four", ["4", 4.0])
def test_a_budget_counts_copies_as_lenient_servers_do(
    cli: Cli, rows: Rows, field: str, four: Any
) -> None:
    tokens = 405

    def script(request: Asked) -> Any:
        copies = 4 if field == "n" else 1
        usage = {"prompt_tokens": 5, "completion_tokens": tokens - 5, "total_tokens": tokens}
        return chat(*[said("x", "length")] * copies, usage=usage)

    given = rows(*[{"prompt": f"row {n}", field: four} for n in range(20)])
    flags = ("--max-tokens", "100", "--budget-tokens", "3000", "-c", "8", "-o", "o.jsonl")
    told, server = asked(cli, script, given, *flags)
    assert "the budget does not allow the next call" in told.err
    assert 0 < tokens * len(server.asked) <= 3000
