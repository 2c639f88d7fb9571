"""Identifies rows by 64-bit keys, and keeps large sets of keys at 16 to 32 bytes per key.

A row is identified by its `custom_id` if it has one, otherwise by its content and the number of
identical rows before it, so rows may be added anywhere and the other rows keep their keys. Among 10
million rows, the probability that any two keys collide is 3 in a million (n^2 / 2^65).

A named row (one with a `custom_id`) also has a mark: a 32-bit hash of its content, which is stored
in its line of the results. A row whose mark has changed since it was answered is sent again. One
change in 4 billion goes unnoticed.
"""

from __future__ import annotations

import sys
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import blake2b
from itertools import islice, repeat
from operator import attrgetter
from typing import Any, NamedTuple
from zlib import crc32

import msgspec

from redline.sources import Row, Source, custom_id, message_key

_FIRST_SLOTS = 1024
_KEY_BYTES = 8
# Hashes of the prefixes. Copying a hash that has read its prefix takes half the time of a new one.
_NAMED = blake2b(b"custom_id:", digest_size=_KEY_BYTES)
_UNNAMED = blake2b(b"content:", digest_size=_KEY_BYTES)
# Neither spaces nor the order of columns may change the mark of a row.
_CANONICAL = msgspec.json.Encoder(order="sorted")
# For `map`, which runs no Python bytecode per row if the function is written in C.
_data_of = attrgetter("data")
_content_of = attrgetter("content")
_encoded: Callable[[Any, str, str], bytes] = str.encode
_copied, _updated, _digest_of = blake2b.copy, blake2b.update, blake2b.digest


class KeySet:
    """A set of 64-bit keys: open addressing over one flat array.

    A key may have a 32-bit mark, 0 for none; marks cost 8 to 16 bytes more per key. Only one thread
    may add keys, while any thread may look them up. Other threads may read marks only once all of
    them are set.
    """

    def __init__(self) -> None:
        self._slots = array("Q", [0]) * _FIRST_SLOTS
        self._marks: array[int] | None = None
        self._count = 0
        self._expected = 0

    def __len__(self) -> int:
        return self._count

    @property
    def has_marks(self) -> bool:
        """Whether any key has a mark."""
        return self._marks is not None

    def __contains__(self, key: int) -> bool:
        if not self._count:
            return False
        key = key or 1
        slots = self._slots
        mask = len(slots) - 1
        at = key & mask
        while (found := slots[at]) and found != key:
            at = (at + 1) & mask
        return found != 0

    def add(self, key: int) -> bool:
        """Adds `key`, 0..2^64-1; returns False if it was already in the set."""
        return self.add_all((key,)) == 1

    def add_all(self, keys: Sequence[int], start: int = 0) -> int:
        """Adds the keys at index `start` and later, up to the first that is already in the set.

        Returns the index of that key; the number of keys if there is none.
        """
        self._make_room(len(keys) - start)
        slots = self._slots
        mask = len(slots) - 1
        for place, key in enumerate(islice(keys, start, None), start):
            key = key or 1  # 0 marks a free slot
            at = key & mask
            while found := slots[at]:
                if found == key:
                    self._count += place - start
                    return place
                at = (at + 1) & mask
            slots[at] = key
        self._count += len(keys) - start
        return len(keys)

    def add_each(self, keys: Sequence[int]) -> list[int]:
        """Adds all the keys; returns the indices of the keys that were already in the set."""
        places = []
        place = 0
        while (place := self.add_all(keys, place)) < len(keys):
            places.append(place)
            place += 1
        return places

    def add_marked(self, keys: Sequence[int], marks: Sequence[int]) -> tuple[list[int], list[int]]:
        """Adds all the keys with their marks; returns two lists of indices of existing keys.

        The first list is of keys with the same mark or an unknown one, the second of keys with
        a different mark, which is replaced.
        """
        repeated: list[int] = []
        changed: list[int] = []
        start = 0
        while (place := self.add_all(keys, start)) < len(keys):
            self.mark(keys[start:place], marks[start:place])
            if is_other(marks[place], self.mark_of(keys[place])):
                changed.append(place)
                self.mark(keys[place : place + 1], marks[place : place + 1])
            else:
                repeated.append(place)
            start = place + 1
        self.mark(keys[start:], marks[start:])
        return repeated, changed

    def mark(self, keys: Sequence[int], marks: Sequence[int]) -> None:
        """Sets the marks of these keys, which must all be in the set."""
        if self._marks is None:
            if not any(marks):
                return
            self._marks = array("I", [0]) * len(self._slots)
        slots, own = self._slots, self._marks
        mask = len(slots) - 1
        for key, mark in zip(keys, marks, strict=True):
            key = key or 1
            at = key & mask
            while slots[at] != key:
                at = (at + 1) & mask
            own[at] = mark

    def mark_of(self, key: int) -> int:
        """Returns the key's mark; 0 if it has none or is not in the set."""
        if self._marks is None:
            return 0
        key = key or 1
        slots = self._slots
        mask = len(slots) - 1
        at = key & mask
        while (found := slots[at]) and found != key:
            at = (at + 1) & mask
        return self._marks[at]

    def matches(self, key: int, mark: int) -> bool:
        """Whether the key is in the set with this mark; an unknown mark, 0, matches any mark."""
        return key in self and not is_other(mark, self.mark_of(key))

    def foresee(self, share: float) -> None:
        """Sets the estimated share of the final keys in the set so far, above 0, at most 1.

        With an estimate, the keys are moved into a larger array half as often. If the estimate is
        wrong, the array may be twice as large as needed.
        """
        self._expected = round(self._count / share)

    def _make_room(self, count: int) -> None:
        """Grows the array so that `count` more keys leave more than half of its slots free."""
        needed = _slots_for(self._count + count, len(self._slots))
        if needed > len(self._slots):
            steps = (_slots_for(self._expected, needed) // needed).bit_length() - 1
            # Grow by a factor of 4 each time, except perhaps the first, so that the last step ends
            # at the expected size.
            self._grow(needed << steps % 2)

    def _grow(self, size: int) -> None:
        larger = array("Q", [0]) * size
        mask = size - 1
        for key in filter(None, self._slots):
            at = key & mask
            while larger[at]:
                at = (at + 1) & mask
            larger[at] = key
        if self._marks is not None:
            self._marks = self._moved_marks(larger)
        # Assigned only once filled: another thread's lookup in a half-filled array would miss keys.
        self._slots = larger

    def _moved_marks(self, larger: array[int]) -> array[int]:
        """Returns the marks, each at the index that its key has in the larger array of slots."""
        assert self._marks is not None
        moved = array("I", [0]) * len(larger)
        mask = len(larger) - 1
        for key, mark in zip(self._slots, self._marks, strict=True):
            if mark:
                at = key & mask
                while larger[at] != key:
                    at = (at + 1) & mask
                moved[at] = mark
        return moved


def is_other(mark: int, than: int) -> bool:
    """Whether both marks are known and differ."""
    return bool(mark and than) and mark != than


def marks_of(rows: Iterable[Row]) -> list[int]:
    """Returns the mark of each row; see `mark_of`."""
    rows = list(rows)
    names = _names_of(rows)
    if not any(names):
        return [0] * len(rows)
    try:
        marks = list(map(crc32, map(_CANONICAL.encode, map(_data_of, rows))))
    except (TypeError, ValueError, RecursionError):
        return list(map(mark_of, rows))
    if all(names) and all(marks):
        return marks
    return [(mark or 1) if name else 0 for name, mark in zip(names, marks, strict=True)]


def mark_of(row: Row) -> int:
    """Returns a hash of a named row's content, 1 to 2^32 - 1; 0 for a row without a name.

    Rows with the same values have the same mark, regardless of spaces and the order of columns.
    Also 0 for a row that cannot be encoded, such as one nested too deeply: its content is never
    compared.
    """
    data = row.data
    name = None if data is None else data.get("custom_id")
    if not name if type(name) is str else custom_id(row) is None:
        return 0
    try:
        return crc32(_CANONICAL.encode(data)) or 1
    except (TypeError, ValueError, RecursionError):
        return 0


def _names_of(rows: Sequence[Row]) -> Sequence[str | None]:
    """Returns the `custom_id` of each row; None for a row without one."""
    try:
        names = list(map(dict.get, map(_data_of, rows), repeat("custom_id")))
    except TypeError:
        # Some row cannot be read.
        return list(map(custom_id, rows))
    kinds = set(map(type, names))
    if kinds == {type(None)} or (kinds == {str} and "" not in names):
        return names
    return list(map(custom_id, rows))


def _slots_for(count: int, least: int) -> int:
    """Returns `least`, doubled until `count` keys fill less than half of that many slots."""
    while 2 * count >= least:
        least *= 2
    return least


class _Taken:
    """The keys that input rows have taken so far. done: the keys of rows that are done."""

    def __init__(self, done: KeySet) -> None:
        self._done = done._slots
        self._marks = done._marks
        self._has_done = len(done) > 0
        # For each slot of `done`, whether its key is taken.
        self._claimed = bytearray(len(self._done) if self._has_done else 0)
        self.others = KeySet()
        # The index of each row just taken that is done and has a mark, and the mark of its line.
        self.marked: list[tuple[int, int]] = []

    def take(self, keys: Sequence[int], start: int, undone: list[int]) -> int:
        """Takes the keys at index `start` and later, up to the first that was taken before.

        Returns the index of that key; the number of keys if there is none. Appends to `undone` the
        indices of the keys that this call took and that are not done.
        """
        if not self._has_done:
            end = self.others.add_all(keys, start)
            undone += range(start, end)
            return end
        slots, claimed, marks = self._done, self._claimed, self._marks
        mask = len(slots) - 1
        for place in range(start, len(keys)):
            key = keys[place] or 1
            at = key & mask
            while (found := slots[at]) and found != key:
                at = (at + 1) & mask
            if not found:
                if not self.others.add(key):
                    return place
                undone.append(place)
            elif claimed[at]:
                return place
            else:
                claimed[at] = 1
                if marks is not None and marks[at]:
                    self.marked.append((place, marks[at]))
        return len(keys)


class Identified(NamedTuple):
    """The keys and names of a list of rows, and the indices of duplicates and undone rows.

    keys, names: the key and the custom_id of each row; None without one. duplicates: the indices of
    rows with the custom_id of an earlier row. undone: the indices of rows that are not done yet.
    """

    keys: array[int]
    duplicates: list[int]
    undone: Sequence[int]
    names: Sequence[str | None]


class Identifier:
    """Makes the keys of rows in one pass over the input, in input order.

    done: the keys of rows that are done; no key may be added to it afterwards. An input row with
    one of these keys only sets a flag for the key, which is not stored a second time.
    """

    def __init__(self, done: KeySet | None = None) -> None:
        self._taken = _Taken(done if done is not None else KeySet())
        self._copies: dict[int, int] = {}

    def foresee(self, share: float) -> None:
        """Sets the estimated share of the input identified so far, above 0, at most 1."""
        self._taken.others.foresee(share)

    def keys(self, rows: Sequence[Row]) -> Identified:
        """Returns the rows' keys, and which of the rows are duplicates or undone."""
        names = _names_of(rows)
        digests = _digests(rows, names)
        keys = array("Q", digests)
        if sys.byteorder == "little":
            keys.byteswap()
        duplicates: list[int] = []
        undone: list[int] = []
        place = 0
        while (place := self._taken.take(keys, place, undone)) < len(keys):
            keys[place] = self._key_of_copy(rows[place], place, undone)
            if names[place] is not None:
                duplicates.append(place)
            place += 1
        self._undo_changed(rows, undone)
        return Identified(keys, duplicates, undone, names)

    def _undo_changed(self, rows: Sequence[Row], undone: list[int]) -> None:
        """Adds to `undone` the rows whose content has changed since their lines were written."""
        marked = self._taken.marked
        changed = [place for place, mark in marked if is_other(mark_of(rows[place]), mark)]
        marked.clear()
        if changed:
            undone += changed
            undone.sort()

    def _key_of_copy(self, row: Row, place: int, undone: list[int]) -> int:
        """Returns the key of a row whose first key is taken: a hash of its content and copy number.

        Only repeated rows cost a dictionary entry.
        """
        key = first = _hash(b"content:" + row.content)
        is_undone: list[int] = []
        while not self._taken.take((key,), 0, is_undone):
            copy = self._copies[first] = self._copies.get(first, 0) + 1
            key = _hash(b"copy %d:" % copy + row.content)
        if is_undone:
            undone.append(place)
        return key


def keyed_rows(source: Source, limit: int | None = None) -> Iterator[tuple[Row, int, bool]]:
    """Yields each row up to number `limit`, its key, and whether its custom_id is a duplicate."""
    identifier = Identifier()
    for batch in source.batches():
        rows = [row for row in batch if limit is None or row.number <= limit]
        keys, duplicates, _, _ = identifier.keys(rows)
        for place, key in enumerate(keys):
            yield rows[place], key, place in duplicates
        if len(rows) < len(batch):
            return


class MessageKeys:
    """Makes the keys of a stream's messages, which need no memory: no message occurs twice.

    A row's content is its message's id and fields. The id alone is not enough: it can occur again
    with other fields, in a stream that was deleted and filled again.
    """

    def __init__(self, stream: bytes, done: KeySet) -> None:
        self._stream = stream
        self._done = done

    def foresee(self, share: float) -> None:
        """Does nothing, because no keys are kept."""

    def keys(self, rows: Sequence[Row]) -> Identified:
        """Returns the rows' keys, and which of the rows are undone; there are no duplicates."""
        keys = array("Q", [message_key(self._stream, row.content) for row in rows])
        undone = [place for place, key in enumerate(keys) if key not in self._done]
        return Identified(keys, [], undone, _names_of(rows))


def _digests(rows: Sequence[Row], names: Sequence[str | None]) -> bytes:
    """Returns the joined hashes of the rows: of a row's name, or of its content if it has none."""
    if None not in names:
        begun: Iterable[blake2b] = repeat(_NAMED, len(rows))
        hashed: Iterable[bytes] = map(_encoded, names, repeat("utf-8"), repeat("surrogatepass"))
    elif not any(names):
        begun = repeat(_UNNAMED, len(rows))
        hashed = map(_content_of, rows)
    else:
        begun = [_UNNAMED if name is None else _NAMED for name in names]
        hashed = [
            row.content if name is None else name.encode("utf-8", "surrogatepass")
            for row, name in zip(rows, names, strict=True)
        ]
    hashes = list(map(_copied, begun))
    deque(map(_updated, hashes, hashed), maxlen=0)
    return b"".join(map(_digest_of, hashes))


def _hash(data: bytes) -> int:
    return int.from_bytes(blake2b(data, digest_size=_KEY_BYTES).digest(), "big")
