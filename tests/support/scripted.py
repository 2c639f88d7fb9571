"""A real server on loopback, in a thread, whose answers a function of the test makes."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import Any, NamedTuple


class Asked(NamedTuple):
    """One request.

    number: from 1. headers: by lower-case name. body: the JSON, bytes if it is none, None if empty.
    """

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


# What answers a request; anything but an Answer is the JSON or the bytes of one with status 200.
Script = Callable[[Asked], Any]
# The text of a model's answer, or a status and the JSON of an error.
Text = str | tuple[int, dict[str, Any]]
USAGE = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
_IDS = count()


def said(text: Any = "yes", finish_reason: Any = "stop", **fields: Any) -> dict[str, Any]:
    """One choice of a chat completion."""
    message = {"role": "assistant", "content": text}
    return {"message": message, "finish_reason": finish_reason, **fields}


def chat(*choices: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A chat completion of these choices, which are numbered unless they are already."""
    numbered = [{"index": index, **choice} for index, choice in enumerate(choices)]
    # No two answers are equal, as a server's are not: equal ones are taken for copies.
    return {"id": f"c-{next(_IDS)}", "model": "m", "choices": numbered, **fields}


def completion(text: str = "yes", **fields: Any) -> dict[str, Any]:
    """A chat completion that says `text`; equal to all others that do."""
    usage = {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}
    return {"choices": [{"index": 0, **said(text)}], "usage": usage, **fields}


def model(say: Callable[[Any], Text]) -> Script:
    """The script of a chat model that is a function of the request's body."""

    def answer(request: Asked) -> Answer:
        text = say(request.body)
        if isinstance(text, tuple):
            return Answer(*text)
        return Answer(200, chat(said(text), usage=USAGE))

    return answer


class Scripted(ThreadingHTTPServer):
    """asked: each request, in the order in which they came. url: without a path."""

    daemon_threads = True
    # A full queue drops connections, which come again after a second.
    request_queue_size = 128

    def __init__(self, script: Script) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.script = script
        self.asked: list[Asked] = []
        self.turn = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    @property
    def base_url(self) -> str:
        return f"{self.url}/v1"

    @property
    def bodies(self) -> list[Any]:
        """That of each request."""
        return [asked.body for asked in self.asked]


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

    def do_DELETE(self) -> None:
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
        answer = self.server.script(asked)
        if not isinstance(answer, Answer):
            answer = Answer(200, answer)
        sent = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
        self.send_response(answer.status)
        for name, text in {"Content-Type": "application/json", **answer.headers}.items():
            self.send_header(name, text)
        self.send_header("Content-Length", str(len(sent)))
        self.end_headers()
        self.wfile.write(sent)


@contextmanager
def scripted(script: Script) -> Iterator[Scripted]:
    """The server while it runs. script: called in a thread for each connection."""
    with Scripted(script) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
