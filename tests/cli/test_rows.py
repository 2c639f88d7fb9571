"""How rows become requests, as the endpoint sees them, and how answers come back."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]
Rows = Callable[..., str]

SIM = ("--endpoint", "sim")


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def system(text: str) -> dict[str, str]:
    return {"role": "system", "content": text}


def asked(cli: Cli, odd: Any, name: str, *flags: str) -> list[tuple[str, str, Any]]:
    """What the server is asked by `redline run`, one row after the other."""
    cli("run", name, "--base-url", f"{odd.url}/v1", "-c", "1", "--max-retries", "0", *flags)
    return list(odd.asked)


def test_openai_batch_rows_go_as_they_are(cli: Cli, rows: Rows, odd: Any) -> None:
    body = {"model": "small", "messages": [user("hi")]}
    name = rows({"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body})
    assert asked(cli, odd, name, "--model", "other", "--param", "seed=1") == [
        ("POST", "/v1/chat/completions", {"model": "small", "seed": 1, "messages": [user("hi")]})
    ]


def test_a_base_url_without_v1_takes_the_same_rows(cli: Cli, rows: Rows, odd: Any) -> None:
    name = rows({"custom_id": "a", "url": "/v1/embeddings", "body": {"input": "x"}})
    cli("run", name, "--base-url", odd.url, "--max-retries", "0")
    assert odd.asked[0][:2] == ("POST", "/embeddings")


def test_a_batch_row_may_be_a_get(cli: Cli, rows: Rows, odd: Any) -> None:
    name = rows({"custom_id": "a", "method": "GET", "url": "/chat?q=tea"})
    told = cli("run", name, "--base-url", f"{odd.url}/v1")
    assert odd.asked == [("GET", "/chat?q=tea", None)]
    assert told.outputs == ["you asked tea"]


def test_messages_with_parameters_and_columns_of_ones_own(cli: Cli, rows: Rows, odd: Any) -> None:
    name = rows({"messages": [user("hi")], "temperature": 0.5, "team": "search"})
    assert asked(cli, odd, name, "--model", "m", "--temperature", "0.1", "--max-tokens", "9") == [
        (
            "POST",
            "/v1/chat/completions",
            {"model": "m", "temperature": 0.5, "max_tokens": 9, "messages": [user("hi")]},
        )
    ]


def test_a_system_message_is_for_rows_without_one(cli: Cli, rows: Rows, odd: Any) -> None:
    own = [system("mine"), user("b")]
    batch = {"url": "/v1/chat/completions", "body": {"messages": [user("c")]}}
    name = rows({"messages": [user("a")], "lang": "en"}, {"messages": own}, {**batch, "lang": "fr"})
    found = asked(cli, odd, name, "--system", "in {{ lang | default('any') }}")
    assert [body["messages"] for _, _, body in found] == [
        [system("in en"), user("a")],
        own,
        [system("in fr"), user("c")],
    ]


def test_prompt_rows_for_chat_and_for_completions(cli: Cli, rows: Rows, odd: Any) -> None:
    name = rows({"prompt": "hi"})
    asked(cli, odd, name)
    asked(cli, odd, name, "--url", "/v1/completions")
    assert [(path, body) for _, path, body in odd.asked] == [
        ("/v1/chat/completions", {"messages": [user("hi")]}),
        ("/v1/completions", {"prompt": "hi"}),
    ]


def test_input_rows_for_embeddings_and_responses(cli: Cli, rows: Rows, odd: Any) -> None:
    name = rows({"input": "hi"})
    asked(cli, odd, name, "--url", "/v1/embeddings")
    asked(cli, odd, name, "--url", "/v1/responses", "--system", "be brief")
    assert [(path, body) for _, path, body in odd.asked] == [
        ("/v1/embeddings", {"input": "hi"}),
        ("/v1/responses", {"input": "hi", "instructions": "be brief"}),
    ]


def test_the_responses_api_gets_max_tokens_by_its_name(cli: Cli, rows: Rows, odd: Any) -> None:
    flags = ("--url", "/v1/responses", "--max-tokens", "9")
    ((_, _, body),) = asked(cli, odd, rows({"input": "x"}), "--model", "m", *flags)
    assert body == {"model": "m", "input": "x", "max_output_tokens": 9}


def test_embeddings_and_responses_are_read(cli: Cli, rows: Rows) -> None:
    name = rows({"input": "hi"})
    (vector,) = cli("run", name, *SIM, "--url", "/v1/embeddings").outputs
    assert isinstance(vector[0], float)
    assert cli("run", name, *SIM, "--url", "/v1/responses").outputs == ["You said: hi"]


def test_any_columns_with_prompt_and_system(cli: Cli, rows: Rows, odd: Any) -> None:
    name = rows({"q": "tea or coffee?", "n": 2, "temperature": 1})
    found = asked(cli, odd, name, "--prompt", "{{ n }} words: {{ q }}", "--system", "S {{ n }}")
    # With --prompt a column is the user's own data, whatever its name.
    assert found[0][2] == {"messages": [system("S 2"), user("2 words: tea or coffee?")]}


def test_a_prompt_from_a_file_keeps_its_lines(cli: Cli, rows: Rows, odd: Any) -> None:
    Path("prompt.txt").write_text("Classify:\n{{ text }}\n", "utf-8")
    found = asked(cli, odd, rows({"text": "caf\u00e9"}), "--prompt", "@prompt.txt")
    assert found[0][2]["messages"] == [user("Classify:\ncaf\u00e9\n")]


def test_csv_columns(cli: Cli, odd: Any) -> None:
    with Path("in.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["text", "label"], ['he said "no"\nand left', "angry"]])
    found = asked(cli, odd, "in.csv", "--prompt", "{{ label }}: {{ text }}")
    assert found[0][2]["messages"] == [user('angry: he said "no"\nand left')]


def test_a_whole_body_template(cli: Cli, rows: Rows, odd: Any) -> None:
    name = rows({"text": 'a "quoted" one', "tags": ["x", "y"]})
    body = '{"q": {{ text | json }}, "tags": {{ tags | json }}}'
    flags = ("--url", "/ask", "--body", body, "--param", "k=3", "--param", "why=because")
    assert asked(cli, odd, name, *flags) == [
        ("POST", "/ask", {"k": 3, "why": "because", "q": 'a "quoted" one', "tags": ["x", "y"]})
    ]


def test_a_body_template_that_makes_no_json_fails_its_row(cli: Cli, rows: Rows) -> None:
    told = cli("run", rows({"text": "a b"}), *SIM, "--url", "/ask", "--body", '{"q": {{ text }}}')
    assert told.status == 1
    assert told.err.startswith("failed: the body template does not produce JSON: ")
    assert "write values with the json filter, for example {{ text | json }}" in told.err


def test_the_row_itself_is_the_body_of_a_plain_endpoint(cli: Cli, rows: Rows, odd: Any) -> None:
    name = rows({"custom_id": "a", "text": "hi"})
    told = cli(
        "run", name, "--base-url", odd.url, "--url", "/ask",
        "--output-path", "result.items.0.text",
    )  # fmt: skip
    assert odd.asked == [("POST", "/ask", {"text": "hi"})]
    assert told.outputs == [{"text": "hi"}]


def test_an_output_path_that_finds_nothing_fails_the_row(cli: Cli, rows: Rows, odd: Any) -> None:
    told = cli(
        "run", rows({"text": "hi"}), "--base-url", odd.url, "--url", "/ask",
        "--output-path", "result.nope",
    )  # fmt: skip
    assert told.status == 1
    assert "--output-path result.nope finds no `nope`" in told.err
    assert "check --output-path" in told.err
    # Another request would get another answer of the same form.
    assert len(odd.asked) == 1


def test_a_get_of_an_endpoint_that_answers_a_json_string(cli: Cli, rows: Rows, odd: Any) -> None:
    name = rows({"text": "tea & cake"}, {"text": "50 %"})
    get = ("run", name, "--base-url", odd.url, "--method", "get", "--url")
    assert cli(*get, "/chat").outputs == ["you asked nothing"] * 2
    told = cli(*get, "/chat?q={{ text | urlencode }}")
    assert told.outputs == ["you asked tea & cake", "you asked 50 %"]
    assert sorted(path for _, path, body in odd.asked if body is None)[2:] == [
        "/chat?q=50%20%25",
        "/chat?q=tea%20%26%20cake",
    ]


def test_a_template_may_choose_the_api(cli: Cli, rows: Rows, odd: Any) -> None:
    name = rows({"api": "completions", "t": "a"}, {"api": "embeddings", "t": "b"})
    found = asked(cli, odd, name, "--url", "/v1/{{ api }}", "--prompt", "{{ t }}")
    assert [(path, body) for _, path, body in found] == [
        ("/v1/completions", {"prompt": "a"}),
        ("/v1/embeddings", {"input": "b"}),
    ]


def test_headers_are_sent(cli: Cli, rows: Rows, odd: Any) -> None:
    flags = ("--header", "X-Team: search", "--header", "X-Trace:a:b")
    asked(cli, odd, rows({"prompt": "a"}), *flags)
    assert odd.headers[0]["x-team"] == "search"
    assert odd.headers[0]["x-trace"] == "a:b"


def test_rows_from_stdin_and_results_to_stdout(cli: Cli) -> None:
    told = cli("run", "-", *SIM, stdin='{"prompt": "a"}\n{"prompt": "b"}\n')
    assert (told.status, told.outputs) == (0, ["You said: a", "You said: b"])


def test_rows_from_stdin_can_be_continued(cli: Cli) -> None:
    rows = '{"prompt": "a"}\n{"prompt": "b"}\n'
    command = ("run", "-", *SIM, "-o", "out.jsonl")
    assert cli(*command, "--limit", "1", stdin=rows).summary.startswith("1 row = 1 succeeded")
    told = cli(*command, stdin=rows)
    assert told.summary.startswith(
        "1 row = 1 succeeded + 0 failed + 0 unfinished; 1 was done before\n"
    )


def test_batch_lines_raw_replies_and_inputs(cli: Cli, rows: Rows) -> None:
    name = rows({"custom_id": "a", "prompt": "hi"})
    (line,) = cli("run", name, *SIM, "--format", "batch", "--keep-input").results
    assert line["custom_id"] == "a"
    assert line["response"]["status_code"] == 200
    assert line["response"]["body"]["choices"][0]["message"]["content"] == "You said: hi"
    assert line["error"] is None
    assert line["input"] == {"custom_id": "a", "prompt": "hi"}
    (line,) = cli("run", name, *SIM, "--raw").results
    assert line["response"]["object"] == "chat.completion"
    assert "input" not in line


def test_an_ordered_file(cli: Cli, rows: Rows) -> None:
    name = rows(*({"prompt": str(number)} for number in range(300)))
    assert cli("run", name, *SIM, "-o", "out.jsonl", "--ordered").status == 0
    lines = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    assert [line["row"] for line in lines] == list(range(1, 301))


def test_answers_may_be_made_failures(cli: Cli, rows: Rows) -> None:
    name = rows({"prompt": "a b c d e f g", "max_tokens": 1})
    assert cli("run", name, *SIM).results[0]["finish_reason"] == "length"
    told = cli("run", name, *SIM, "--fail-on", "empty,length")
    assert told.status == 1
    assert told.err.startswith("failed: the answer was cut at the token limit (length)")


@pytest.mark.parametrize("text", ["http://evil.example/x", "//evil.example/x"])
def test_a_row_cannot_send_the_key_elsewhere(cli: Cli, rows: Rows, text: str) -> None:
    told = cli("run", rows({"url": text, "body": {}}), *SIM)
    assert told.status == 1
    assert f"not a path: {text}" in told.err
