"""A server on loopback that answers as a function says."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple


class Asked(NamedTuple):
    """One request. number: from 1. headers: by lower-case name. body: the JSON, None for none."""

    number: int
    method: str
    path: str
    headers: dict[str, str]
    body: Any


class Answer(NamedTuple):
    """One answer. body: bytes as they are, anything else as JSON."""

    status: int = 200
    body: Any = None
    headers: dict[str, str] = {}  # noqa: RUF012 - never changed


def completion(text: str = "yes", **fields: Any) -> dict[str, Any]:
    """A chat completion that says `text`."""
    choice = {"index": 0, "message": {"role": "assistant", "content": text}}
    usage = {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}
    return {"choices": [{**choice, "finish_reason": "stop"}], "usage": usage, **fields}


class Scripted(ThreadingHTTPServer):
    """Keeps what it was asked in `asked`. `url` is its address without a path."""

    daemon_threads = True
    # A full queue drops connections, which come again after a second.
    request_queue_size = 128

    def __init__(self, answer: Callable[[Asked], Answer]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer = answer
        self.asked: list[Asked] = []
        self.turn = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # An answer is two writes; the second would wait for the client to acknowledge the first.
    disable_nagle_algorithm = True
    server: Scripted

    def log_message(self, *args: object) -> None:
        """Nothing: stderr is what the tests look at."""

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def _answer(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        headers = {name.lower(): text for name, text in self.headers.items()}
        try:
            body = json.loads(raw) if raw else None
        except ValueError:
            body = raw
        with self.server.turn:
            number = len(self.server.asked) + 1
            asked = Asked(number, self.command, self.path, headers, body)
            self.server.asked.append(asked)
        answer = self.server.answer(asked)
        sent = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
        self.send_response(answer.status)
        for name, text in {"Content-Type": "application/json", **answer.headers}.items():
            self.send_header(name, text)
        self.send_header("Content-Length", str(len(sent)))
        self.end_headers()
        self.wfile.write(sent)


@contextmanager
def scripted(answer: Callable[[Asked], Answer]) -> Iterator[Scripted]:
    """The server while it runs."""
    with Scripted(answer) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
