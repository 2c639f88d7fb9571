"""The endpoints of a run as its sampler sees them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from redline.calls import Backend, FunctionBackend, HttpBackend
from redline.limits.rule import limit_text
from redline.route import Pool
from redline.timeline import EndpointState, LimitUse
from redline.waist import Backlog, Health

# At most this many endpoints of a large fleet are sampled each time, others the next time.
MOST_LOOKED_AT = 64

# Backends that report what their calls wait for.
_Watched = HttpBackend | FunctionBackend


class _Seen(NamedTuple):
    name: str
    backend: _Watched
    is_degraded: bool


class Endpoints:
    """The endpoints of a run: those of a pool, or its only backend."""

    def __init__(self, of: Backend) -> None:
        self._of = of
        self._turn = 0
        self._left = 1  # endpoints that were not out at the last look

    @property
    def queued(self) -> int:
        """The number of calls that wait for any endpoint of a pool."""
        return self._of.queued if isinstance(self._of, Pool) else 0

    @property
    def is_full(self) -> bool:
        """Whether a pool has as many calls in flight as its endpoints may have together."""
        return isinstance(self._of, Pool) and self._of.is_full

    def slots(self, backlogs: Sequence[Backlog]) -> int:
        """Returns the most calls in flight at all endpoints that are not down; 0 for no bound.

        backlogs: the latest ones; those of a large fleet are a sample.
        """
        slots = [backlog.slots for backlog in backlogs if not backlog.is_down]
        most = self._of.most if isinstance(self._of, Pool) else None
        if not slots or not all(slots):
            return most or 0
        total = sum(slots)
        if self._left > len(backlogs):
            total = total * self._left // len(backlogs)
        return total if most is None else min(total, most)

    def backlogs(self, now_s: float) -> tuple[list[Backlog], set[str]]:
        """Returns the backlogs of endpoints that are not out, and the limits that hold calls."""
        of = self._of
        if not isinstance(of, Pool | _Watched):
            return [_backlog_by_load(of, now_s)], set()
        backlogs, names = list[Backlog](), set[str]()
        for seen in self._seen():
            backlog = seen.backend.backlog(now_s)
            if seen.is_degraded:
                backlog = Backlog(is_down=True)
            backlogs.append(backlog)
            if backlog.parked_until_s <= now_s:
                names.update(limit_text(kind, rate) + seen.name for kind, rate in backlog.limits)
        return backlogs, names

    def uses(self, now_s: float) -> Iterator[LimitUse]:
        """Yields the use of each limit of the endpoints."""
        for seen in self._seen():
            for kind, rate, used in seen.backend.limiter.used(now_s):
                name = limit_text(kind, rate) + seen.name
                yield LimitUse(name, 0, used, rate.count, rate.window_s)

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
            yield _Seen("", of, is_degraded=False)
        if not isinstance(of, Pool):
            return
        left = [member for member in of.members if not member.is_out]
        self._left = len(left)
        is_broken = not any(member.breaker.is_working for member in left)
        self._turn += MOST_LOOKED_AT
        begin = self._turn % len(left) if len(left) > MOST_LOOKED_AT else 0
        for member in islice([*left[begin:], *left[:begin]], MOST_LOOKED_AT):
            if isinstance(member.backend, _Watched):
                # If none works, breakers are ignored.
                is_degraded = not is_broken and not member.breaker.is_working
                yield _Seen(f" at {member.name}", member.backend, is_degraded)


def _backlog_by_load(backend: Backend, now_s: float) -> Backlog:
    """Returns the backlog of a backend that only reports its load."""
    load = backend.load(now_s)
    is_lost = load.state is Health.GONE
    is_waiting = load.waiting > 0 and (not load.slots or load.in_flight < load.slots)
    return Backlog(
        in_use=load.in_flight,
        slots=load.slots,
        waiting=load.waiting if is_waiting else 0,
        queued=0 if is_waiting else load.waiting,
        parked_until_s=load.parked_until_s if load.parked_until_s > now_s else -math.inf,
        is_down=is_lost,
    )
