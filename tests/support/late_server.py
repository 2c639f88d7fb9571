"""A server in threads that does something behind its answers: sends more, or closes."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

After = Callable[["Late", socket.socket, str], bool | None]


class Late:
    """One thread for each connection; `after` is what it does behind each of its answers.

    Where that returns True, the connection is closed once the next request has come.
    seen: the text of each request, in the order in which they came; heads: their heads.
    """

    def __init__(self, after: After) -> None:
        self._after = after
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._accept)]
        self._connected: list[socket.socket] = []
        self.seen: list[str] = []
        self.heads: list[str] = []
        self.connections = 0
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/v1"
        self._threads[0].start()

    def close(self) -> None:
        """Ends every connection and thread."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._threads[0].join()
        for connected in self._connected:
            with _broken_is_fine():
                connected.shutdown(socket.SHUT_RDWR)
        for thread in self._threads[1:]:
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                connected, _ = self._listener.accept()
            except OSError:
                return
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.connections += 1
            self._connected.append(connected)
            thread = threading.Thread(target=self._serve, args=(connected,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, connected: socket.socket) -> None:
        with connected, connected.makefile("rb") as reader, _broken_is_fine():
            while (text := self._read(reader)) is not None:
                connected.sendall(chat(text))
                if self._after(self, connected, text):
                    self._read(reader)
                    return

    def _read(self, reader: Any) -> str | None:
        lines = []
        while (line := reader.readline()) not in (b"\r\n", b""):
            lines.append(line.decode("latin-1"))
        if line == b"":
            return None
        head = "".join(lines)
        (size,) = (
            int(line.split(":")[1]) for line in lines if line.lower().startswith("content-length")
        )
        body = json.loads(reader.read(size))
        text = str(body["messages"][-1]["content"])
        with self._lock:
            self.heads.append(head)
            self.seen.append(text)
        return text


def chat(text: str, status: str = "200 OK") -> bytes:
    """A whole answer that repeats the text, with an id of its own."""
    message = {"role": "assistant", "content": f"echo {text}"}
    choices = [{"index": 0, "finish_reason": "stop", "message": message}]
    body = json.dumps({"id": f"chatcmpl-{text}", "choices": choices})
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()


@contextmanager
def late(after: After) -> Iterator[Late]:
    """A running server."""
    server = Late(after)
    try:
        yield server
    finally:
        server.close()


@contextmanager
def _broken_is_fine() -> Iterator[None]:
    try:
        yield
    except OSError:
        pass
