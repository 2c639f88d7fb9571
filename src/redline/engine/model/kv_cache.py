"""Stores the keys and values of sequences: a slot for each sequence, and tensors for each layer.

A slot has room for the longest possible sequence. On a CPU, memory is allocated only when it is
written, so an empty slot costs nothing; the scheduler bounds the total that may be written.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

# The number of keys that a query sees is rounded up to a multiple of this, so that shapes seldom
# change.
BUCKET = 16


class Shape(NamedTuple):
    """The size of a cache. kv_heads: key/value heads in this rank. capacity: tokens per slot."""

    layers: int
    slots: int
    kv_heads: int
    capacity: int
    head_size: int

    def nbytes(self, dtype: torch.dtype) -> int:
        """Returns the size of all keys and values in bytes."""
        tokens = self.slots * bucketed(self.capacity)
        return 2 * self.layers * tokens * self.kv_heads * self.head_size * dtype.itemsize


class SlotCache:
    """The keys and values of each layer, as tensors (slots, kv_heads, capacity, head_size).

    Their capacity is that of the shape, rounded up to a multiple of BUCKET.
    """

    def __init__(self, shape: Shape, dtype: torch.dtype, device: torch.device) -> None:
        capacity = bucketed(shape.capacity)
        size = (shape.slots, shape.kv_heads, capacity, shape.head_size)
        self.shape = shape
        # Zeros, because unwritten values are multiplied by a weight of zero.
        self.keys = [torch.zeros(size, dtype=dtype, device=device) for _ in range(shape.layers)]
        self.values = [torch.zeros(size, dtype=dtype, device=device) for _ in range(shape.layers)]

    def write(self, layer: int, places: tuple[Tensor, Tensor], key: Tensor, value: Tensor) -> None:
        """Stores the keys and values of N tokens in one layer.

        places: slots and positions, both (N,). key, value: (N, kv_heads, head_size).
        """
        slots, positions = places
        self.keys[layer][slots, :, positions] = key
        # Leftover values are multiplied by a weight of zero later, which NaN and inf would survive.
        self.values[layer][slots, :, positions] = value.nan_to_num()

    def copy(self, source: int, target: int, tokens: int) -> None:
        """Copies the keys and values of the first `tokens` tokens from one slot to another."""
        for kept in (*self.keys, *self.values):
            kept[target, :, :tokens] = kept[source, :, :tokens]


def bucketed(tokens: int) -> int:
    """Returns `tokens` rounded up to a multiple of BUCKET."""
    return -(-tokens // BUCKET) * BUCKET
