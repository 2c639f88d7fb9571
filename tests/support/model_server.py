"""A chat model that is a plain function of the request's body, on loopback."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

# The text of the answer, or a status and the body of an error.
Said = str | tuple[int, dict[str, Any]]
USAGE = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}


class ModelServer(ThreadingHTTPServer):
    """asked: the bodies of the requests, in the order in which they came."""

    daemon_threads = True
    # A full queue drops connections, which come again after a second.
    request_queue_size = 128

    def __init__(self, say: Callable[[dict[str, Any]], Said]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.say = say
        self.asked: list[dict[str, Any]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # An answer is two writes; the second would wait for the client to acknowledge the first.
    disable_nagle_algorithm = True
    server: ModelServer

    def log_message(self, *args: object) -> None:
        """Nothing: stderr is what the tests look at."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append(body)
        said = self.server.say(body)
        status, told = said if isinstance(said, tuple) else (200, _completion(said))
        content = json.dumps(told).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def _completion(text: str) -> dict[str, Any]:
    choice = {"index": 0, "message": {"content": text}, "finish_reason": "stop"}
    return {"choices": [choice], "model": "m", "usage": USAGE}


@contextmanager
def model_server(say: Callable[[dict[str, Any]], Said]) -> Iterator[ModelServer]:
    """Serves while it is entered. say: what the model answers to a request's body."""
    with ModelServer(say) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
