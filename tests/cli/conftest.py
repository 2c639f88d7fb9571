"""The command line, run inside this process, and a server that answers oddly.

Every summary and every plan that any of these tests prints is checked to add up.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

import pytest

from redline.cli import main
from support.summaries import from_summary, sums


class Told(NamedTuple):
    """What a command came to."""

    status: int
    out: str
    err: str

    @property
    def results(self) -> list[dict[str, Any]]:
        """The lines on stdout, in input order."""
        lines = [json.loads(line) for line in self.out.splitlines()]
        return sorted(lines, key=lambda line: line["row"])

    @property
    def outputs(self) -> list[Any]:
        return [line["output"] for line in self.results]

    @property
    def summary(self) -> str:
        """Stderr from the summary on: a slow run prints progress before it."""
        return from_summary(self.err)


Cli = Callable[..., Told]


@pytest.fixture(autouse=True)
def plain_surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty folder, a fixed width, and no keys or proxies of whoever runs the tests."""
    monkeypatch.chdir(tmp_path)
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "HTTP_PROXY", "HTTPS_PROXY", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Cli:
    """`cli("run", "in.jsonl", ..., stdin="...")`."""

    def call(*argv: str, stdin: str = "") -> Told:
        source = tmp_path / ".stdin"
        source.write_text(stdin, "utf-8")
        with source.open() as opened:
            monkeypatch.setattr(sys, "stdin", opened)
            with pytest.raises(SystemExit) as ended:
                main(list(argv))
        code = ended.value.code
        assert isinstance(code, int)
        out, err = capfd.readouterr()
        for whole, parts in sums(out + err):
            assert whole == parts, f"the numbers do not add up:\n{out}{err}"
        return Told(code, out, err)

    return call


@pytest.fixture
def rows(tmp_path: Path) -> Callable[..., str]:
    """`rows({"text": "a"}, ...)` writes in.jsonl and names it."""

    def write(*rows: object, name: str = "in.jsonl") -> str:
        text = "".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows)
        (tmp_path / name).write_text(text, "utf-8")
        return name

    return write


_ERRORS = {
    "refused": (401, {"error": {"message": "Incorrect API key", "code": "invalid_api_key"}}),
    "unpaid": (402, {"error": {"message": "no credit"}}),
    "quota": (429, {"error": {"message": "quota exceeded", "code": "insufficient_quota"}}),
    "missing": (404, {"error": {"message": "no such model"}}),
    "broken": (500, {"error": {"message": "boom"}}),
}


class Odd(ThreadingHTTPServer):
    """Answers by the first part of the path; keeps what it was asked.

    /html, /empty, /cut, /filtered, and the names of _ERRORS. GET /chat answers a JSON string, POST
    /ask an object that repeats the body, anything else a chat completion.
    """

    daemon_threads = True
    # A full queue drops connections, which come again after a second.
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: list[tuple[str, str, Any]] = []
        self.headers: list[dict[str, str]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # An answer is two writes; the second would wait for the client to acknowledge the first.
    disable_nagle_algorithm = True
    server: Odd

    def log_message(self, *args: object) -> None:
        """Nothing: stderr is what the tests look at."""

    def do_GET(self) -> None:
        self._answer(None)

    def do_POST(self) -> None:
        size = int(self.headers.get("Content-Length", "0"))
        self._answer(json.loads(self.rfile.read(size)))

    def _answer(self, body: Any) -> None:
        self.server.asked.append((self.command, self.path, body))
        self.server.headers.append({name.lower(): text for name, text in self.headers.items()})
        parts = urlsplit(self.path)
        kind = parts.path.split("/")[1]
        if kind == "html":
            self._send(200, b"<html>welcome</html>", "text/html")
        elif kind in _ERRORS:
            status, error = _ERRORS[kind]
            self._send(status, json.dumps(error).encode())
        elif kind == "chat" and self.command == "GET":
            asked = parse_qs(parts.query).get("q", ["nothing"])[0]
            self._send(200, json.dumps(f"you asked {asked}").encode())
        elif kind == "ask":
            self._send(200, json.dumps({"result": {"items": [{"text": body}]}}).encode())
        else:
            message = {"role": "assistant", "content": "" if kind == "empty" else "yes"}
            reason = {"cut": "length", "filtered": "content_filter"}.get(kind, "stop")
            choice = {"index": 0, "message": message, "finish_reason": reason}
            self._send(200, json.dumps({"choices": [choice]}).encode())

    def _send(self, status: int, body: bytes, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def odd() -> Iterator[Odd]:
    with Odd() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()
