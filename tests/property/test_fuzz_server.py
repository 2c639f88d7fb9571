"""The small form of the server's fuzz campaign (bench/fuzz_server.py), and that it can fail."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from redline.httpserver import HttpBounds, connection
from support.catching import assert_caught
from support.server_fuzzing import fuzz, play
from support.smuggling import NEXT


@pytest.mark.slow
def test_faults_in_requests_break_no_law() -> None:
    figures = fuzz(connection, 1, executions=1_500)
    assert figures.executions == 1_500
    assert figures.requests_checked > 1_000
    assert figures.requests_by_h11 > 50
    assert {"400", "413", "kept"} <= set(figures.outcomes)


@pytest.mark.parametrize("kind", ["whole", "parts", "late", "at once"])
@pytest.mark.parametrize("cut", [51, 52, 53, 1001, 65_000])
def test_a_body_that_is_whole_before_it_is_read_holds_nothing_up(kind: str, cut: int) -> None:
    head = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 66000\r\n\r\n"
    data = head + b"x" * 66_000
    pieces = [data[:cut], data[cut:], NEXT]
    assert play(connection, pieces, kind, HttpBounds()).statuses == [200, 200]


class Shortened(connection.Connection):
    """Loses the last byte of some bodies."""

    def on_body(self, data: bytes) -> None:
        super().on_body(data[:-1] if len(data) == 300 or data == b"{}" else data)


class Ragged(connection.Connection):
    """Loses a line end that arrives alone."""

    def data_received(self, data: bytes) -> None:
        if data != b"\n":
            super().data_received(data)


class Deaf(connection.Connection):
    """Goes on answering a client that has left."""

    def eof_received(self) -> None: ...

    def connection_lost(self, error: Exception | None) -> None: ...


@pytest.mark.parametrize("kind", [Shortened, Ragged, Deaf])
def test_a_connection_that_breaks_a_law_is_noticed(kind: type[connection.Connection]) -> None:
    def check(kind: type[connection.Connection]) -> None:
        module = SimpleNamespace(Connection=kind, Service=connection.Service)
        fuzz(module, 1, executions=150)  # type: ignore[arg-type]

    assert_caught(check, connection.Connection, kind)
