"""What a backend says of itself: to a pool, to a health page, and of what holds it back.

state     meaning                                               may turn to
starting  it is being made ready, and takes no call yet         warming, ready, degraded, gone
warming   it takes calls, and answers more slowly than it will  ready, degraded, gone
ready     it answers, or nothing is known to be wrong           degraded, draining, gone
degraded  its last calls have failed; it is tried now and then  ready, draining, gone
draining  it ends what it has, and takes no new call            gone
gone      it takes no call                                      starting, ready
"""

from __future__ import annotations

import math
from enum import Enum

import msgspec

from redline.limits.rule import Kind, Rate


class Health(Enum):
    """The states of the table above."""

    STARTING = "starting"
    WARMING = "warming"
    READY = "ready"
    DEGRADED = "degraded"
    DRAINING = "draining"
    GONE = "gone"


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """A backend at one moment.

    in_flight: calls that hold a slot. waiting: calls that wait, for a slot or with one for the
    limits. slots: how many calls it holds at once, 0 if it has no bound of its own. ahead_free: how
    many more calls may get ready to wait for the limits, of an endpoint.
    room_s: seconds until a call could start, behind those that are waiting; 0 now. If only a slot
    is missing, it is above 0 and says no more: when an answer ends is not known.
    steady: calls in flight below which it has room for another one, until one has failed; 0 if that
    depends on more than their number.
    parked_until_s: no call starts before, by the monotonic clock; -inf if it is not parked.
    next_s: no call starts before, by the monotonic clock: because the endpoint asked to wait, or
    because the call that is first in the queue waits for a limit; -inf if neither is so. It leaves
    out pauses of our own, between connections to an endpoint that is down.
    tokens_out: input and output tokens that the calls on the wire are expected to use, if a limit
    counts tokens.
    binds: which limit or resource holds the next call, in words; empty if none does.
    """

    state: Health = Health.READY
    in_flight: int = 0
    waiting: int = 0
    slots: int = 0
    ahead_free: int = 0
    steady: int = 0
    room_s: float = 0.0
    parked_until_s: float = -math.inf
    next_s: float = -math.inf
    tokens_out: int = 0
    binds: str = ""


class Backlog(msgspec.Struct, frozen=True, kw_only=True):
    """The calls of one endpoint at one moment, and what they wait for.

    in_use: slots that calls hold, of `slots`. waiting: calls that hold one and wait for a grant, or
    for a place among those that may. queued: calls that wait for a slot. limits: those that hold
    the next grant back, each with what it counts; several if they are nearly as strict.
    parked_until_s: as in Load; is_down: it cannot be reached.
    """

    in_use: int = 0
    slots: int = 0
    waiting: int = 0
    queued: int = 0
    limits: tuple[tuple[Kind, Rate | None], ...] = ()
    parked_until_s: float = -math.inf
    is_down: bool = False

    @property
    def is_full(self) -> bool:
        """A call more would have to wait for a slot."""
        return 0 < self.slots <= self.in_use
