"""The final number of an answer: every row of the table."""

from __future__ import annotations

import pytest

from redline.tasks.answers import final_number
from support.tables import number, rows

TABLE = rows("answers")
SHAPES = sorted({row["shape"] for row in TABLE})


def wrong(shape: str) -> list[str]:
    """What `final_number` finds wrongly in the rows of this shape."""
    lines: list[str] = []
    for row in TABLE:
        if row["shape"] != shape:
            continue
        last = final_number(row["answer"])
        if last != number(row["number"]):
            lines.append(f"{row['answer']!r}: {last} instead of {row['number']}")
    return lines


@pytest.mark.parametrize("shape", SHAPES)
def test_the_final_number_is_that_of_the_table(shape: str) -> None:
    assert wrong(shape) == []


# An answer that is known to be cut.


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("16 - 3 = 13. She has 13 eggs.", None),
        ("She makes $18 a day.", None),
        ("The answer is 18", None),
        ("The answer is 1", None),
        ("#### 18", None),
        ("\\boxed{18", None),
        ("18", None),
        ("The answer is 18.", "18"),
        ("#### 18\n\nQuestion: And how", "18"),
        ("\\boxed{18} is what she", "18"),
    ],
)
def test_of_a_cut_answer_only_an_announced_number_counts(answer: str, expected: str | None) -> None:
    assert final_number(answer, is_cut=True) == number(expected)


@pytest.mark.parametrize(
    "answer",
    [
        "She has 16 - 3 = 13 eggs left. Then she",
        "For the twelfth glass he pays $2.5.\nFor the thirteenth glass he pays 5 * 1",
        "The total is 3 + 15 =",
        "She sells 9 eggs and the",
        "It grows by $<<34.56+6.912=41.472>>41.472 to $<<41.472+8.",
        "The eggs are sold for \\boxed{1",
        "<think>She has 9 eggs, so the answer is 18",
        "The rest is 0." + "3" * 200,
    ],
)
def test_an_answer_that_ends_too_early_has_no_number(answer: str) -> None:
    assert final_number(answer) is None
