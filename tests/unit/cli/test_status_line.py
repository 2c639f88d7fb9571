"""The line of a benchmark or a fleet on stderr."""

from __future__ import annotations

import io
from contextlib import redirect_stderr

import pytest

from redline.cli.session import StatusLine


class Screen(io.StringIO):
    """A terminal that keeps all that is written to it."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")


def on(screen: Screen) -> StatusLine:
    with redirect_stderr(screen):
        return StatusLine()


def test_a_line_that_has_not_changed_is_not_drawn_again() -> None:
    screen = Screen()
    line = on(screen)
    for text in ("1 replica", "1 replica", "1 replica", "2 replicas"):
        line.show(text)
    assert screen.getvalue() == "\r\x1b[K1 replica\r\x1b[K2 replicas"


def test_a_line_is_drawn_again_below_one_that_stays() -> None:
    screen = Screen()
    line = on(screen)
    line.show("1 replica")
    line.write("one has ended")
    line.show("1 replica")
    line.clear()
    line.clear()
    drawn = "\r\x1b[K1 replica"
    assert screen.getvalue() == f"{drawn}\r\x1b[Kone has ended\n{drawn}\r\x1b[K"
