"""Numbers with their noun."""

from __future__ import annotations

import pytest

from redline.process import counted


@pytest.mark.parametrize(
    ("number", "words"), [(0, "0 rows"), (1, "1 row"), (2, "2 rows"), (12_345, "12,345 rows")]
)
def test_the_noun_agrees_with_its_number(number: int, words: str) -> None:
    assert counted(number, "row") == words


def test_a_plural_of_its_own_and_a_verb() -> None:
    assert counted(1, "batch is", "batches are") == "1 batch is"
    assert counted(3, "batch is", "batches are") == "3 batches are"
