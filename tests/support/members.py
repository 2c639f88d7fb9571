"""HTTP servers of a fleet, each in a thread, that change what they answer in mid-run."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple


class Asked(NamedTuple):
    """at_s: when a request came, by the clock of all processes. key: without `Bearer`."""

    at_s: float
    key: str
    model: str


class MemberServer(ThreadingHTTPServer):
    """Answers chat completions after `latency_s`.

    after: so many requests; what follows is `then`: "refuse" (401), "unpaid" (402), "park" (429
    with a Retry-After of a second, for a second), "fail" (500), or "die" (no connection is taken
    any more).
    refused: keys that are always refused.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, *, latency_s: float = 0.005, after: int = 10**9, then: str = "") -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.latency_s = latency_s
        self.after = after
        self.then = then
        self.refused: set[str] = set()
        self.asked: list[Asked] = []
        self.answered = 0
        self.parked_s = 0.0
        self.parked_until_s = 0.0
        self.lock = threading.Lock()
        self.connections: set[Any] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def die(self) -> None:
        """Takes no connection any more and loses those that it has."""
        self.socket.close()
        for connection in list(self.connections):
            with suppress(OSError):
                connection.shutdown(2)

    def process_request(self, request: Any, client_address: Any) -> None:
        self.connections.add(request)
        super().process_request(request, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing: it dies on purpose."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: MemberServer

    def log_message(self, *args: object) -> None:
        """Nothing."""

    def do_POST(self) -> None:
        server = self.server
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", "0"))))
        key = self.headers.get("Authorization", "").removeprefix("Bearer ")
        with server.lock:
            server.asked.append(Asked(time.time(), key, body.get("model", "")))
            is_over = len(server.asked) > server.after
        if key in server.refused or (is_over and server.then == "refuse"):
            return self._send(401, {"error": {"message": "no such key"}})
        if is_over and server.then == "unpaid":
            return self._send(402, {"error": {"message": "no credit"}})
        if is_over and server.then == "fail":
            return self._send(500, {"error": {"message": "boom"}})
        if is_over and server.then == "die":
            server.die()
            return None
        if is_over and server.then == "park" and not server.parked_until_s:
            server.parked_until_s = time.time() + 1.0
        if time.time() < server.parked_until_s:
            return self._send(429, {"error": {"message": "wait"}}, retry_after_s=1)
        time.sleep(server.latency_s)
        choice = {"message": {"role": "assistant", "content": "yes"}, "finish_reason": "stop"}
        with server.lock:
            server.answered += 1
        usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        choices = [{"index": 0, **choice}]
        return self._send(200, {"model": body.get("model"), "choices": choices, "usage": usage})

    def _send(self, status: int, body: Any, retry_after_s: int = 0) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        if retry_after_s:
            self.send_header("Retry-After", str(retry_after_s))
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def serving(*servers: MemberServer) -> Iterator[None]:
    """While it is entered, they answer."""
    threads = [threading.Thread(target=_serve, args=(one,), daemon=True) for one in servers]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for server, thread in zip(servers, threads, strict=True):
            server.shutdown()
            thread.join(10)
            server.server_close()


def _serve(server: MemberServer) -> None:
    # Its socket is closed when it dies.
    with suppress(OSError, ValueError):
        server.serve_forever(0.02)
