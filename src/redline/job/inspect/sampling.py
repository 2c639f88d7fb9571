"""Draws a sample of rows that is the same each time, and the same in every output of these rows.

A row's rank is a hash of its key and the seed; the rows with the lowest ranks make up the sample.
So every row is equally likely to be drawn, and the order of the rows does not matter.
"""

from __future__ import annotations

from heapq import heappush, heappushpop
from typing import Generic, TypeVar

Item = TypeVar("Item")

_MASK = 2**64 - 1
# Odd, so that different keys get different ranks. 2^64 divided by the golden ratio (Knuth, TAOCP 3,
# 6.4).
_FACTOR = 0x9E3779B97F4A7C15


class Sample(Generic[Item]):
    """Keeps a sample of at most `size` of the rows that are offered. seed: any integer."""

    def __init__(self, size: int, seed: int = 0) -> None:
        self._size = size
        self._salt = (seed + 1) * 0xD1B54A32D192ED03 & _MASK
        # A heap, the highest rank first. Each entry: the negative rank, `offered`, the item.
        self._kept: list[tuple[int, int, Item]] = []
        self.offered = 0

    def offer(self, key: int, item: Item) -> None:
        """Keeps the item if its row's rank is among the lowest so far. key: the row's, 64 bits."""
        self.offered += 1
        # Keys are hashes already, so two multiplications with a fold between them mix enough.
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
