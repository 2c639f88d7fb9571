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
        ("Final answer: I choose C.", "ABCDEFGHIJ", "C"),
        ("Answer: I believe it's C.", "ABCDEFGHIJ", "C"),
        ("Answer: I think option C is correct.", "ABCDEFGHIJ", "C"),
        ("Answer: I would go with (C).", "ABCDEFGHIJ", "C"),
        ("Answer: I cannot determine this.", "ABCDEFGHIJ", None),
        ("I guess I would choose E.", "ABCDEFGHIJ", "E"),
        ("Option F is the best, but I have some doubts.", "ABCDEFGHIJ", "F"),
        ("F — it is plausible but I did not verify it", "ABCDEFGHIJ", "F"),
        ("My best guess: I think it's C.", "ABCDEFGHIJ", "C"),
        ("I choose I.", "ABCDEFGHIJ", "I"),
        ("Answer: I", "ABCDEFGHIJ", "I"),
        ("The answer is I because it is the largest.", "ABCDEFGHIJ", "I"),
    ],
)
def test_only_the_options_there_are_can_be_chosen(
    answer: str, letters: str, letter: str | None
) -> None:
    assert final_choice(answer, letters) == letter


@pytest.mark.parametrize(
    ("answer", "letter"),
    [
        ("We go through the options. First consider option B", None),
        ("The liver is ruled out.\nNow, look at (C), which says that the", None),
        ("Let me go through each option.\nA. Mitochondria: these make ATP, so", None),
        ("Let's analyze each option:\n\nA. Mitochondria: these make ATP, so", None),
        ("Let's determine the correct choice:\n\n(A) Mitochondria: these make", None),
        ("Let's see which is the correct answer:\n\n**Option A:** These make", None),
        ("The possible answers are:\n- A: Mitochondria make ATP, so", None),
        ("我们来分析每个选项:\n\nA. 线粒体产生", None),
        ("Statement A is true because water is polar. Statement B is true because", None),
        ("Raising the price lowers the revenue, so A", None),
        ("So B is correct. To double-check, we", "B"),
        ("After weighing each option, the best answer is:\n\n**B) Ribosome**\n\nIt makes", "B"),
        ("The answer is (C), because the pancreas", "C"),
        ("B", "B"),
        ("B) Paris, which is the", "B"),
        ("That leaves one:\nC\n\nQuestion: Which", "C"),
    ],
)
def test_of_a_cut_answer_an_option_under_consideration_does_not_count(
    answer: str, letter: str | None
) -> None:
    assert final_choice(answer, is_cut=True) == letter
