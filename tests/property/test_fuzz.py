"""The small form of the fuzz campaign (bench/fuzz_transport.py), and that it can fail."""

from __future__ import annotations

from types import ModuleType

import pytest

from fuzzing import fuzz
from mutants import assert_caught, mutant
from redline.calls import connection


def check(module: ModuleType) -> None:
    fuzz(module, 1, executions=3_000)


def test_faults_in_answers_break_no_law() -> None:
    figures = fuzz(connection, 2, executions=6_000)
    assert figures.executions == 6_000
    assert figures.answers_checked > 1_000
    assert {"answer", "BadReply", "Disconnected", "TimedOut"} <= set(figures.outcomes)


@pytest.mark.parametrize(
    ("line", "replacement"),
    [
        ("self._inflate = inflate_for(self._pairs)", "self._inflate = None"),
        ("self._parts.append(data)", "self._parts.appendleft(data)"),
        ("if len(data) > room:", "if False:"),
        ("self._is_reusable = self._is_reusable and self._parser.should_keep_alive()", "pass"),
        ("if status < 200:", "if False:"),
    ],
)
def test_a_changed_line_breaks_one(line: str, replacement: str) -> None:
    assert_caught(check, connection, mutant(connection, line, replacement))
