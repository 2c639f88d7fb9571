"""Servers that send or close what nobody asked for: each row gets its own answer, at no cost."""

from __future__ import annotations

import gzip
import json
import re
import select
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.late_server import After, Late, chat, late

Cli = Callable[..., Any]
Rows = Callable[..., str]

ROWS = 40
GOODBYE = b"HTTP/1.1 %s Gone\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


def asked(connected: socket.socket) -> None:
    """Returns once the next request is there, so that what follows comes too late for a check."""
    select.select([connected], [], [], 2)


def again(server: Late, connected: socket.socket, text: str) -> None:
    asked(connected)
    connected.sendall(chat(text))


def at_once(server: Late, connected: socket.socket, text: str) -> None:
    connected.sendall(chat(text))


def goodbye(status: bytes) -> After:
    def after(server: Late, connected: socket.socket, text: str) -> None:
        asked(connected)
        connected.sendall(GOODBYE % status)
        connected.shutdown(socket.SHUT_WR)

    return after


def junk(server: Late, connected: socket.socket, text: str) -> None:
    asked(connected)
    connected.sendall(b"junk")


def close(server: Late, connected: socket.socket, text: str) -> bool:
    return True


AFTER: dict[str, After] = {
    "the answer again": again,
    "the answer again, at once": at_once,
    "400": goodbye(b"400"),
    "401": goodbye(b"401"),
    "408": goodbye(b"408"),
    "junk": junk,
    "a close": close,
}


@pytest.mark.slow
@pytest.mark.parametrize("proxied", [False, True], ids=["direct", "proxy"])
@pytest.mark.parametrize("every", [1, 5])
@pytest.mark.parametrize("name", AFTER)
def test_what_nobody_asked_for_reaches_no_row(
    cli: Cli, rows: Rows, name: str, every: int, proxied: bool
) -> None:
    def after(server: Late, connected: socket.socket, text: str) -> bool | None:
        return int(text) % every == every - 1 and AFTER[name](server, connected, text)

    file = rows(*({"prompt": str(number)} for number in range(ROWS)))
    with late(after) as server:
        way = ["--base-url", server.url]
        if proxied:
            way = ["--base-url", "http://llm.invalid/v1", "--proxy", server.url[:-3]]
        told = cli("run", file, "--model", "m", *way, "-c", "2", "--max-retries", "0")
    assert told.status == 0, told.err
    assert told.outputs == [f"echo {number}" for number in range(ROWS)]
    assert [line["attempts"] for line in told.results] == [1] * ROWS
    assert ", 0 retries, " in told.err
    # What may have been processed twice is shown.
    twice = len(server.seen) - ROWS
    shown = re.search(r"^(\d+) requests? sent twice", told.err, re.MULTILINE)
    assert twice == (0 if shown is None else int(shown[1]))
    if name == "the answer again, at once":
        return
    assert shown is not None


def test_requests_that_a_server_drops_are_few_and_no_retries(
    cli: Cli, rows: Rows, tmp_path: Path
) -> None:
    """A server that closes each connection behind its answer, and says so to nobody."""
    file = rows(*({"prompt": str(number)} for number in range(400)))
    with late(close) as server:
        flags = ["--model", "m", "--base-url", server.url, "-c", "8", "--log", "json"]
        told = cli("run", file, *flags, "-o", "out.jsonl")
    assert told.status == 0, told.err
    summary = json.loads(told.err.splitlines()[-1])
    assert (summary["succeeded"], summary["retries"]) == (400, 0)
    assert summary["attempts"] == len(server.seen) == 400 + summary["repeated"]
    # At first each connection is used again; then a few are, to see.
    assert 1 <= summary["repeated"] < 60


def test_a_budget_counts_what_was_sent_twice(cli: Cli, rows: Rows) -> None:
    def after(server: Late, connected: socket.socket, text: str) -> bool:
        return text == "0"

    file = rows({"prompt": "0"}, {"prompt": "1"})
    flags = ["--model", "m", "--budget-tokens", "1000", "--max-tokens", "100", "-c", "1"]
    with late(after) as server:
        told = cli("run", file, *flags, "--base-url", server.url, "--log", "json", "-o", "o.jsonl")
        assert server.seen == ["0", "1", "1"]
    assert told.status == 0, told.err
    summary = json.loads(told.err.splitlines()[-1])
    assert summary["repeated"] == 1
    # No answer has a usage, so each request counts at its most.
    assert summary["spent_tokens"] > 300


def test_a_request_that_the_budget_does_not_pay_twice_is_left(cli: Cli, rows: Rows) -> None:
    def after(server: Late, connected: socket.socket, text: str) -> bool:
        return text == "0"

    file = rows({"prompt": "0"}, {"prompt": "1"})
    flags = ["--model", "m", "--budget-tokens", "600", "--max-tokens", "100", "-c", "1"]
    with late(after) as server:
        told = cli("run", file, *flags, "--base-url", server.url, "-o", "o.jsonl")
        assert server.seen == ["0", "1"]
    assert told.status == 2
    assert "1 succeeded" in told.err
    assert "budget" in told.err


@pytest.mark.parametrize("body", ["{}", "a" * 100_000])
def test_equal_answers_to_different_rows_are_not_doubted(
    cli: Cli, rows: Rows, odd: Any, body: str
) -> None:
    file = rows(*({"prompt": f"{body}{number}"} for number in range(60)))
    for most, concurrency in ((61, "1"), (64, "4")):
        odd.asked.clear()
        flags = ["--model", "m", "--base-url", f"{odd.url}/v1", "-c", concurrency]
        told = cli("run", file, *flags)
        assert told.outputs == ["yes"] * 60
        assert len(odd.asked) <= most


def test_answers_with_one_id_on_new_connections_are_not_doubted_on_kept_ones(
    cli: Cli, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = threading.Barrier(4)

    def same(text: str) -> bytes:
        if int(text) < together.parties:
            together.wait(10)
        else:
            time.sleep(0.02)
        return chat("same")

    monkeypatch.setattr("support.late_server.chat", same)
    file = rows(*({"prompt": str(number)} for number in range(ROWS)))
    with late(lambda *_: None) as server:
        told = cli("run", file, "--model", "m", "--base-url", server.url, "-c", "4")
    assert told.outputs == ["echo same"] * ROWS
    assert len(server.seen) == ROWS


@pytest.mark.parametrize("proxied", [False, True], ids=["direct", "proxy"])
def test_the_user_reads_why_an_answer_could_not_be_read(
    cli: Cli, rows: Rows, monkeypatch: pytest.MonkeyPatch, proxied: bool
) -> None:
    cut = gzip.compress(chat("x"))[:-6]
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(cut)
    monkeypatch.setattr("support.late_server.chat", lambda _: head + cut)
    with late(lambda *_: None) as server:
        way = ["--base-url", server.url]
        if proxied:
            way = ["--base-url", "http://llm.invalid/v1", "--proxy", server.url[:-3]]
        told = cli("run", rows({"prompt": "x"}), "--model", "m", *way, "--max-retries", "0")
    assert told.status == 1
    assert "the compressed response is truncated" in told.err
