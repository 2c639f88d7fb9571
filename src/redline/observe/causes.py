"""The possible causes that hold a job back.

cause         holds when                                       what helps
input         workers wait for rows                            a faster source
client        the process works, or was stopped                CPU, several processes
limit         calls wait for a rate limit, which has a name    a higher limit, another key
concurrency   all slots are in use                             -c
endpoint      the same, and more calls would only queue there  another endpoint
down          the endpoint asked to wait, is unreachable or    waiting; nothing is lost
              fails
writer        results wait for the disk, or to be taken        a faster disk or reader
nothing       all rows are in hand                             nothing
undetermined  the samples decide for none of these             a longer observation
"""

from __future__ import annotations

from enum import Enum

import msgspec


class Cause(Enum):
    """The causes of the table above."""

    INPUT = "input"
    CLIENT = "client"
    LIMIT = "limit"
    CONCURRENCY = "concurrency"
    ENDPOINT = "endpoint"
    DOWN = "down"
    WRITER = "writer"
    NOTHING = "nothing"
    UNDETERMINED = "undetermined"


class Binding(msgspec.Struct, frozen=True):
    """What held a run back from begin_s to end_s, seconds since the run began.

    what: in a few words, such as `200k tokens/min`, or `the endpoint`; two limits that are nearly
    equally strict are named together. evidence: one sentence with figures.
    """

    cause: Cause
    what: str
    evidence: str
    begin_s: float
    end_s: float

    @property
    def span_s(self) -> float:
        return self.end_s - self.begin_s

    def is_same(self, other: Binding) -> bool:
        """Whether both have the same constraint, whatever the figures."""
        return (self.cause, self.what) == (other.cause, other.what)
