"""Long texts, folded and cut for a screen."""

from __future__ import annotations

import pytest

from redline.cli.session import folded


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("a", ["a"]),
        ("a\nb\nc", ["a", "b", "c"]),
        ("a\nb\nc\nd", ["a", "b", "... 4 more characters"]),
        # What follows is nothing to see.
        ("a\n" + "\n" * 50, ["a", "", ""]),
        ("a\nb\nc\n" + " \n" * 50, ["a", "b", "c"]),
        ("a\n" + "\n" * 50 + "b", ["a", "", "... 51 more characters"]),
        ("a: " + "b" * 80, ["a:", "b" * 80]),
        # Longer words begin beside the words before them.
        ("a: " + "b" * 81, ["a: " + "b" * 77, "b" * 4]),
        ("a: " + "字" * 41, ["a: " + "字" * 38, "字" * 3]),
    ],
)
def test_a_text_takes_at_most_its_lines(text: str, lines: list[str]) -> None:
    assert folded(text, 80, 3) == lines
