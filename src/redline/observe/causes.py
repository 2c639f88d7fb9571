"""Defines the causes that can hold a job back.

cause         binds when                                       what helps
input         workers wait for rows                            a faster source
client        its process is busy, blocked or was stopped,     CPU, several processes
              or large rows fill their memory
limit         calls wait for a rate limit, or for the budget   a higher limit or budget,
                                                               another key
concurrency   all slots are in use; the endpoint is not full   more calls in flight (-c)
endpoint      more calls in flight would only queue there      another endpoint
down          the endpoint asked to wait, is unreachable or    waiting, another endpoint
              fails
writer        results wait for the disk, or to be taken        a faster disk or reader
nothing       no more rows begin, or the Batch API has them    nothing
undetermined  the samples point to none of these               observing for longer
"""

from __future__ import annotations

from enum import Enum

import msgspec


class Cause(Enum):
    """The causes of the module's table."""

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

    what: a few words, such as `200k tokens/min` or `the endpoint`; includes all limits that are
    about equally strict, and the names of their endpoints unless there are many. evidence: one
    sentence with figures.
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
        """Whether both have the same constraint, regardless of the figures."""
        return (self.cause, self.what) == (other.cause, other.what)
