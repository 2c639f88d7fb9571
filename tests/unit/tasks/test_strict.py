"""A strict number stands in exactly the form that its task asks for."""

from __future__ import annotations

from typing import Any

import pytest

from redline.tasks.answers import strict_number
from support.tables import number, rows


def test_hashes_are_read_as_the_data_sets_own_evaluation_does() -> None:
    table = [(row["answer"], row["strict"]) for row in rows("answers") if "strict" in row]
    table += [(row["answer"], row["number"]) for row in rows("strict") if row["form"] == "hashes"]
    for answer, expected in table:
        found = strict_number(answer)
        number_of = number(expected)
        assert (found and found.number.value) == (number_of and number_of.value), answer


@pytest.mark.parametrize("row", rows("strict"), ids=lambda row: ascii(row["answer"])[:40])
def test_each_form_is_read_as_the_table_says(row: dict[str, Any]) -> None:
    found = strict_number(row["answer"], row["form"])
    assert (found.number if found else None) == number(row["number"])
    assert found is None or found.shape == row["form"]
