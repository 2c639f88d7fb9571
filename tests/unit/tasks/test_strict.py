"""A strict number stands in exactly the form that its task asks for."""

from __future__ import annotations

from typing import Any

import pytest

from mutants import assert_caught, mutant, with_names
from redline.tasks import extract as extract_module
from redline.tasks.extract import strict_number
from tables import number, rows


def check_hashes(module: Any) -> None:
    table = [(row["answer"], row["strict"]) for row in rows("answers") if "strict" in row]
    table += [(row["answer"], row["number"]) for row in rows("strict") if row["form"] == "hashes"]
    for answer, expected in table:
        found = module.strict_number(answer)
        number_of = number(expected)
        assert (found and found.number.value) == (number_of and number_of.value), answer


def test_hashes_are_read_as_the_data_sets_own_evaluation_does() -> None:
    check_hashes(extract_module)


@pytest.mark.parametrize("row", rows("strict"), ids=lambda row: ascii(row["answer"])[:40])
def test_each_form_is_read_as_the_table_says(row: dict[str, Any]) -> None:
    found = strict_number(row["answer"], row["form"])
    assert (found.number if found else None) == number(row["number"])
    assert found is None or found.shape == row["form"]


def test_reasoning_is_not_read_for_a_form() -> None:
    changed = with_names(extract_module, spoken=lambda answer: answer)
    assert_caught(check_hashes, extract_module, changed)


def test_commas_are_taken_away_wherever_they_stand() -> None:
    line = 'digits = found[1].replace(",", "")'
    changed = mutant(extract_module, line, "digits = found[1]")
    assert_caught(check_hashes, extract_module, changed)
