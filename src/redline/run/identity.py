"""Which row is which: 64-bit keys, and sets of them that cost 16 to 32 bytes a row.

A row is its `custom_id` where it has one. Otherwise it is its content and the count of equal rows
before it, so that rows may be added anywhere without making the others new. Two of 10 million
64-bit keys are equal with a probability of 3 in a million (n^2 / 2^65).
"""

from __future__ import annotations

from array import array
from hashlib import blake2b

from redline.run.source import Row

_FIRST_SLOTS = 1024


class KeySet:
    """A set of 64-bit keys: open addressing over one flat array.

    One thread adds, any thread may look keys up at the same time.
    """

    def __init__(self) -> None:
        self._slots = array("Q", bytes(8 * _FIRST_SLOTS))
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, key: int) -> bool:
        if not self._count:
            return False
        key = key or 1
        slots = self._slots
        # As in _find, without the call: a resume does this for each row that is done.
        mask = len(slots) - 1
        at = key & mask
        while (found := slots[at]) and found != key:
            at = (at + 1) & mask
        return found != 0

    def add(self, key: int) -> bool:
        """Puts `key` in, 0..2^64-1; False if it was there."""
        key = key or 1  # 0 marks a free slot
        slots = self._slots
        # As in _find, too.
        mask = len(slots) - 1
        at = key & mask
        while found := slots[at]:
            if found == key:
                return False
            at = (at + 1) & mask
        slots[at] = key
        self._count += 1
        if self._count * 2 >= len(slots):
            self._grow()
        return True

    def _grow(self) -> None:
        larger = array("Q", bytes(16 * len(self._slots)))
        for key in self._slots:
            if key:
                larger[_find(larger, key)] = key
        # In one step: a row looked up in a half-filled array would be taken for one to do.
        self._slots = larger


def _find(slots: array[int], key: int) -> int:
    """Where `key` stands, or the free slot where it would."""
    mask = len(slots) - 1
    at = key & mask
    while (found := slots[at]) and found != key:
        at = (at + 1) & mask
    return at


class Identifier:
    """The key of each row of one pass over the input, in input order."""

    def __init__(self) -> None:
        self._seen = KeySet()
        self._copies: dict[int, int] = {}

    def key(self, row: Row) -> tuple[int, bool]:
        """The row's key, and whether its custom_id is one that an earlier row already has."""
        name = custom_id(row)
        if name is not None:
            text = b"custom_id:" + name.encode("utf-8", "surrogatepass")
            key = int.from_bytes(blake2b(text, digest_size=8).digest(), "big")
            if self._seen.add(key):
                return key, False
        key = _hash(b"content:" + row.content)
        while not self._seen.add(key):
            # The n-th copy of a row: only rows that repeat cost a dictionary entry.
            first = _hash(b"content:" + row.content)
            copy = self._copies[first] = self._copies.get(first, 0) + 1
            key = _hash(b"copy %d:" % copy + row.content)
        return key, name is not None


def custom_id(row: Row) -> str | None:
    """The row's own name, None where it has none. A number counts as its decimal digits."""
    data = row.data
    value = data.get("custom_id") if data is not None else None
    if value and isinstance(value, str):
        return value
    return str(value) if type(value) is int else None


def _hash(data: bytes) -> int:
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "big")
