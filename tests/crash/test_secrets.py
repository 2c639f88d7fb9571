"""A planted key is in no file that a run leaves and in nothing that it prints."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from crash.killing import PROMPT, redline, sealed_lines, started, write_rows

KEY = "sk-planted-4f1d0c9be27a86"
ANSWER = {
    "model": "m",
    "choices": [{"finish_reason": "stop", "message": {"role": "assistant", "content": "hello"}}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 1},
}


class Quoting(BaseHTTPRequestHandler):
    """Answers, refuses and fails in turn, and quotes the key that it was sent when it does not."""

    protocol_version = "HTTP/1.1"
    # An answer is two writes; the second would wait for the client to acknowledge the first.
    disable_nagle_algorithm = True
    turn = itertools.count()
    keys: list[str] = []  # noqa: RUF012 - one list for all requests is what is wanted
    refuses_all = False

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        key = self.headers.get("Authorization", self.headers.get("X-Api-Key", ""))
        self.keys.append(key)
        status = 401 if self.refuses_all else (200, 200, 400, 500)[next(self.turn) % 4]
        shown: Any = ANSWER
        if status != 200:
            shown = {"error": {"message": f"status {status} for the key {key}", "type": "x"}}
        data = json.dumps(shown).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@pytest.fixture
def quoting() -> Iterator[str]:
    Quoting.turn = itertools.count()
    Quoting.keys = []
    Quoting.refuses_all = False
    server = ThreadingHTTPServer(("127.0.0.1", 0), Quoting)
    thread = Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def assert_hidden(folder: Path, *printed: str) -> None:
    """The key is nowhere below `folder`, but for the .env that the user wrote, nor in a text."""
    searched = 0
    for path in folder.rglob("*"):
        if path.is_file() and path.name not in (".env", "redline.toml"):
            searched += 1
            assert KEY.encode() not in path.read_bytes(), f"the key is in {path.name}"
    assert searched >= 3, "there was nothing to search"
    for text in printed:
        assert KEY not in text, text


def flags(folder: Path, base_url: str, *more: str) -> list[str]:
    write_rows(folder / "rows.jsonl", 24)
    wanted = ["run", "rows.jsonl", "--prompt", PROMPT, "--model", "m", "--base-url", base_url]
    return [*wanted, "-o", "labels.jsonl", "-c", "2", "--max-retries", "1", *more]


PLACES = {
    "environment": ({"OPENAI_API_KEY": KEY}, [], ""),
    "named variable": ({"MY_KEY": KEY}, ["--api-key-env", "MY_KEY"], ""),
    ".env": ({}, [], f"OPENAI_API_KEY={KEY}\n"),
    "header": ({}, ["--header", f"X-Api-Key: {KEY}"], ""),
    "authorization": ({}, ["--header", f"Authorization: Bearer {KEY}"], ""),
}


@pytest.mark.parametrize("log", ["text", "json"])
@pytest.mark.parametrize("place", PLACES)
def test_a_key_is_sent_and_kept_nowhere(tmp_path: Path, quoting: str, place: str, log: str) -> None:
    environ, more, env_file = PLACES[place]
    if env_file:
        (tmp_path / ".env").write_text(env_file)
    given = flags(tmp_path, quoting, "--raw", "--keep-input", "--log", log, *more)
    reply = redline(*given, cwd=tmp_path, environ=environ)
    assert reply.returncode == 1, reply.stderr
    assert any(KEY in key for key in Quoting.keys), "the key was not sent, so it proves nothing"
    assert len(sealed_lines(tmp_path / "labels.failed.jsonl")) > 0
    assert_hidden(tmp_path, reply.stdout, reply.stderr)
    verdict = redline("verify", "labels.jsonl", cwd=tmp_path, environ=environ)
    assert_hidden(tmp_path, verdict.stdout, verdict.stderr)


@pytest.mark.parametrize("place", PLACES)
def test_a_refused_key_is_not_quoted_nor_in_the_command_that_continues(
    tmp_path: Path, quoting: str, place: str
) -> None:
    environ, more, env_file = PLACES[place]
    if env_file:
        (tmp_path / ".env").write_text(env_file)
    Quoting.refuses_all = True
    reply = redline(*flags(tmp_path, quoting, *more), cwd=tmp_path, environ=environ)
    assert reply.returncode == 2, reply.stderr
    assert "continue with: redline run" in reply.stderr
    assert any(KEY in key for key in Quoting.keys)
    assert_hidden(tmp_path, reply.stdout, reply.stderr)


def test_a_plan_and_a_killed_run_show_no_key(tmp_path: Path, quoting: str) -> None:
    environ = {"OPENAI_API_KEY": KEY}
    given = flags(tmp_path, quoting)
    planned = redline(*given, "--dry-run", cwd=tmp_path, environ=environ)
    assert planned.returncode == 0, planned.stderr
    with started([*given, "--rps", "20"], cwd=tmp_path, environ=environ) as process:
        while not (tmp_path / "labels.jsonl").exists():
            assert process.poll() is None
        process.kill()
        out, err = process.communicate()
    assert_hidden(tmp_path, planned.stdout, planned.stderr, out, err)
