"""What followed the same words before: the match, the continuation, and its cost."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redline.engine.draft import Lookup


@pytest.mark.parametrize(
    ("tokens", "most", "proposal"),
    [
        ([], 4, []),
        ([1], 4, []),
        ([1, 2], 4, []),
        ([1, 2, 3, 4], 4, []),
        ([5, 1, 2, 9, 1, 2], 0, []),
        ([1, 2, 9, 8, 7, 1, 2], 2, [9, 8]),
        # The end of the text is continued with the proposal itself.
        ([1, 2, 9, 1, 2], 7, [9, 1, 2, 9, 1, 2, 9]),
        ([4, 4, 4], 3, [4, 4, 4]),
        # Of equal matches the latest, and a longer match before a later one.
        ([1, 2, 8, 5, 1, 2, 9, 6, 1, 2], 1, [9]),
        ([7, 1, 2, 8, 5, 1, 2, 9, 7, 1, 2], 1, [8]),
        # Eight equal tokens are as good as nine.
        ([3, *range(10, 18), 8, 5, *range(10, 18), 9, 3, *range(10, 18)], 1, [9]),
        # One equal token is no match.
        ([1, 2, 3, 2], 4, []),
    ],
)
def test_a_proposal_is_what_followed_the_best_match(
    tokens: list[int], most: int, proposal: list[int]
) -> None:
    assert Lookup().propose(tokens, most) == proposal


def naive(tokens: list[int], most: int) -> list[int]:
    """The same by search: the longest match of 2 to 8 tokens among the last 16 pairs alike."""
    last = len(tokens) - 1
    places = [
        place for place in range(1, last) if tokens[place - 1 : place + 1] == tokens[last - 1 :]
    ]

    def length(place: int) -> int:
        return next(
            (n for n in range(2, 8) if n > place or tokens[place - n] != tokens[last - n]), 8
        )

    if not places:
        return []
    best = max(places[-16:], key=lambda place: (length(place), place))
    joined = list(tokens)
    for source in range(best + 1, best + 1 + most):
        joined.append(joined[source])
    return joined[len(tokens) :]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(0, 3), max_size=60), st.integers(1, 6), st.randoms())
def test_the_index_grows_with_its_sequence_and_finds_what_a_search_finds(
    tokens: list[int], most: int, chance: random.Random
) -> None:
    lookup, end = Lookup(), 0
    while end < len(tokens):
        end = min(len(tokens), end + chance.randint(1, 9))
        assert lookup.propose(tokens[:end], most) == naive(tokens[:end], most)


class Counted(list[int]):
    """A list that counts how often it is read."""

    reads = 0

    def __getitem__(self, index: int) -> int:  # type: ignore[override]
        self.reads += 1
        return super().__getitem__(index)


def test_a_proposal_costs_no_more_in_a_long_text() -> None:
    tokens = Counted([1] * 20_000)
    lookup = Lookup()
    lookup.propose(tokens, 4)
    tokens.append(1)
    tokens.reads = 0
    lookup.propose(tokens, 4)
    assert tokens.reads < 300
