"""The letter that an answer chooses: every row of the table."""

from __future__ import annotations

import pytest

from redline.tasks.answers import final_choice
from support.tables import rows

TABLE = rows("choices")


def test_the_letter_is_that_of_the_table() -> None:
    wrong = [
        f"{row['answer']!r}: {letter} instead of {row['letter']}"
        for row in TABLE
        if (letter := final_choice(row["answer"])) != row["letter"]
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("answer", "letters", "letter"),
    [
        ("The answer is E.", "ABCDE", "E"),
        ("The answer is E.", "ABCD", None),
        ("J", "ABCDEFGHIJ", "J"),
        ("I think it is C.", "ABCDEFGHIJ", "C"),
        ("B", "AB", "B"),
        ("C", "AB", None),
    ],
)
def test_only_the_options_there_are_can_be_chosen(
    answer: str, letters: str, letter: str | None
) -> None:
    assert final_choice(answer, letters) == letter
