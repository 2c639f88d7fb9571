"""A real server on loopback, in a thread, whose answers the test writes."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from types import MappingProxyType
from typing import Any, NamedTuple


class Told(NamedTuple):
    """An answer: bytes as they are, anything else as JSON."""

    body: Any
    status: int = 200
    headers: Mapping[str, str] = MappingProxyType({})


_IDS = count()
# The path, and the JSON of the body or its bytes, to the answer.
Script = Callable[[str, Any], Told | Any]


class Scripted(ThreadingHTTPServer):
    """asked: path and body of each request, in order."""

    daemon_threads = True
    # A full queue drops connections, which come again after a second.
    request_queue_size = 128

    def __init__(self, script: Script) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.script = script
        self.asked: list[tuple[str, Any]] = []
        self.lock = threading.Lock()

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


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
        is_json = self.headers.get("Content-Type") == "application/json"
        body = json.loads(raw) if raw and is_json else raw
        with self.server.lock:
            self.server.asked.append((self.path, body))
            told = self.server.script(self.path, body)
        told = told if isinstance(told, Told) else Told(told)
        data = told.body if isinstance(told.body, bytes) else json.dumps(told.body).encode()
        self.send_response(told.status)
        for name, value in {"Content-Type": "application/json", **told.headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def scripted(script: Script) -> Iterator[Scripted]:
    """A server that answers by `script`, called for one request at a time."""
    with Scripted(script) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def said(text: Any = "yes", finish_reason: Any = "stop", **fields: Any) -> dict[str, Any]:
    """One choice of a chat completion."""
    message = {"role": "assistant", "content": text}
    return {"message": message, "finish_reason": finish_reason, **fields}


def chat(*choices: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A chat completion of these choices, which are numbered unless they are already."""
    numbered = [{"index": index, **choice} for index, choice in enumerate(choices)]
    # No two answers are equal, as a server's are not: equal ones are taken for copies.
    return {"id": f"c-{next(_IDS)}", "model": "m", "choices": numbered, **fields}
