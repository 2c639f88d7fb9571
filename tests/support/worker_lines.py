"""Connections to a gateway of several workers, of which it is known which worker has each."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

_PREFIX = len("req_") + 12


_OPEN: list[Line] = []


def close_lines() -> None:
    """Closes every connection that was made."""
    while _OPEN:
        _OPEN.pop().close()


class Line:
    """One connection. worker: names the worker that has it."""

    def __init__(self, url: str, key: str = "") -> None:
        self._root = urlsplit(url)
        self._headers = {"authorization": f"Bearer {key}"} if key else {}
        assert self._root.hostname is not None
        self._connection = http.client.HTTPConnection(
            self._root.hostname, self._root.port, timeout=60
        )
        _OPEN.append(self)
        # The id of a refusal begins with what its worker has drawn.
        self._connection.request("GET", "/none")
        answer = self._connection.getresponse()
        answer.read()
        self.worker = (answer.getheader("x-request-id") or "")[:_PREFIX]
        assert self.worker

    def post(self, body: object, path: str = "/v1/chat/completions") -> tuple[int, Any]:
        """Status and JSON of a call; 0 if the connection breaks."""
        try:
            self._connection.request("POST", path, json.dumps(body), self._headers)
            answer = self._connection.getresponse()
            return answer.status, json.loads(answer.read())
        except (OSError, http.client.HTTPException):
            return 0, None

    def ask(self, content: str = "hello", **facts: Any) -> int:
        """The status of a call."""
        message = {"role": "user", "content": content}
        return self.post({"model": "m", "messages": [message], **facts})[0]

    def request(self, method: str, path: str, body: object = None) -> tuple[int, bytes]:
        """Status and body of any answer. body: sent as JSON; None for none."""
        raw = None if body is None else json.dumps(body)
        self._connection.request(method, path, raw, self._headers)
        answer = self._connection.getresponse()
        return answer.status, answer.read()

    def text(self, path: str) -> str:
        """A page."""
        return self.request("GET", path)[1].decode()

    def get(self, path: str) -> Any:
        """A page of JSON."""
        return json.loads(self.text(path))

    @property
    def ports(self) -> tuple[int, int]:
        """Of the server and the client."""
        socket = self._connection.sock
        return socket.getpeername()[1], socket.getsockname()[1]

    def close(self) -> None:
        self._connection.close()


def lines_on_one(url: str, count: int, worker: str = "", key: str = "") -> list[Line]:
    """So many connections to one worker: this one, or any."""
    found: list[Line] = []
    while len(found) < count:
        line = Line(url, key)
        worker = worker or line.worker
        if line.worker == worker:
            found.append(line)
        else:
            line.close()
    return found


def workers_of(url: str, count: int) -> list[str]:
    """The names of so many workers, as soon as all of them answer."""
    found: dict[str, None] = {}
    until_s = time.monotonic() + 60
    while len(found) < count:
        assert time.monotonic() < until_s
        line = Line(url)
        found[line.worker] = None
        line.close()
    return [*found]


class Load:
    """Calls on these connections, each one after the other, while it is entered.

    facts: more of their bodies. statuses: of the answers so far, 0 for a connection that broke,
    which ends its calls.
    """

    def __init__(self, lines: Sequence[Line], **facts: Any) -> None:
        self._facts = facts
        self.statuses = Counter[int]()
        self._is_over = False
        self._threads = [threading.Thread(target=self._ask, args=(line,)) for line in lines]

    def _ask(self, line: Line) -> None:
        while not self._is_over:
            status = line.ask(**self._facts)
            self.statuses[status] += 1
            if not status:
                return

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def end(self) -> None:
        """No more calls begin."""
        self._is_over = True

    def __exit__(self, *_: object) -> None:
        self.end()
        for thread in self._threads:
            thread.join()
