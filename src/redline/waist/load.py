"""Describes the load of a backend, for pools, health pages and the diagnosis of what binds.

state     meaning                                               may change to
starting  it is being prepared, and takes no call yet           any other
warming   it takes few calls, until enough have succeeded       ready, degraded, draining, gone
ready     it answers, or no fault is known                      degraded, draining, gone
degraded  its last calls have failed; it is tried now and then  warming, ready, draining, gone
draining  it finishes its calls, and takes no new ones          gone
gone      it takes no calls                                     starting, ready
"""

from __future__ import annotations

import math
from enum import Enum

import msgspec


class Health(Enum):
    """The states of a backend; see the module's table."""

    STARTING = "starting"
    WARMING = "warming"
    READY = "ready"
    DEGRADED = "degraded"
    DRAINING = "draining"
    GONE = "gone"


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """The load of a backend at one moment.

    in_flight: calls that hold a slot. waiting: calls that wait for a slot, or that hold a slot and
    wait for the limits. queued: calls that wait for a slot. slots: maximum calls in flight, 0 if
    the backend has no bound of its own. ahead_free: for an endpoint, how many more calls may take a
    connection and wait for the limits.
    room_s: seconds until one more call could start, after the calls that are waiting; 0 if it could
    start now, inf if it can never start. If the call lacks only a slot, an arbitrary number above
    0, since it is not known when a slot becomes free.
    steady: with fewer calls in flight than this, the backend has room for another call, until a
    call has failed; 0 if its room depends on more than the number of calls.
    parked_until_s: monotonic time before which no call starts; -inf if the backend is not parked.
    opens_s: monotonic time before which the backend takes no call, since its limits would hold the
    call for long; -inf if it may take one at any time.
    next_s: monotonic time before which no call starts, because the endpoint asked redline to wait
    or the first call in the queue waits for a limit; -inf if neither applies. The pauses that
    redline makes between attempts to connect to an endpoint that is down do not count.
    tokens_out: the input and output tokens, together, that the calls on the wire are expected to
    use, if a limit counts tokens; otherwise 0.
    binds: the limit or resource that holds the next call back, in words; empty if none does.
    """

    state: Health = Health.READY
    in_flight: int = 0
    waiting: int = 0
    queued: int = 0
    slots: int = 0
    ahead_free: int = 0
    steady: int = 0
    room_s: float = 0.0
    parked_until_s: float = -math.inf
    opens_s: float = -math.inf
    next_s: float = -math.inf
    tokens_out: int = 0
    binds: str = ""

    @property
    def is_full(self) -> bool:
        """Whether another call would have to wait for a slot."""
        return 0 < self.slots <= self.in_flight

    @property
    def is_down(self) -> bool:
        """Whether the backend cannot be used now, or is only tried now and then."""
        return self.state in (Health.DEGRADED, Health.GONE)
