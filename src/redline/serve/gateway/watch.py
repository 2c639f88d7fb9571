"""Samples a gateway once a second, and keeps the last minutes for its dashboard."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain

import msgspec

from redline._version import __version__
from redline.calls.cost import DOLLAR
from redline.clock import SYSTEM
from redline.job.monitor import BOUNDS_S, Family
from redline.route import PoolMember
from redline.serve.batches import Batches
from redline.serve.dashboard import (
    Binding,
    ClassView,
    EndpointView,
    Event,
    Second,
    Snapshot,
    TenantView,
)
from redline.serve.gateway.binding import Facts, binding_of, state_of
from redline.serve.gateway.lineup import FunctionLineup, Lineup, Way
from redline.serve.gateway.totals import Totals
from redline.serve.keys import DAY_S
from redline.serve.workers import Elsewhere, Fellows, Published, joined_classes, together
from redline.waist import Attempts, Health

_EVERY_S = 1.0
_KEPT_S = 300
_KEPT_CHANGES = 50
# Rates are means over this many seconds.
_MEAN_S = 10
# The shortest time to divide by: two looks may be closer together, or the same look.
_LEAST_S = 0.1


class _Look(msgspec.Struct, frozen=True):
    """The counts at one moment, all since the start.

    at_s: monotonic seconds. cpu_s: CPU time of the event loop's thread. answers: see Totals.given.
    succeeded: finished attempts without an error, by endpoint. buckets: durations of all classes,
    per bucket.
    """

    at_s: float
    cpu_s: float
    answers: int
    tokens: int
    succeeded: dict[str, int]
    buckets: tuple[int, ...]

    def rates_since(self, before: _Look) -> tuple[float, float]:
        """Returns the answers and the tokens per second since `before`."""
        took_s = max(_LEAST_S, self.at_s - before.at_s)
        return (self.answers - before.answers) / took_s, (self.tokens - before.tokens) / took_s


class GatewayWatch:
    """Observes a gateway; `run` samples its state and publishes it to the other workers.

    batches, fellows: as for Gateway. families: returns this process's metrics. is_draining: returns
    whether the gateway refuses new calls.
    """

    def __init__(
        self,
        lineup: Lineup,
        totals: Totals,
        batches: Batches | Elsewhere | None,
        fellows: Fellows | None,
        *,
        families: Callable[[], list[Family]],
        is_draining: Callable[[], bool],
    ) -> None:
        self._lineup = lineup
        self._totals = totals
        self._batches = batches
        self._fellows = fellows
        self._others: list[Published] = []
        self._families = families
        self._is_draining = is_draining
        self._since_s = SYSTEM.now_s()
        self._looks = deque[_Look](maxlen=61)
        self._history = deque[Second](maxlen=_KEPT_S)
        self._changes = deque[Event](maxlen=_KEPT_CHANGES)
        self._states: dict[str, str] = {}
        self._binding = Binding(cause="nothing", sentence="")
        self._bound_s = self._since_s
        self._look()

    def note(self, what: str) -> None:
        """Adds an entry to the list of changes."""
        self._changes.append(Event(at_s=SYSTEM.wall_s(), what=what))

    def snapshot(self) -> Snapshot:
        """Returns this worker's current state.

        Its `changes` include those that led to the states of the endpoints that it shows.
        """
        now_s = SYSTEM.now_s()
        endpoints = self._endpoints(now_s)
        self._note_states(endpoints)
        answers, tokens = self._rates()
        counts = self._buckets()
        return Snapshot(
            at_s=SYSTEM.wall_s(),
            up_s=now_s - self._since_s,
            version=__version__,
            is_draining=self._is_draining(),
            binding=self._bound(now_s),
            answers_per_s=answers,
            tokens_per_s=tokens,
            running=self._runs(endpoints),
            waiting=self._waits(),
            latency_p50_s=_quantile(counts, 0.5),
            latency_p95_s=_quantile(counts, 0.95),
            classes=self._classes(),
            endpoints=endpoints,
            tenants=self._tenants(),
            # Only one worker has batches.
            batches=self._batches.unfinished() if isinstance(self._batches, Batches) else [],
            changes=[*self._changes],
            faults=[*self._totals.faults],
            history=[*self._history],
        )

    def of_all(self) -> Snapshot:
        """Returns the present state of all workers."""
        own = self.snapshot()
        if self._fellows is None or not (others := self._fellows.fresh()):
            return own
        buckets = [self._buckets(), *(one.buckets for one in others)]
        counts = [sum(each) for each in zip(*buckets, strict=True)]
        return msgspec.structs.replace(
            together([own, *(one.snapshot for one in others)]),
            latency_p50_s=_quantile(counts, 0.5),
            latency_p95_s=_quantile(counts, 0.95),
        )

    async def run(self) -> None:
        """Samples the gateway every second and publishes its state, until cancelled."""
        while True:
            await asyncio.sleep(_EVERY_S)
            self._look()
            self.publish()

    def publish(self) -> None:
        """Publishes this worker's current state to the other workers, if there are any."""
        if self._fellows is not None:
            published = Published(
                at_s=SYSTEM.now_s(),
                families=self._families(),
                snapshot=self.snapshot(),
                buckets=self._buckets(),
            )
            self._fellows.publish(published)

    def _look(self) -> None:
        """Samples the counts, and adds changed states to the list of changes."""
        if self._fellows is not None:
            self._others = self._fellows.fresh()
        totals, attempts = self._totals, self._lineup.attempts
        look = _Look(
            SYSTEM.now_s(),
            time.thread_time(),
            totals.given,
            totals.tokens.total(),
            {name: _succeeded(one) for name, one in attempts.items()},
            totals.buckets(),
        )
        self._looks.append(look)
        endpoints = self._endpoints(look.at_s)
        self._note_states(endpoints)
        if len(self._looks) > 1:
            answers, tokens = look.rates_since(self._looks[-2])
            running, waiting = self._runs(endpoints), self._waits()
            self._history.append(Second(SYSTEM.wall_s(), answers, tokens, running, waiting))
        self._bound(look.at_s)

    def _note_states(self, endpoints: Sequence[EndpointView]) -> None:
        """Adds a change for each endpoint whose state has changed since this was last called."""
        states = {one.name: one.state for one in endpoints}
        for name, state in states.items():
            if self._states.get(name, state) != state:
                self.note(f"{name} is now {state}; it was {self._states[name]}")
        self._states = states

    def _runs(self, endpoints: Sequence[EndpointView]) -> int:
        """Returns the number of calls at the endpoints, or of items in the function's batches."""
        if isinstance(self._lineup, FunctionLineup):
            return self._lineup.function.load(SYSTEM.now_s()).in_flight
        return sum(one.in_flight for one in endpoints)

    def _waits(self) -> int:
        """Returns the number of calls that wait for an endpoint, or of items for a batch."""
        now_s = SYSTEM.now_s()
        if isinstance(self._lineup, FunctionLineup):
            return self._lineup.function.load(now_s).waiting
        return sum(_waiting(way, now_s) for way in self._lineup.ways)

    def _bound(self, now_s: float) -> Binding:
        ways = self._lineup.ways
        # Endpoints of other pools do not have the models of the waiting calls.
        ways = [way for way in ways if _waiting(way, now_s)] or ways
        seen = [
            (member, member.health(now_s, load), load)
            for way in ways
            for member in way.pool.members
            for load in (member.backend.load(now_s),)
        ]
        waiting = self._waits()
        if waiting:
            waiting += sum(one.snapshot.waiting for one in self._others)
        names = {member.name for member, _, _ in seen}
        others = chain.from_iterable(one.snapshot.endpoints for one in self._others)
        elsewhere = sum(one.per_s for one in others if one.name in names)
        facts = Facts(
            loads=[way.pool.load(now_s) for way in ways],
            most=min(_full_at(ways, now_s), default=None),
            states=[state for _, state, _ in seen],
            working=[load for _, state, load in seen if state in (Health.READY, Health.WARMING)],
            warming=sum(
                state is Health.WARMING and not member.breaker.allows(now_s, member.coming)
                for member, state, _ in seen
            ),
            answering=sum(
                state is Health.DEGRADED and not load.is_down and self._answers_still(member)
                for member, state, load in seen
            ),
            waiting=waiting,
            answers_per_s=sum(self._rate_of(name, now_s) for name in names) + elsewhere,
            busy=self._busy(),
            now_s=now_s,
        )
        found = binding_of(facts)
        if found.cause != self._binding.cause:
            self._bound_s = now_s
        self._binding = msgspec.structs.replace(found, since_s=now_s - self._bound_s)
        return self._binding

    def _answers_still(self, member: PoolMember) -> bool:
        """Whether a degraded endpoint still gets calls, and has answered some recently."""
        before = self._before(_MEAN_S).succeeded.get(member.name, 0)
        return member.breaker.is_ignored and _succeeded(self._lineup.attempts[member.name]) > before

    def _before(self, seconds: int) -> _Look:
        """Returns the look taken this many seconds before the last one, or the first look."""
        return self._looks[max(0, len(self._looks) - 1 - seconds)]

    def _rates(self) -> tuple[float, float]:
        """Returns the answers and the tokens per second, over the last _MEAN_S seconds."""
        return self._looks[-1].rates_since(self._before(_MEAN_S))

    def _rate_of(self, name: str, now_s: float) -> float:
        """Returns the answers per second of an endpoint, over the last _MEAN_S seconds."""
        before = self._before(_MEAN_S)
        count = _succeeded(self._lineup.attempts[name]) - before.succeeded.get(name, 0)
        return count / max(_LEAST_S, now_s - before.at_s)

    def _busy(self) -> float:
        before, now = self._before(1), self._looks[-1]
        return (now.cpu_s - before.cpu_s) / max(_LEAST_S, now.at_s - before.at_s)

    def _buckets(self) -> list[int]:
        """Returns the number of the last minute's calls in each bucket of the histogram."""
        first, last = self._looks[0].buckets, self._looks[-1].buckets
        return [now - before for before, now in zip(first, last, strict=True)]

    def _classes(self) -> list[ClassView]:
        """Returns the classes, summed over all pools since the start."""
        return joined_classes(
            [
                [
                    ClassView(
                        name=one.name,
                        running=one.in_flight,
                        waiting=one.waiting,
                        oldest_s=one.oldest_wait_s,
                        admitted=one.admitted,
                        refused=sum(one.refused.values()),
                    )
                    for one in self._lineup.classes()
                ]
            ]
        )

    def _tenants(self) -> list[TenantView]:
        """Returns the tenants that have sent calls since the start."""
        today = int(SYSTEM.wall_s() // DAY_S)
        return [
            TenantView(
                name=name,
                calls=counts.calls,
                refused=counts.refused,
                tokens=counts.tokens,
                running=limits.in_flight,
                spent_usd=limits.money.spent_on(today) / DOLLAR or None,
            )
            for name, counts in self._totals.tenants.items()
            for limits in (self._lineup.gates.tenants.of(name).limits,)
        ]

    def _endpoints(self, now_s: float) -> list[EndpointView]:
        stated = {one.label: one for one in self._lineup.endpoints}
        found = []
        for member in self._lineup.members:
            endpoint = stated.get(member.name)
            load = member.backend.load(now_s)
            state, reason = state_of(member, load, now_s)
            attempts = self._lineup.attempts[member.name]
            found.append(
                EndpointView(
                    name=member.name,
                    url="" if endpoint is None else endpoint.base_url,
                    state=state,
                    reason=reason,
                    models=[] if endpoint is None else [*endpoint.models],
                    # A call that waits for a limit already has its place, but is not sent yet.
                    in_flight=max(0, member.in_flight - load.waiting),
                    slots=load.slots,
                    per_s=self._rate_of(member.name, now_s),
                    latency_s=member.latency_s or member.forgotten_s,
                    errors=attempts.errors.total() - attempts.errors["cancelled"],
                )
            )
        return found


def _waiting(way: Way, now_s: float) -> int:
    """Returns the number of calls that wait for an endpoint of this pool."""
    return sum(one.waiting for one in way.gate.classes()) + way.pool.load(now_s).waiting


def _full_at(ways: Iterable[Way], now_s: float) -> Iterator[int]:
    """Yields the bound of -c for each pool whose calls wait, or would wait, because of it."""
    for _, pool, gate, _ in ways:
        most = pool.most
        if most is not None and (
            pool.is_full or (gate.waits_for_slots() and pool.slots(now_s) == most)
        ):
            yield most


def _succeeded(attempts: Attempts) -> int:
    """Returns the number of attempts that have ended without an error."""
    return attempts.attempts - attempts.in_flight - attempts.errors.total()


def _quantile(counts: Sequence[int], q: float) -> float | None:
    """Returns a quantile in seconds, interpolated linearly within a bucket, as Prometheus does.

    counts: the number of durations in each bucket of BOUNDS_S. None if there are none.
    """
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
