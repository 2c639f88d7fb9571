"""Defines the state of a class, for pages and metrics."""

from __future__ import annotations

from collections import Counter
from typing import Self

import msgspec


class ClassLoad(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one class.

    waiting, in_flight: calls now. admitted: all calls that have started. refused: all calls that
    were refused, by reason: `tenant` (the tenant had its maximum number of waiting calls), `class`
    (the class had), `wait` (the call would have waited too long), `late` (it waited too long).
    oldest_wait_s: the longest wait so far of a waiting call; 0 if there is none.
    """

    name: str
    waiting: int
    in_flight: int
    admitted: int
    refused: dict[str, int]
    oldest_wait_s: float

    def with_counts(self, other: Self) -> Self:
        """Returns this state with the counts of the other state added."""
        return msgspec.structs.replace(
            self,
            admitted=self.admitted + other.admitted,
            refused=dict(Counter(self.refused) + Counter(other.refused)),
        )
