"""The small form of the server's fuzz campaign (bench/fuzz_server.py), and that it can fail."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from redline.httpserver import connection
from support.catching import assert_caught
from support.server_fuzzing import fuzz


def test_faults_in_requests_break_no_law() -> None:
    figures = fuzz(connection, 1, executions=1_500)
    assert figures.executions == 1_500
    assert figures.requests_checked > 1_000
    assert figures.requests_by_h11 > 50
    assert {"400", "413", "kept"} <= set(figures.outcomes)


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
        fuzz(module, 1, executions=400)  # type: ignore[arg-type]

    assert_caught(check, connection.Connection, kind)
