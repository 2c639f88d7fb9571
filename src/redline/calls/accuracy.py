"""How far estimates were off."""

from __future__ import annotations

from collections import deque

import msgspec

# Enough to be steady, few enough to forget how it began.
_RECENT = 256


class Accuracy(msgspec.Struct, frozen=True):
    """Errors of estimates relative to what was used, weighted by tokens, over the latest `calls`.

    bias: signed, above 0 where too much was estimated. absolute: 0 or more. 0.08 is 8 %. Both are
    None before the first reply.
    """

    calls: int = 0
    bias: float | None = None
    absolute: float | None = None


class TokenAccuracy(msgspec.Struct, frozen=True):
    """Of input and output. An output is estimated high on purpose, so its bias is above 0."""

    input: Accuracy
    output: Accuracy


class Comparison:
    """Estimates beside what was used, of the last 256 calls."""

    def __init__(self) -> None:
        self._pairs: deque[tuple[int, int]] = deque(maxlen=_RECENT)

    def add(self, estimated: int, used: int) -> None:
        self._pairs.append((estimated, used))

    def accuracy(self) -> Accuracy:
        used = sum(pair[1] for pair in self._pairs)
        if not used:
            return Accuracy(len(self._pairs))
        off = [estimated - used for estimated, used in self._pairs]
        return Accuracy(len(off), sum(off) / used, sum(map(abs, off)) / used)
