"""The letter that an answer chooses: every row of the table, and what would break it."""

from __future__ import annotations

from typing import Any

import pytest

from mutants import assert_caught, mutant, with_names
from redline.tasks import choices as choices_module
from redline.tasks.choices import final_choice
from tables import rows

TABLE = rows("choices")


def check_choices(module: Any) -> None:
    wrong = [
        f"{row['answer']!r}: {letter} instead of {row['letter']}"
        for row in TABLE
        if (letter := module.final_choice(row["answer"])) != row["letter"]
    ]
    assert wrong == []


def test_the_letter_is_that_of_the_table() -> None:
    check_choices(choices_module)


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


@pytest.mark.parametrize(
    ("line", "replacement"),
    [
        (
            "return max(chosen, key=lambda choice: choice.at).letter",
            "return min(chosen, key=lambda choice: choice.at).letter",
        ),
        ("return more is not None and more[\"letter\"] in letters", "return False"),
        ("if may_be_word and not is_marked and _WORD_NEXT.match(text, found.end(\"letter\")):",
         "if False:"),
    ],
)  # fmt: skip
def test_the_table_notices(line: str, replacement: str) -> None:
    assert_caught(check_choices, choices_module, mutant(choices_module, line, replacement))


def test_reasoning_and_later_questions_choose_nothing() -> None:
    for name in ("spoken", "without_run_on"):
        changed = with_names(choices_module, **{name: lambda text, *_: text})
        assert_caught(check_choices, choices_module, changed)
