"""Latencies of any number of answers, in bounded memory."""

from __future__ import annotations

import math

from redline.timeline import EMPTY, Sketch, merged_sketches

_BUFFERED = 4096


class Latencies:
    """Number, maximum, and quantiles within 1 %, or 1 ms for shorter durations."""

    def __init__(self) -> None:
        self.count = 0
        self._least_s, self._most_s = math.inf, 0.0
        self._sketch = EMPTY
        self._new: list[float] = []

    def add(self, latency_s: float) -> None:
        """Adds a latency, 0 s or more."""
        self._new.append(latency_s)
        self.count += 1
        if len(self._new) >= _BUFFERED:
            self._pack()

    @property
    def most_s(self) -> float:
        """The longest, exactly; 0 without any."""
        return max(self._most_s, max(self._new, default=0.0))

    def at_s(self, share: float) -> float | None:
        """Returns the latency that this share of all, 0 to 1, does not exceed; None without any."""
        self._pack()
        if not self.count:
            return None
        # The nearest rank, from 0: of two latencies, the longer one is the 95th percentile.
        found = self._sketch.ranked_s(max(0, math.ceil(share * self.count) - 1))
        # A bucket's middle may be above all that is in it, or below.
        return min(max(found, self._least_s), self._most_s)

    def _pack(self) -> None:
        if self._new:
            self._least_s = min(self._least_s, *self._new)
            self._most_s = self.most_s
            self._sketch = merged_sketches((self._sketch, Sketch.of(self._new)))
            self._new.clear()
