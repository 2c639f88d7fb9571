"""The tables are large and varied enough to mean something, and no row stands in one twice."""

from __future__ import annotations

from collections import Counter

import pytest

from support.tables import number, rows

LEAST = {"answers": 900, "strict": 9, "numerals": 55, "choices": 180, "json_replies": 70}
KEYS = {
    "answers": ("answer",),
    "strict": ("answer",),
    "numerals": ("text",),
    "choices": ("answer",),
    "json_replies": ("reply", "kind"),
}


@pytest.mark.parametrize("name", LEAST)
def test_a_table_has_its_rows_once_each(name: str) -> None:
    keys = Counter(tuple(row[key] for key in KEYS[name]) for row in rows(name))
    assert len(keys) >= LEAST[name]
    assert not [key for key, count in keys.items() if count > 1]


def test_answers_are_of_many_shapes_and_some_hold_no_number() -> None:
    table = rows("answers")
    assert len({row["shape"] for row in table}) >= 30
    assert sum(number(row["number"]) is None for row in table) >= 50
    assert len({row["number"] for row in table}) >= 90
