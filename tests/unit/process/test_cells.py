"""Columns that a text takes on a terminal."""

from __future__ import annotations

import pytest

from redline.process import cells


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("", 0),
        ("plain", 5),
        ("naïve", 5),
        ("━━─…", 4),
        ("日本", 4),
        ("\N{FULLWIDTH LATIN SMALL LETTER W}x", 3),
        ("한국", 4),
        ("e\N{COMBINING ACUTE ACCENT}", 1),
        ("\N{ROCKET}", 2),
    ],
)
def test_a_text_takes_as_many(text: str, columns: int) -> None:
    assert cells(text) == columns
