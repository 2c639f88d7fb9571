"""The state of a class, for pages and metrics."""

from __future__ import annotations

from collections import Counter
from typing import Self

import msgspec


class ClassLoad(msgspec.Struct, frozen=True, kw_only=True):
    """One class. Counts are since the start.

    waiting, in_flight: calls now. admitted: started calls. refused: refused calls by reason:
    `tenant` (the maximum number of the tenant's calls waits), `class` (the same for the class),
    `wait` (the call would wait too long), `late` (it waited too long). oldest_wait_s: 0 if no call
    waits.
    """

    name: str
    waiting: int
    in_flight: int
    admitted: int
    refused: dict[str, int]
    oldest_wait_s: float

    def with_counts(self, other: Self) -> Self:
        """This state, with the counts of the other one added."""
        return msgspec.structs.replace(
            self,
            admitted=self.admitted + other.admitted,
            refused=dict(Counter(self.refused) + Counter(other.refused)),
        )
