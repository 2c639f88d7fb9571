"""A sample of rows that is the same each time, and the same in every output of these rows.

A row's rank is a hash of its key and the seed; the rows of the lowest ranks make up the sample. So
each row is as likely as any other, and neither order nor repetition matters.
"""

from __future__ import annotations

from heapq import heappush, heappushpop
from typing import Generic, TypeVar

Item = TypeVar("Item")

_MASK = 2**64 - 1
# Odd, so that no two keys get one rank: 2^64 divided by the golden ratio (Knuth, TAOCP 3, 6.4).
_FACTOR = 0x9E3779B97F4A7C15


class Sample(Generic[Item]):
    """At most `size` of the rows that are offered. seed: any whole number."""

    def __init__(self, size: int, seed: int = 0) -> None:
        self._size = size
        self._salt = (seed + 1) * 0xD1B54A32D192ED03 & _MASK
        # The highest rank first.
        self._kept: list[tuple[int, int, Item]] = []
        self.offered = 0

    def offer(self, key: int, item: Item) -> None:
        """Takes a row by its key, 64 bits, if its rank is among the lowest so far."""
        self.offered += 1
        # Keys are hashes already; the fold brings their low bits into the high ones of the rank.
        mixed = (key ^ self._salt) * _FACTOR & _MASK
        rank = (mixed ^ mixed >> 32) * _FACTOR & _MASK
        entry = (-rank, self.offered, item)
        if len(self._kept) < self._size:
            heappush(self._kept, entry)
        elif self._kept and entry > self._kept[0]:
            heappushpop(self._kept, entry)

    def items(self) -> list[Item]:
        """Returns the sampled items, in the order in which they were offered."""
        return [item for _, _, item in sorted(self._kept, key=lambda entry: entry[1])]
