"""The small form of the fuzz campaign (bench/fuzz_transport.py), and that it can fail."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from redline.calls.wire import ReplyMemory, Stops, connection
from support import reference
from support.answers import head
from support.catching import assert_caught
from support.fuzzing import fuzz
from support.raw_server import answer
from support.wires import Case, exchange

HINTS = "HTTP/1.1 103 Early Hints"
EMPTY = "HTTP/1.1 204 No Content"


@pytest.mark.parametrize(
    ("before", "is_right"),
    [
        (head("Link: <a>", status=HINTS), True),
        (head("Content-Length: 5", status=HINTS), True),
        (head("Content-Length: Link: <a>", status=HINTS), False),
        (head("Content-Length: ", status=HINTS), False),
        (head("Content-Length: 5, 5", status=HINTS), False),
        (head("Content-Length: 5", "Content-Length: 5", status=HINTS), False),
        (head("Content-Length: 5", "Transfer-Encoding: chunked", status=HINTS), False),
        (head("Content-Length: x", status=EMPTY), False),
    ],
)
async def test_a_length_that_is_none_is_an_error_also_where_no_body_follows(
    before: bytes, is_right: bool
) -> None:
    data = before + answer(b"after")
    read = reference.read(data, is_ended=False)
    assert (read is not None and read.body == b"after") == is_right
    assert (exchange(connection, Case([data])).error is None) == is_right


@pytest.mark.slow
def test_faults_in_answers_break_no_law() -> None:
    figures = fuzz(connection, 1, executions=6_000)
    assert figures.executions == 6_000
    assert figures.answers_checked > 1_000
    assert {"answer", "BadReply", "Disconnected", "TimedOut"} <= set(figures.outcomes)


class Credulous(connection.Connection):
    """Takes every connection for one that may serve another exchange."""

    def release(self) -> bool:
        super().release()
        return True


class Boundless(connection.Connection):
    """Takes answers of any length."""

    def __init__(self, on_lost: Any, _: object, stops: Stops) -> None:
        super().__init__(on_lost, ReplyMemory(1 << 40), stops)


@pytest.mark.parametrize("kind", [Credulous, Boundless])
def test_a_connection_that_breaks_a_law_is_noticed(kind: type[connection.Connection]) -> None:
    def check(kind: type[connection.Connection]) -> None:
        fuzz(SimpleNamespace(Connection=kind), 1, executions=300)  # type: ignore[arg-type]

    assert_caught(check, connection.Connection, kind)
