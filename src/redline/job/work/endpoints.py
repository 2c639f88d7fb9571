"""The endpoints of a run as its sampler sees them."""

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

# A sample of a large fleet looks at this many endpoints, in turn.
MOST_LOOKED_AT = 64

# Backends that report what their calls wait for, and have a limiter.
_Watched = HttpBackend | FunctionBackend


# The suffix of its limits' names, the backend, and whether it is degraded.
_Seen = tuple[str, _Watched, bool]


@dataclass(eq=False, repr=False)
class Endpoints:
    """The endpoints of a run: those of a pool, or its only backend."""

    _of: Backend
    _turn: int = 0
    _left: int = 1  # endpoints that were not out at the last look

    @property
    def queued(self) -> int:
        """The number of calls that wait for any endpoint of a pool."""
        return self._of.queued if isinstance(self._of, Pool) else 0

    @property
    def is_full(self) -> bool:
        """Whether a pool has as many calls in flight as its endpoints may have together."""
        return isinstance(self._of, Pool) and self._of.is_full

    def slots(self, loads: Sequence[Load]) -> int:
        """Returns the most calls in flight at all endpoints that are not down; 0 for no bound.

        loads: the latest ones; those of a large fleet are a sample.
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
        """Returns the loads of endpoints that are not out, and the limits that hold calls."""
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
        """Yields the use of each limit of the endpoints."""
        for name, backend, _ in self._seen():
            for kind, rate, used in backend.limiter.used(now_s):
                limit = limit_text(kind, rate) + name
                yield LimitUse(limit, 0, used, rate.count, rate.window_s)

    def parked_s(self, now_s: float) -> float:
        """Returns the seconds until an endpoint takes calls, if all asked to wait; 0 otherwise."""
        return max(0.0, self._of.load(now_s).parked_until_s - now_s)

    def states(self, now_s: float) -> Iterator[EndpointState]:
        """Yields the state of each endpoint of a pool; nothing for a run with one."""
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
                # If no endpoint works, breakers are ignored.
                is_degraded = not is_broken and not member.breaker.is_working
                yield f" at {member.name}", member.backend, is_degraded


def _estimated(load: Load) -> Load:
    """Returns the load of a backend of another kind, which may not report what its calls wait for.

    If the backend is full, they wait for a slot, otherwise for a limit. A degraded backend may
    still answer.
    """
    state = load.state if load.state is Health.GONE else Health.READY
    queued = load.waiting if load.is_full else 0
    return msgspec.structs.replace(load, state=state, queued=queued)
