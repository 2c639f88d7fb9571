"""Which row is which, and the compact sets that remember it."""

from __future__ import annotations

import random
import sys

from hypothesis import given
from hypothesis import strategies as st

from redline.run import identity
from redline.run.identity import Identifier, KeySet
from redline.run.source import Row


def row(number: int, content: bytes, custom_id: object = None) -> Row:
    data = {} if custom_id is None else {"custom_id": custom_id}
    return Row(number, number, data, content)


@given(st.lists(st.integers(0, 2**64 - 1)))
def test_a_key_set_is_a_set(keys: list[int]) -> None:
    ours, theirs = KeySet(), set[int]()
    for key in keys:
        key = key or 1  # 0 and 1 are one key, which costs nothing among 2^64
        assert ours.add(key) == (key not in theirs)
        theirs.add(key)
        assert key in ours
        assert len(ours) == len(theirs)


def test_a_key_set_keeps_its_keys_as_it_grows_and_costs_at_most_32_bytes_each() -> None:
    source = random.Random(1)
    keys = [source.getrandbits(64) for _ in range(100_000)]
    found = KeySet()
    for key in keys:
        found.add(key)
    assert all(key in found for key in keys)
    assert sys.getsizeof(found._slots) <= 32 * len(keys) + 64


def test_keys_that_collide_in_their_low_bits_are_kept_apart() -> None:
    found = KeySet()
    keys = [number << 32 for number in range(1, 500)]
    assert all(found.add(key) for key in keys)
    assert not any(found.add(key) for key in keys)
    assert (500 << 32) not in found


def test_rows_with_a_custom_id_are_named_by_it_whatever_else_they_hold() -> None:
    first, second = Identifier(), Identifier()
    assert first.key(row(1, b"old", "a")) == second.key(row(9, b"new", "a"))
    assert first.key(row(2, b"old", "b")) != second.key(row(2, b"old", "c"))


def test_a_repeated_custom_id_is_told_and_still_gets_a_key_of_its_own() -> None:
    identifier = Identifier()
    keys = [identifier.key(row(number, b"same", "a")) for number in range(1, 4)]
    assert [is_duplicate for _, is_duplicate in keys] == [False, True, True]
    assert len({key for key, _ in keys}) == 3


def test_a_number_and_its_digits_are_the_same_custom_id() -> None:
    identifier = Identifier()
    assert identifier.key(row(1, b"x", 7))[1] is False
    assert identifier.key(row(2, b"y", "7"))[1] is True


@given(st.lists(st.sampled_from([b"a", b"b", b"c"])), st.integers(0, 20), st.binary(min_size=2))
def test_rows_keep_their_keys_when_another_is_added_anywhere(
    contents: list[bytes], at: int, added: bytes
) -> None:
    def keys(values: list[bytes]) -> list[int]:
        identifier = Identifier()
        return [identifier.key(row(number, value))[0] for number, value in enumerate(values, 1)]

    before = keys(contents)
    at = min(at, len(contents))
    after = keys([*contents[:at], added, *contents[at:]])
    assert len(set(before)) == len(before)
    assert after[:at] + after[at + 1 :] == before


def test_many_equal_rows_take_one_step_each(monkeypatch) -> None:
    calls = 0
    real = identity._hash

    def counted(data: bytes) -> int:
        nonlocal calls
        calls += 1
        return real(data)

    monkeypatch.setattr(identity, "_hash", counted)
    identifier = Identifier()
    keys = {identifier.key(row(number, b"same"))[0] for number in range(1, 5001)}
    assert len(keys) == 5000
    assert calls <= 3 * 5000
