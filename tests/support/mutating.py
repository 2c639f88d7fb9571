"""Seeded faults in bytes, and bytes cut into random pieces, for both fuzzers."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise


def mutated(
    rng: random.Random, data: bytes, tokens: Sequence[bytes], seeds: Sequence[bytes]
) -> bytes:
    """The data with one fault. tokens: what is put in. seeds: what may replace its end."""
    at = rng.randrange(len(data) + 1)
    size = rng.choice((1, 1, 2, 5, 20, 100))
    kind = rng.randrange(7)
    if kind == 0:
        return data[:at] + bytes((rng.randrange(256),)) + data[at + 1 :]
    if kind == 1:
        return data[:at] + data[at + size :]
    if kind == 2:
        return data[: at + size] + data[at:]
    if kind == 3:
        return data[:at] + rng.choice(tokens) + data[at:]
    if kind == 4:
        other = rng.choice(seeds)
        return data[:at] + other[rng.choice((0, rng.randrange(len(other)))) :]
    if kind == 5:
        return data[:at]
    # A token behind a line's end, where it is a header or a chunk of its own.
    places = [i + 2 for i in range(len(data) - 1) if data[i : i + 2] == b"\r\n"] or [at]
    place = rng.choice(places)
    return data[:place] + rng.choice(tokens) + data[place:]


def cut(rng: random.Random, data: bytes) -> list[bytes]:
    """The data in up to 50 pieces, or byte by byte."""
    most = rng.choice((1, 2, 3, 10, 50))
    if not data:
        return []
    if rng.random() < 0.1 and len(data) < 600:
        return [data[at : at + 1] for at in range(len(data))]
    edges = sorted({0, len(data), *(rng.randrange(len(data)) for _ in range(most - 1))})
    return [data[a:b] for a, b in pairwise(edges)]
