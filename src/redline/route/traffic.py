"""Counts the traffic of a pool; only the counter `waits` is ever reset."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

import msgspec

# Waits are counted in logarithmic buckets, each 5 % wide.
_CLASS = math.log(1.05)
_LEAST_S = 1e-4


class Traffic(msgspec.Struct):
    """Counts a pool's calls and their times.

    answered: calls that succeeded. unanswered: calls that ended in any other way. served_s: seconds
    from the write of the last attempt to the end of its answer, summed over answered calls.
    waits: the number of calls that have waited for an endpoint, by bucket of the wait.
    """

    answered: int = 0
    unanswered: int = 0
    served_s: float = 0.0
    waits: Counter[int] = msgspec.field(default_factory=Counter)

    @property
    def ended(self) -> int:
        """The number of calls that have ended, with any outcome."""
        return self.answered + self.unanswered

    def take_waits(self) -> Counter[int]:
        """Returns the waits since this method was last called, and resets them."""
        waits, self.waits = self.waits, Counter()
        return waits


def wait_class(wait_s: float) -> int:
    """Returns the bucket of a wait."""
    return round(math.log(max(wait_s, _LEAST_S)) / _CLASS)


def quantile_s(share: float, calls: int, waits: Iterable[Counter[int]]) -> float:
    """Returns the wait in seconds that this share of the calls did not exceed, within 5 %.

    calls: the number of all calls. waits: the buckets of the calls that waited.
    """
    total = sum(waits, Counter[int]())
    above = calls - math.ceil(share * calls)
    for found in sorted(total, reverse=True):
        above -= total[found]
        if above < 0:
            return math.exp(found * _CLASS)
    return 0.0
