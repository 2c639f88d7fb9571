"""Numerals are read exactly, written back shortly, and compared by what they say."""

from __future__ import annotations

import pytest

from redline.tasks.answers import Number, gold_number, is_same, read_number
from support.tables import number, rows


@pytest.mark.parametrize("row", rows("numerals"), ids=lambda row: ascii(row["text"])[:40])
def test_a_numeral_is_read_as_the_table_says(row: dict[str, str | None]) -> None:
    assert read_number(row["text"] or "") == number(row["number"])


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("18.0", "18"),
        ("-4.50", "-4.5"),
        ("0.05", "0.05"),
        ("-0.5", "-0.5"),
        ("1/3", "1/3"),
        ("-2/3", "-2/3"),
        ("3/8", "0.375"),
        ("25%", "25%"),
        ("12.5%", "12.5%"),
        ("1e20", "100000000000000000000"),
        ("0", "0"),
    ],
)
def test_a_number_is_written_shortly_and_exactly(text: str, written: str) -> None:
    value = read_number(text)
    assert value is not None
    assert str(value) == written
    assert read_number(written) == value


SAME = [
    ("18", "18.0"),
    ("18", "$18.00"),
    ("18", "18/1"),
    ("1234", "1,234"),
    ("25%", "25"),
    ("25%", "0.25"),
    ("25%", "1/4"),
    ("25%", "25.0%"),
    ("0.5", "1/2"),
    ("1.5 million", "1500000"),
    ("500%", "5"),
    ("-5", "−5"),
]
DIFFERENT = [
    ("18", "-18"),
    ("18", "18.01"),
    ("25", "0.25"),
    ("25%", "0.25%"),
    ("25%", "2500"),
    ("0.333", "1/3"),
]


def read(text: str) -> Number:
    found = read_number(text)
    assert found is not None
    return found


def test_numbers_are_the_same_where_they_say_the_same() -> None:
    for pairs, are_same in ((SAME, True), (DIFFERENT, False)):
        for one, other in pairs:
            assert is_same(read(one), read(other)) is are_same, (one, other)
            assert is_same(read(other), read(one)) is are_same, (other, one)


@pytest.mark.parametrize(
    ("gold", "expected"),
    [
        ("9 * 2 = <<9*2=18>>18\n#### 18", "18"),
        ("#### 1,234", "1234"),
        ("#### -10", "-10"),
        ("#### 5\n#### 6", "6"),
        ("18", "18"),
        ("25%", "25%"),
        ("#### ", None),
        ("no number", None),
        ("#### 3 or 4", None),
    ],
)
def test_a_reference_answer_is_read(gold: str, expected: str | None) -> None:
    assert gold_number(gold) == number(expected)
