"""Samples a gateway once a second, and keeps the last minutes for its dashboard."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from redline._version import __version__
from redline.calls.wire import do_nothing
from redline.clock import SYSTEM
from redline.job.monitor import BOUNDS_S
from redline.route import PoolMember
from redline.serve.dashboard import (
    BatchView,
    Binding,
    ClassView,
    EndpointView,
    Event,
    Second,
    Snapshot,
    TenantView,
)
from redline.serve.gateway.binding import Facts, binding_of
from redline.serve.gateway.lineup import Lineup
from redline.serve.gateway.totals import Totals
from redline.waist import Health

_EVERY_S = 1.0
_KEPT_S = 300
_KEPT_CHANGES = 50
# Rates are means over this many seconds.
_MEAN_S = 10


class Sources(Protocol):
    """The sources of the rest of the snapshot."""

    def classes(self) -> list[ClassView]: ...

    def tenants(self) -> list[TenantView]: ...

    def batches(self) -> list[BatchView]: ...


class _Look(msgspec.Struct, frozen=True):
    """Counts at one moment.

    cpu_s: of the event loop's thread. answered: attempts that are over, by endpoint. buckets: of
    the durations of all classes.
    """

    at_s: float
    cpu_s: float
    answers: int
    tokens: int
    answered: dict[str, int]
    buckets: tuple[int, ...]


class GatewayWatch:
    """The state of a gateway.

    waiting: calls that wait, besides those in pools. is_draining: it takes no new calls. on_look:
    called once a second.
    """

    def __init__(
        self,
        lineup: Lineup,
        totals: Totals,
        sources: Sources,
        *,
        waiting: Callable[[], int],
        is_draining: Callable[[], bool],
        on_look: Callable[[], None] = do_nothing,
    ) -> None:
        self._lineup = lineup
        self._totals = totals
        self._sources = sources
        self._waiting = waiting
        self._is_draining = is_draining
        self._on_look = on_look
        self._since_s = SYSTEM.now_s()
        self._looks = deque[_Look](maxlen=61)
        self._history = deque[Second](maxlen=_KEPT_S)
        self._changes = deque[Event](maxlen=_KEPT_CHANGES)
        self._states: dict[str, str] = {}
        self._binding = Binding(cause="nothing", sentence="")
        self._bound_s = self._since_s
        self._watching: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Starts sampling."""
        self._look()
        self._watching = asyncio.create_task(self._watch())

    async def aclose(self) -> None:
        """Stops sampling."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])

    def note(self, what: str) -> None:
        """Adds an entry to the list of changes."""
        self._changes.append(Event(at_s=SYSTEM.wall_s(), what=what))

    def snapshot(self) -> Snapshot:
        """The state now."""
        now_s = SYSTEM.now_s()
        endpoints = self._endpoints(now_s)
        answers, tokens = self._rates()
        waiting = self._waits()
        binding = self._bound(now_s)
        p50_s, p95_s = self._quantiles()
        return Snapshot(
            at_s=SYSTEM.wall_s(),
            up_s=now_s - self._since_s,
            version=__version__,
            is_draining=self._is_draining(),
            binding=binding,
            answers_per_s=answers,
            tokens_per_s=tokens,
            running=sum(one.in_flight for one in endpoints),
            waiting=waiting,
            latency_p50_s=p50_s,
            latency_p95_s=p95_s,
            classes=self._sources.classes(),
            endpoints=endpoints,
            tenants=self._sources.tenants(),
            batches=self._sources.batches(),
            changes=[*self._changes],
            faults=[*self._totals.faults],
            history=[*self._history],
        )

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_EVERY_S)
            self._look()
            self._on_look()

    def _look(self) -> None:
        """Samples the counts, and notes changes."""
        totals, members, attempts = self._totals, self._members(), self._lineup.attempts
        look = _Look(
            SYSTEM.now_s(),
            time.thread_time(),
            totals.answers.total(),
            totals.tokens.total(),
            {name: one.attempts - one.in_flight for name, one in attempts.items()},
            totals.buckets(),
        )
        if self._looks:
            before = self._looks[-1]
            took_s = max(0.1, look.at_s - before.at_s)
            self._history.append(
                Second(
                    SYSTEM.wall_s(),
                    (look.answers - before.answers) / took_s,
                    (look.tokens - before.tokens) / took_s,
                    sum(member.in_flight for member in members),
                    self._waits(),
                )
            )
        self._looks.append(look)
        states = {one.name: one.state for one in self._endpoints(look.at_s)}
        for name, state in states.items():
            if self._states.get(name, state) != state:
                self.note(f"{name} is {state}, and was {self._states[name]}")
        self._states = states
        self._bound(look.at_s)

    def _members(self) -> list[PoolMember]:
        return [member for pool in self._lineup.pools for member in pool.members]

    def _waits(self) -> int:
        queued = sum(pool.load(SYSTEM.now_s()).waiting for pool in self._lineup.pools)
        return self._waiting() + queued

    def _bound(self, now_s: float) -> Binding:
        pools = self._lineup.pools
        facts = Facts(
            loads=[pool.load(now_s) for pool in pools],
            full=[pool.is_full for pool in pools],
            states=[member.health(now_s) for member in self._members()],
            waiting=self._waits(),
            answers_per_s=self._rates()[0],
            busy=self._busy(),
            now_s=now_s,
        )
        found = binding_of(facts)
        if found.cause != self._binding.cause:
            self._bound_s = now_s
        self._binding = msgspec.structs.replace(found, since_s=now_s - self._bound_s)
        return self._binding

    def _mean(self) -> tuple[_Look, _Look] | None:
        """Two looks, the last one and one _MEAN_S before it."""
        if len(self._looks) < 2:
            return None
        return self._looks[max(0, len(self._looks) - 1 - _MEAN_S)], self._looks[-1]

    def _rates(self) -> tuple[float, float]:
        """Answers per second and tokens per second."""
        if (pair := self._mean()) is None:
            return 0.0, 0.0
        before, now = pair
        took_s = now.at_s - before.at_s
        return (now.answers - before.answers) / took_s, (now.tokens - before.tokens) / took_s

    def _busy(self) -> float:
        if len(self._looks) < 2:
            return 0.0
        before, now = self._looks[-2], self._looks[-1]
        return (now.cpu_s - before.cpu_s) / max(0.1, now.at_s - before.at_s)

    def _quantiles(self) -> tuple[float | None, float | None]:
        """Median and 95th percentile of the last minute, by the bounds of the histogram."""
        counts = self.buckets()
        return quantile(counts, 0.5), quantile(counts, 0.95)

    def buckets(self) -> list[int]:
        """The number of calls of the last minute in each bucket of the histogram."""
        first, last = self._looks[0].buckets, self._looks[-1].buckets
        return [now - before for before, now in zip(first, last, strict=True)]

    def _endpoints(self, now_s: float) -> list[EndpointView]:
        stated = {one.label: one for one in self._lineup.endpoints}
        pair = self._mean()
        found = []
        for member in self._members():
            endpoint = stated.get(member.name)
            load = member.backend.load(now_s)
            state, reason = _state(member, now_s)
            attempts = self._lineup.attempts.get(member.name)
            per_s = 0.0
            if pair is not None and attempts is not None:
                over = attempts.attempts - attempts.in_flight
                per_s = (over - pair[0].answered.get(member.name, 0)) / (now_s - pair[0].at_s)
            found.append(
                EndpointView(
                    name=member.name,
                    url="" if endpoint is None else endpoint.base_url,
                    state=state,
                    reason=reason,
                    models=[] if endpoint is None else [*endpoint.models],
                    in_flight=member.in_flight,
                    slots=load.slots,
                    per_s=per_s,
                    latency_s=member.latency_s,
                    errors=0 if attempts is None else attempts.errors.total(),
                )
            )
        return found


def _state(member: PoolMember, now_s: float) -> tuple[str, str]:
    """The state of an endpoint and why, if it is not ready."""
    health, load = member.health(now_s), member.backend.load(now_s)
    if health in (Health.READY, Health.WARMING) and load.parked_until_s > now_s:
        return "parked", f"it asked to wait for another {load.parked_until_s - now_s:.0f} s"
    if member.error is not None:
        return health.value, member.error.what
    if health is Health.DEGRADED:
        return health.value, load.binds or "its last calls have failed"
    return health.value, ""


def quantile(counts: Sequence[int], q: float) -> float | None:
    """A quantile of durations in the buckets of BOUNDS_S: linear within a bucket, as Prometheus."""
    total = sum(counts)
    if not total:
        return None
    left, low_s = q * total, 0.0
    for count, high_s in zip(counts, (*BOUNDS_S, BOUNDS_S[-1]), strict=True):
        if count >= left and count:
            return low_s + (high_s - low_s) * left / count
        left -= count
        low_s = high_s
    return low_s
