"""The rows of a synthesis: every combination, in a fixed order, whatever the count."""

from __future__ import annotations

from itertools import product
from math import lcm, prod
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from redline.errors import ConfigError
from redline.tasks.synth import Variations, combination

LENGTHS = st.lists(st.integers(1, 7), max_size=4)


@given(LENGTHS)
@example([4, 6])  # a diagonal that closes early
def test_every_combination_comes_once_before_one_comes_again(lengths: list[int]) -> None:
    period = prod(lengths)
    every = sorted(product(*map(range, lengths)))
    for begin in (0, period):
        found = [tuple(combination(begin + at, lengths)) for at in range(period)]
        assert sorted(found) == every


@given(st.integers(1, 9), st.integers(1, 9))
def test_the_first_rows_are_spread_over_each_list(one: int, other: int) -> None:
    places = [combination(at, [one, other]) for at in range(lcm(one, other))]
    for axis, length in enumerate((one, other)):
        counts = [sum(place[axis] == at for place in places) for at in range(length)]
        assert max(counts) == min(counts)


def rows(count: int, **given: Any) -> list[dict[str, Any]]:
    return list(Variations(count, **given))


def test_rows_have_a_number_a_seed_and_one_value_of_each_list() -> None:
    assert rows(4, vary={"topic": ["tea", "rain"], "temperature": [0.7, 1.0]}) == [
        {"n": 1, "seed": 1, "topic": "tea", "temperature": 0.7},
        {"n": 2, "seed": 2, "topic": "rain", "temperature": 1.0},
        {"n": 3, "seed": 3, "topic": "tea", "temperature": 1.0},
        {"n": 4, "seed": 4, "topic": "rain", "temperature": 0.7},
    ]
    assert rows(2, first_seed=40) == [{"n": 1, "seed": 41}, {"n": 2, "seed": 42}]
    assert rows(1, first_seed=None) == [{"n": 1}]


@given(st.integers(1, 30), st.integers(0, 30), LENGTHS)
def test_a_larger_count_continues_a_smaller_one(count: int, more: int, lengths: list[int]) -> None:
    vary = {f"c{at}": list(range(length)) for at, length in enumerate(lengths)}
    base = [{"text": "a"}, {"text": "b"}]
    larger = rows(count + more, vary=vary, base=base)
    assert rows(count, vary=vary, base=base) == larger[:count]
    assert len(Variations(count)) == count


def test_rows_of_a_file_come_in_turn_and_keep_their_names_apart() -> None:
    base = [{"custom_id": "x", "topic": "tea"}, {"custom_id": 7, "topic": "rain"}]
    made = rows(5, base=base, first_seed=None)
    assert [row["custom_id"] for row in made] == ["x#1", "7#1", "x#2", "7#2", "x#3"]
    assert [row["topic"] for row in made] == ["tea", "rain", "tea", "rain", "tea"]


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"vary": {"n": ["1"]}}, "n is already a column of every row"),
        ({"vary": {"seed": ["1"]}}, "seed is already a column of every row"),
        ({"vary": {"custom_id": ["a", "b"]}}, "custom_id cannot be varied"),
        ({"vary": {"topic": []}}, "there is no value for topic"),
        ({"base": [{"a": 1}, {"seed": "Write"}]}, "the rows already have a column seed"),
        (
            {"base": [{"topic": 1}], "vary": {"topic": ["a"]}},
            "the rows already have a column topic",
        ),
    ],
)
def test_a_column_is_given_once(given: dict[str, Any], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        Variations(3, **given)


def test_what_decides_the_rows_is_told_in_short_and_the_count_is_not_of_it() -> None:
    vary = {"topic": [f"topic {number}" for number in range(1000)]}
    told = Variations(5, vary=vary).settings()
    assert told == Variations(9, vary=vary).settings()
    assert len(str(told)) < 200
    others = [
        Variations(5, vary={"topic": [*vary["topic"], "one more"]}),
        Variations(5, vary=vary, first_seed=1),
        Variations(5, vary=vary, first_seed=None),
        Variations(5, vary=vary, base=[{"a": 1}]),
        Variations(5),
    ]
    assert all(other.settings() != told for other in others)


def test_only_what_is_varied_is_a_parameter() -> None:
    assert Variations(1, vary={"temperature": [0.5], "topic": ["a"]}).sampling == ("temperature",)
    assert Variations(1, base=[{"temperature": "22 degrees"}]).sampling == ()
