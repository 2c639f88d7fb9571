"""Reads the state of a run's endpoints, for the sampler."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import msgspec

from redline.calls import Backend, FunctionBackend, HttpBackend
from redline.limits.rule import limit_text
from redline.route import Pool
from redline.timeline import EndpointState, LimitUse
from redline.waist import Health, Load

# Each sample of a larger fleet reads only this many endpoints, in rotation.
MOST_LOOKED_AT = 64

# Backends that report what their calls are waiting for, and that have a limiter.
_Watched = HttpBackend | FunctionBackend


# The suffix of the names of a backend's limits, the backend, and whether it is degraded.
_Seen = tuple[str, _Watched, bool]


@dataclass(eq=False, repr=False)
class Endpoints:
    """The endpoints of a run: the members of its pool, or its only backend."""

    _of: Backend
    _turn: int = 0
    _left: int = 1  # endpoints that were not out when last read

    @property
    def queued(self) -> int:
        """The number of calls that wait in a pool for an endpoint; 0 without a pool."""
        return self._of.queued if isinstance(self._of, Pool) else 0

    @property
    def is_full(self) -> bool:
        """Whether as many calls are in flight as a pool allows at all its endpoints together."""
        return isinstance(self._of, Pool) and self._of.is_full

    def slots(self, loads: Sequence[Load]) -> int:
        """Returns the most calls in flight at all endpoints that are not down; 0 for no bound.

        loads: the latest loads; for a large fleet, a sample from which the total is extrapolated.
        """
        slots = [load.slots for load in loads if not load.is_down]
        most = self._of.most if isinstance(self._of, Pool) else None
        if not slots or not all(slots):
            return most or 0
        total = sum(slots)
        if self._left > len(loads):
            total = total * self._left // len(loads)
        return total if most is None else min(total, most)

    def loads(self, now_s: float) -> tuple[list[Load], set[str]]:
        """Returns the loads of the endpoints, and the names of the limits that hold calls back.

        Reads the endpoints that are not out; in a large fleet, only MOST_LOOKED_AT of them.
        """
        of = self._of
        if not isinstance(of, Pool | _Watched):
            return [_estimated(of.load(now_s))], set()
        loads, names = list[Load](), set[str]()
        for name, backend, is_degraded in self._seen():
            load = backend.load(now_s)
            if is_degraded:
                load = Load(state=Health.DEGRADED)
            elif load.parked_until_s <= now_s:
                held = backend.limiter.holding(now_s)
                names.update(limit_text(kind, rate) + name for kind, rate in held)
            loads.append(load)
        return loads, names

    def uses(self, now_s: float) -> Iterator[LimitUse]:
        """Yields the use of each limit of each endpoint, or of MOST_LOOKED_AT in a large fleet."""
        for name, backend, _ in self._seen():
            for kind, rate, used in backend.limiter.used(now_s):
                limit = limit_text(kind, rate) + name
                yield LimitUse(limit, 0, used, rate.count, rate.window_s)

    def parked_s(self, now_s: float) -> float:
        """Returns the seconds until an endpoint takes calls, if all are parked; 0 otherwise."""
        return max(0.0, self._of.load(now_s).parked_until_s - now_s)

    def states(self, now_s: float) -> Iterator[EndpointState]:
        """Yields the state of each endpoint of a pool; nothing for a run without a pool."""
        if isinstance(self._of, Pool):
            for member in self._of.members:
                load = member.backend.load(now_s)
                state = member.health(now_s, load)
                is_parked = state is Health.READY and load.parked_until_s > now_s
                yield EndpointState(
                    member.name,
                    "parked" if is_parked else state.value,
                    float(member.in_flight),
                    load.slots,
                )

    def _seen(self) -> Iterator[_Seen]:
        of = self._of
        if isinstance(of, _Watched):
            yield "", of, False
        if not isinstance(of, Pool):
            return
        left = [member for member in of.members if not member.is_out]
        self._left = len(left)
        is_broken = not any(member.breaker.is_working for member in left)
        self._turn += MOST_LOOKED_AT
        begin = self._turn % len(left) if len(left) > MOST_LOOKED_AT else 0
        for member in islice([*left[begin:], *left[:begin]], MOST_LOOKED_AT):
            if isinstance(member.backend, _Watched):
                # If no endpoint works, the states of the breakers are ignored.
                is_degraded = not is_broken and not member.breaker.is_working
                yield f" at {member.name}", member.backend, is_degraded


def _estimated(load: Load) -> Load:
    """Returns `load` with estimates, for a backend that does not report what calls wait for.

    If the backend is full, its calls are assumed to wait for a slot, otherwise for a limit. A
    degraded backend counts as ready, since it may still answer.
    """
    state = load.state if load.state is Health.GONE else Health.READY
    queued = load.waiting if load.is_full else 0
    return msgspec.structs.replace(load, state=state, queued=queued)
