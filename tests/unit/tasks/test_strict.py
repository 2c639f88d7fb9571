"""A strict number is in exactly the form that GSM8K asks for."""

from __future__ import annotations

from redline.tasks.answers import strict_number
from support.tables import number, rows


def test_hashes_are_read_as_the_data_sets_own_evaluation_does() -> None:
    table = [(row["answer"], row["strict"]) for row in rows("answers") if "strict" in row]
    table += [(row["answer"], row["number"]) for row in rows("strict")]
    for answer, expected in table:
        found, right = strict_number(answer), number(expected)
        assert (found and found.value) == (right and right.value), answer
