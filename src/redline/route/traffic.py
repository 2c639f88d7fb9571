"""The traffic of a pool, in counters that never decrease."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

import msgspec

# A wait is counted in a logarithmic bucket, which is 5 % wide.
_CLASS = math.log(1.05)
_LEAST_S = 1e-4


class Traffic(msgspec.Struct):
    """Calls of a pool.

    answered: calls that succeeded. unanswered: calls that ended in any other way. served_s: seconds
    from the write of the last attempt to the end of its answer, summed over answered calls.
    waits: how many calls have waited for an endpoint, by bucket of the duration.
    """

    answered: int = 0
    unanswered: int = 0
    served_s: float = 0.0
    waits: Counter[int] = msgspec.field(default_factory=Counter)

    @property
    def ended(self) -> int:
        """Calls that have ended, with any outcome."""
        return self.answered + self.unanswered

    def take_waits(self) -> Counter[int]:
        """The waits since the last call of this method."""
        waits, self.waits = self.waits, Counter()
        return waits


def wait_class(wait_s: float) -> int:
    """The bucket of a wait."""
    return round(math.log(max(wait_s, _LEAST_S)) / _CLASS)


def quantile_s(share: float, calls: int, waits: Iterable[Counter[int]]) -> float:
    """The wait that this share of the calls did not exceed, within 5 %.

    calls: all of them. waits: of those that waited at all.
    """
    total = sum(waits, Counter[int]())
    above = calls - math.ceil(share * calls)
    for found in sorted(total, reverse=True):
        above -= total[found]
        if above < 0:
            return math.exp(found * _CLASS)
    return 0.0
