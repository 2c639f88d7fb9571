"""Which row is which when the input has changed, and while another thread adds keys."""

from __future__ import annotations

import random
import sys
from types import FrameType
from typing import Any

import pytest

from redline.journal import identity
from redline.sources import open_source

UNNAMED: list[dict[str, Any]] = [{"text": "a"}, {"text": "b"}, {"text": "a"}, {"text": "a"}]


def keys(rows: list[dict[str, Any]]) -> list[tuple[int, bool]]:
    identifier = identity.Identifier()
    source = open_source(rows)
    found: list[tuple[int, bool]] = []
    for batch in source.batches():
        keys, duplicates, *_ = identifier.keys(batch)
        found += [(key, place in duplicates) for place, key in enumerate(keys)]
    return found


def test_equal_rows_without_a_name_each_have_a_key_of_their_own() -> None:
    assert len({key for key, _ in keys(UNNAMED)}) == 4
    assert not any(is_duplicate for _, is_duplicate in keys(UNNAMED))


@pytest.mark.parametrize("at", [0, 2, 4])
def test_rows_added_anywhere_leave_the_keys_of_the_others(at: int) -> None:
    rows = [*UNNAMED[:at], {"text": "new"}, *UNNAMED[at:]]
    later = keys(rows)
    assert later[:at] + later[at + 1 :] == keys(UNNAMED)


@pytest.mark.parametrize("at", [0, 1, 3])
def test_rows_added_before_a_repeated_custom_id_leave_its_key(at: int) -> None:
    rows = [{"custom_id": "x", "n": 1}, {"custom_id": "x", "n": 1}, {"custom_id": "x", "n": 2}]
    before = keys(rows)
    assert [is_duplicate for _, is_duplicate in before] == [False, True, True]
    assert len({key for key, _ in before}) == 3
    later = keys([*rows[:at], {"custom_id": "new"}, *rows[at:]])
    assert later[:at] + later[at + 1 :] == before


def test_a_set_holds_what_was_put_in_and_nothing_else() -> None:
    chance = random.Random(5)
    numbers = [chance.getrandbits(64) for _ in range(20_000)] + [0, 1, 2**64 - 1]
    held = identity.KeySet()
    assert [held.add(number) for number in numbers] == [True] * (len(numbers) - 2) + [False, True]
    assert not any(held.add(number) for number in numbers)
    assert all(number in held for number in numbers)
    assert not any(chance.getrandbits(64) in held for _ in range(20_000))


def test_a_key_that_is_in_a_set_is_found_at_any_moment_of_its_growth() -> None:
    """Looks keys up before each line that a set runs while one is added, as a thread might."""
    held = identity.KeySet()
    chance = random.Random(6)
    known: list[int] = []
    looks = 0

    def look(frame: FrameType, event: str, _: object) -> Any:
        nonlocal looks
        if frame.f_code.co_filename != identity.__file__:
            return None
        if event == "line" and known:
            looks += 1
            sys.settrace(None)
            for key in chance.choices(known, k=3):
                assert key in held, "a key is missing while the set grows"
            sys.settrace(look)
        return look

    before = sys.gettrace()
    for _ in range(1100):
        key = chance.getrandbits(64)
        sys.settrace(look)
        try:
            held.add(key)
        finally:
            sys.settrace(before)
        known.append(key)
    assert looks > 1100
