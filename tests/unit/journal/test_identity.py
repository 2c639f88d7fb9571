"""Which row is which, and the compact sets that remember it."""

from __future__ import annotations

import json
import random
import sys
from array import array
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redline.journal import (
    Identifier,
    KeySet,
    MessageKeys,
    is_other,
    keyed_rows,
    mark_of,
    marks_of,
)
from redline.sources import AsyncRows, Row, custom_id, message_key, open_source


def row(number: int, content: bytes, custom_id: object = None) -> Row:
    data = {} if custom_id is None else {"custom_id": custom_id}
    return Row(number, number, data, content)


def key(identifier: Identifier, one: Row) -> tuple[int, bool]:
    """Of a row that comes by itself."""
    keys, duplicates, *_ = identifier.keys([one])
    return keys[0], bool(duplicates)


def size_bytes(keys: KeySet) -> int:
    return sum(sys.getsizeof(part) for part in vars(keys).values() if isinstance(part, array))


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
    assert size_bytes(found) <= 32 * len(keys) + 64


@given(st.lists(st.integers(0, 20)), st.lists(st.integers(0, 20)))
def test_keys_that_are_there_already_are_told_by_their_places(
    before: list[int], keys: list[int]
) -> None:
    found, one_by_one = KeySet(), KeySet()
    for number in before:
        found.add(number)
        one_by_one.add(number)
    repeated = [place for place, number in enumerate(keys) if not one_by_one.add(number)]
    assert found.add_each(keys) == repeated
    assert all(number in found for number in (*before, *keys))
    assert len(found) == len(one_by_one)


def test_adding_stops_at_the_first_key_that_is_there_and_goes_on_from_any_place() -> None:
    found = KeySet()
    found.add(3)
    assert found.add_all([5, 4, 3, 2, 4]) == 2
    assert (len(found), 2 in found) == (3, False)
    assert found.add_all([5, 4, 3, 2, 4], 3) == 4
    assert (len(found), 2 in found) == (4, True)
    assert found.add_all([6, 7]) == 2


@pytest.mark.parametrize(("foreseen", "most_bytes"), [(1, 32), (0.01, 32), (1e9, 64), (1e-9, 32)])
def test_a_set_whose_size_is_foreseen_grows_in_larger_steps_and_never_by_more_than_that(
    foreseen: float, most_bytes: int
) -> None:
    """foreseen: times what comes."""
    chance = random.Random(2)
    keys = [chance.getrandbits(64) for _ in range(70_000)]
    found = KeySet()
    sizes = set()
    for begin in range(0, len(keys), 100):
        found.add_all(keys[begin : begin + 100])
        found.foresee(min(1, len(found) / (foreseen * len(keys))))
        sizes.add(size_bytes(found))
        if len(found) > 1000:
            assert size_bytes(found) <= 64 * len(found) + 64
    assert all(number in found for number in keys)
    assert size_bytes(found) <= most_bytes * len(keys) + 64
    # From 2^10 slots to 2^18 in steps of two doublings, or of one.
    assert len(sizes) == {1: 5, 1e9: 6}.get(foreseen, 9)


def test_keys_that_collide_in_their_low_bits_are_kept_apart() -> None:
    found = KeySet()
    keys = [number << 32 for number in range(1, 500)]
    assert all(found.add(key) for key in keys)
    assert not any(found.add(key) for key in keys)
    assert (500 << 32) not in found


def test_rows_with_a_custom_id_are_named_by_it_whatever_else_they_hold() -> None:
    first, second = Identifier(), Identifier()
    assert key(first, row(1, b"old", "a")) == key(second, row(9, b"new", "a"))
    assert key(first, row(2, b"old", "b")) != key(second, row(2, b"old", "c"))


def test_a_repeated_custom_id_is_told_and_still_gets_a_key_of_its_own() -> None:
    identifier = Identifier()
    keys = [key(identifier, row(number, b"same", "a")) for number in range(1, 4)]
    assert [is_duplicate for _, is_duplicate in keys] == [False, True, True]
    assert len({found for found, _ in keys}) == 3


def test_a_number_and_its_digits_are_the_same_custom_id() -> None:
    identifier = Identifier()
    assert key(identifier, row(1, b"x", 7))[1] is False
    assert key(identifier, row(2, b"y", "7"))[1] is True


@given(st.lists(st.sampled_from([b"a", b"b", b"c"])), st.integers(0, 20), st.binary(min_size=2))
def test_rows_keep_their_keys_when_another_is_added_anywhere(
    contents: list[bytes], at: int, added: bytes
) -> None:
    def keys(values: list[bytes]) -> list[int]:
        identifier = Identifier()
        return [key(identifier, row(n, value))[0] for n, value in enumerate(values, 1)]

    before = keys(contents)
    at = min(at, len(contents))
    after = keys([*contents[:at], added, *contents[at:]])
    assert len(set(before)) == len(before)
    assert after[:at] + after[at + 1 :] == before


@given(
    st.lists(st.tuples(st.sampled_from([b"a", b"b", b"c"]), st.sampled_from([None, "x", "y", 7]))),
    st.integers(1, 9),
)
def test_keys_do_not_depend_on_how_many_rows_come_at_once(
    rows: list[tuple[bytes, object]], size: int
) -> None:
    made = [row(number, content, name) for number, (content, name) in enumerate(rows, 1)]
    single, batched = Identifier(), Identifier()
    found: list[tuple[int, bool]] = []
    for begin in range(0, len(made), size):
        keys, duplicates, *_ = batched.keys(made[begin : begin + size])
        found += [(number, place in duplicates) for place, number in enumerate(keys)]
    assert found == [key(single, one) for one in made]
    assert len({number for number, _ in found}) == len(made)


Parts = tuple[list[tuple[bytes, object]], list[bool], int]


def identified(
    identifier: Identifier, rows: list[Row], size: int
) -> tuple[list[int], list[int], list[int]]:
    """Keys, places of duplicates and of what is undone, where so many rows come at once."""
    keys, duplicates, undone = list[int](), list[int](), list[int]()
    for begin in range(0, len(rows), size):
        found = identifier.keys(rows[begin : begin + size])
        keys += found.keys
        duplicates += [begin + place for place in found.duplicates]
        undone += [begin + place for place in found.undone]
    return keys, duplicates, undone


NAMED = st.tuples(
    st.sampled_from([b"1", b"2", b"3"]), st.one_of(st.none(), st.sampled_from(["a", "b", 7]))
)
PARTS = st.tuples(
    st.lists(NAMED, max_size=25),
    st.lists(st.booleans(), min_size=25, max_size=25),
    st.integers(1, 9),
)


@given(PARTS)
def test_rows_that_are_done_have_the_same_keys(parts: Parts) -> None:
    """What is done has the keys it has elsewhere, also where rows repeat, and only it is done."""
    rows, is_done, size = parts
    made = [row(number, content, name) for number, (content, name) in enumerate(rows, 1)]
    keys, duplicates, undone = identified(Identifier(), made, size)
    assert undone == list(range(len(made)))
    done = KeySet()
    chosen = [place for place, chosen in zip(undone, is_done, strict=False) if chosen]
    done.add_all([keys[place] for place in chosen])
    rest = [place for place in undone if place not in chosen]
    assert identified(Identifier(done), made, size) == (keys, duplicates, rest)


def test_many_equal_rows_take_one_step_each() -> None:
    calls = 0

    def count(frame: FrameType, event: str, _: object) -> None:
        nonlocal calls
        calls += "call" in event

    def calls_for(rows: int) -> int:
        nonlocal calls
        calls, identifier = 0, Identifier()
        same = [row(number, b"same") for number in range(1, rows + 1)]
        sys.setprofile(count)
        try:
            keys, *_ = identifier.keys(same)
        finally:
            sys.setprofile(None)
        assert len(set(keys)) == rows
        return calls

    assert calls_for(4000) < 2.2 * calls_for(2000)


@given(
    st.lists(
        st.tuples(
            st.sampled_from([b"1", b"2"]),
            st.none() | st.integers() | st.floats(width=16) | st.booleans() | st.text(max_size=2),
        )
    ),
    st.booleans(),
)
def test_rows_of_any_names_have_the_keys_and_marks_that_each_has_alone(
    parts: list[tuple[bytes, object]], has_unreadable: bool
) -> None:
    rows = [row(number, content, name) for number, (content, name) in enumerate(parts, 1)]
    if has_unreadable:
        rows.append(Row(len(rows) + 1, len(rows) + 1, None, b"{", "not JSON"))
    single, batched = Identifier(), Identifier()
    found = batched.keys(rows)
    alone = [single.keys([one]) for one in rows]
    assert list(found.keys) == [keys[0] for keys, *_ in alone]
    assert list(found.names) == [names[0] for *_, names in alone] == list(map(custom_id, rows))
    assert marks_of(rows) == [mark_of(one) for one in rows]


# Equal keys, 0, which is 1's, and keys that begin at the same slot or at the last one.
COLLIDING = st.sampled_from([0, 1, 2, 3, *(n << 32 for n in range(1, 6)), 1023, (7 << 32) + 1023])
MARKED = st.lists(st.tuples(COLLIDING, st.integers(0, 3)), max_size=12)


class Model:
    """What a set of marked keys is to do, by a dict."""

    def __init__(self) -> None:
        self.marks: dict[int, int] = {}

    def add_marked(self, keys: list[int], marks: list[int]) -> tuple[list[int], list[int]]:
        repeated, changed = list[int](), list[int]()
        for place, (key, mark) in enumerate(zip(keys, marks, strict=True)):
            key = key or 1
            if key not in self.marks:
                self.marks[key] = mark
            elif is_other(mark, self.marks[key]):
                self.marks[key] = mark
                changed.append(place)
            else:
                repeated.append(place)
        return repeated, changed


@given(st.lists(MARKED, max_size=5), st.integers(0, 1))
def test_marks_stay_with_their_keys_also_when_the_set_grows(
    batches: list[list[tuple[int, int]]], grown: int
) -> None:
    found, model = KeySet(), Model()
    for number, batch in enumerate(batches):
        if number == len(batches) // 2:
            # So many that all keys move to a larger array; some begin where COLLIDING do.
            more = [(n << 40) + (n if n % 10 else n % 4) for n in range(1, 700 * grown + 1)]
            found.add_all(more)
            model.marks |= dict.fromkeys(more, 0)
        keys, marks = [key for key, _ in batch], [mark for _, mark in batch]
        assert found.add_marked(keys, marks) == model.add_marked(keys, marks)
    assert len(found) == len(model.marks)
    assert found.has_marks == any(model.marks.values())
    for key, mark in model.marks.items():
        assert found.mark_of(key) == mark
        assert found.matches(key, 0)
        assert found.matches(key, 2) == (mark in (0, 2))
    assert found.mark_of(0) == model.marks.get(1, 0)
    for absent in (5, 99 << 32, (99 << 32) + 1023):
        assert not found.matches(absent, 0)
        assert found.mark_of(absent) == 0


def test_marks_of_keys_that_are_in_the_set_already() -> None:
    found = KeySet()
    keys = [number << 32 for number in range(1, 40)]
    found.add_all([*keys, 0])
    found.mark(keys, [0] * len(keys))
    assert not found.has_marks
    found.mark([*keys[:20], 0], [*range(1, 21), 77])
    assert found.has_marks
    assert [found.mark_of(key) for key in keys] == [*range(1, 21), *[0] * 19]
    assert found.mark_of(0) == 77
    found.mark(keys[:1], [5])
    assert found.mark_of(keys[0]) == 5
    with pytest.raises(ValueError, match="shorter"):
        found.mark(keys[:2], [5])


def asked(number: int, name: str | None, prompt: str) -> Row:
    data = {"prompt": prompt} if name is None else {"custom_id": name, "prompt": prompt}
    return Row(number, number, data, prompt.encode())


@given(
    st.lists(st.tuples(st.sampled_from("abc") | st.none(), st.sampled_from("xy")), max_size=9),
    st.lists(st.sampled_from("xy"), min_size=9, max_size=9),
    st.integers(1, 4),
)
def test_a_named_row_that_has_another_content_than_its_line_is_undone(
    parts: list[tuple[str | None, str]], prompts: list[str], size: int
) -> None:
    before = [asked(number, *part) for number, part in enumerate(parts, 1)]
    # A row that repeats a name is known by its content, which so must stay.
    keys, duplicates, _ = identified(Identifier(), before, size)
    firsts = [place for place in range(len(before)) if place not in duplicates]
    now = [
        asked(number, name, prompt if name and number - 1 in firsts else old)
        for number, ((name, old), prompt) in enumerate(zip(parts, prompts, strict=False), 1)
    ]
    # It is never answered.
    done = KeySet()
    done.add_all([keys[place] for place in firsts])
    done.mark([keys[place] for place in firsts], marks_of(before[place] for place in firsts))
    changed = [place for place in firsts if now[place].data != before[place].data]
    undone = sorted([*changed, *duplicates])
    assert identified(Identifier(done), now, size) == (keys, duplicates, undone)


@pytest.mark.parametrize("limit", [None, 0, 1, 300, 301, 600, 601, 5000])
def test_each_row_up_to_a_limit_comes_with_its_key_and_whether_its_name_was_there(
    limit: int | None,
) -> None:
    items = [{"custom_id": f"r{number % 400}", "prompt": str(number)} for number in range(600)]
    source = open_source(items)
    assert not isinstance(source, AsyncRows)
    found = list(keyed_rows(source, limit))
    expected = 600 if limit is None else min(limit, 600)
    assert [row.number for row, *_ in found] == list(range(1, expected + 1))
    assert [repeats for *_, repeats in found] == [number >= 400 for number in range(expected)]
    single = Identifier()
    assert [number for _, number, _ in found] == [key(single, row)[0] for row, *_ in found]


def test_a_message_is_known_by_its_stream_and_its_content() -> None:
    rows = [row(1, b"1-0 a", "x"), row(2, b"2-0 b"), row(3, b"3-0 c", "x"), row(4, b"1-0 a")]
    done = KeySet()
    keys = MessageKeys(b"one", done)
    found = keys.keys(rows)
    assert list(found.keys) == [message_key(b"one", one.content) for one in rows]
    assert list(found.names) == ["x", None, "x", None]
    assert (found.duplicates, found.undone) == ([], [0, 1, 2, 3])
    done.add_all([found.keys[0], found.keys[2]])
    assert keys.keys(rows).undone == [1]
    assert MessageKeys(b"other", done).keys(rows).undone == [0, 1, 2, 3]


# The first ten are the input of an output that commit 4294e90 began, and end with what is written
# there of the first five; the last three are in docs/results.md.
WRITTEN: list[tuple[str, str, int]] = [
    ('{"prompt": "Ticket 1."}', "537f9e60a855c8e5", 0),
    ('{"prompt": "Ticket 2."}', "8951d622c81f8dba", 0),
    ('{"prompt": "Ticket 1."}', "7997bf014e6e2ffa", 0),
    ('{"prompt": "Ticket 3."}', "77e023eeaaf50487", 0),
    ('{"prompt": "Ticket 4."}', "61cfa8e79f3211f5", 0),
    ('{"prompt": "Ticket 2."}', "7857384ecee6aecd", 0),
    ('{"prompt": "Ticket 5."}', "d42814faa07f78e4", 0),
    ('{"prompt": "Ticket 6."}', "24b64f5b19502c64", 0),
    ('{"prompt": "Ticket 1."}', "94410f9283d011fe", 0),
    ('{"prompt": "Ticket 7."}', "ad75f86ab4b2722d", 0),
    ('{"custom_id": "greet", "prompt": "Say hello."}', "f16c07d3622cad32", 0x1178E8B1),
    (
        '{"custom_id": "long", "prompt": "Count from one to a hundred.", "max_tokens": 5}',
        "714993be5e362e35",
        0xFBD973CE,
    ),
    (
        '{"custom_id": "wrong", "prompt": "Say goodbye.", "max_tokens": 0}',
        "46aa964f84b4e91b",
        0x76B4613B,
    ),
]


@pytest.mark.parametrize("part", [slice(10), slice(10, None), slice(None)])
def test_rows_have_the_keys_and_marks_that_lines_of_earlier_versions_have(part: slice) -> None:
    """With other ones, all rows of an output that is continued would be sent again."""
    written = WRITTEN[part]
    rows = [Row(1, 1, json.loads(text), text.encode()) for text, *_ in written]
    found = Identifier().keys(rows)
    assert [f"{number:016x}" for number in found.keys] == [hashed for _, hashed, _ in written]
    assert marks_of(rows) == [mark for *_, mark in written]


def test_a_named_row_whose_hash_happens_to_be_0_has_the_mark_1() -> None:
    """A mark of 0 would be an unknown one: a change of the row would go unnoticed."""
    zero, other, unnamed = asked(1, "a", "hjrchmjq"), asked(2, "b", "x"), asked(3, None, "x")
    assert mark_of(zero) == 1
    assert marks_of([zero, other]) == [1, mark_of(other)]
    assert marks_of([unnamed, zero, other]) == [0, 1, mark_of(other)]
    assert marks_of([zero, unnamed]) == [1, 0]


def test_a_row_that_is_nested_too_deeply_has_no_mark_and_the_others_keep_theirs() -> None:
    nested: list[Any] = []
    for _ in range(100_000):
        nested = [nested]
    deep = Row(1, 1, {"custom_id": "deep", "prompt": nested}, b"deep")
    rows = [asked(2, "a", "x"), deep, asked(3, None, "y"), asked(4, "b", "z")]
    first, last = mark_of(rows[0]), mark_of(rows[3])
    assert first
    assert last
    assert mark_of(deep) == 0
    assert marks_of(rows) == [first, 0, 0, last]


def test_the_largest_mark_stays_when_the_set_grows() -> None:
    found = KeySet()
    assert found.add_marked([5, 6], [2**32 - 1, 2**31]) == ([], [])
    found.add_all(range(100, 1100))
    assert (found.mark_of(5), found.mark_of(6)) == (2**32 - 1, 2**31)


def steps_of(work: Callable[[], object], event: str) -> int:
    """How many calls of Python functions, or lines, the work takes."""
    steps = 0

    def count(frame: FrameType, happened: str, _: object) -> Any:
        nonlocal steps
        steps += happened == event
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        work()
    finally:
        sys.settrace(before)
    return steps


def test_what_is_done_with_a_key_takes_a_few_steps_however_many_there_are() -> None:
    chance = random.Random(3)

    def work(count: int) -> Callable[[], object]:
        keys = [chance.getrandbits(64) for _ in range(count)]
        found = KeySet()

        def fill() -> None:
            """Half fills the slots, and then has them doubled."""
            found.add_all(keys)
            found.mark(keys, range(1, count + 1))
            assert all(found.mark_of(key) for key in keys)
            assert all(key in found for key in keys)
            found.add_all([chance.getrandbits(64) for _ in range(count // 10)])

        return fill

    assert steps_of(work(1000), "line") < 2.5 * steps_of(work(500), "line")


@pytest.mark.parametrize("name", ["r{}", None])
def test_rows_that_come_at_once_take_no_call_each(name: str | None) -> None:
    """Millions of rows are identified before the first is sent."""

    def work(count: int) -> Callable[[], object]:
        rows = [asked(n, name and name.format(n), str(n)) for n in range(count)]

        def identify() -> None:
            assert len(set(Identifier().keys(rows).keys)) == count
            assert any(marks_of(rows)) == (name is not None)

        return identify

    assert steps_of(work(2000), "call") < steps_of(work(500), "call") + 100


@pytest.mark.parametrize("name", ["r{}", None])
@pytest.mark.parametrize("share", [1, 2])
def test_many_rows_that_are_done_are_all_known_and_no_others(name: str | None, share: int) -> None:
    """So many that a key often begins at a slot that another one has."""
    rows = [asked(n, name and name.format(n), str(n)) for n in range(500)]
    done = KeySet()
    done.add_all(Identifier().keys(rows).keys[::share])
    found = Identifier(done).keys(rows)
    assert list(found.undone) == [n for n in range(500) if n % share]
    assert found.duplicates == []
    identifier = Identifier(done)
    twice = identified(identifier, rows + rows, 300)
    assert twice[0][:500] == list(found.keys)
    assert twice[1] == ([] if name is None else list(range(500, 1000)))
    assert twice[2] == [*found.undone, *range(500, 1000)]
