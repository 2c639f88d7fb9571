"""Runs a fleet: as many replicas as its autoscaler decides."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Sequence
from itertools import count, islice
from typing import Protocol

import msgspec

from redline.clock import SYSTEM, Clock
from redline.errors import ConfigError, RedlineError
from redline.route.balance import STALE_S
from redline.route.member import PoolMember, Seat
from redline.route.pool import Pool
from redline.route.scale.autoscaler import Autoscaler, Change, Sample
from redline.route.scale.settings import ScaleSettings
from redline.route.traffic import quantile_s, wait_class
from redline.waist import Health

# The p95 of the queue wait is measured over this share of the panic window.
WAIT_SHARE = 0.5
# At most this many of the waiting calls, the first ones, are included in the p95.
LOOKED_AT = 10_000
# After a failed start, no replica is started for this long; after each further one, twice as long.
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
# A replica whose calls still fail after it has been degraded for this long is replaced.
HUNG_S = 300.0
FAILURES = 100


class Failure(msgspec.Struct, frozen=True):
    """A replica that could not be started or stopped, or was lost. at_s: monotonic."""

    at_s: float
    what: str

    def __str__(self) -> str:
        return self.what


class Launcher(Protocol):
    """Starts and stops replicas: local processes, pods, or anything else that serves a model."""

    async def start(self, name: str) -> Seat:
        """Starts a replica; returns its seat, with this name, once a real request has succeeded.

        Raises RedlineError or OSError if the replica cannot be started or is not ready in time. May
        be cancelled. In both cases `stop` is called next.
        """

    async def stop(self, name: str) -> None:
        """Ends everything that `start` has begun. Raises RedlineError or OSError if that fails."""


class Fleet:
    """Starts and stops the endpoints of a pool, as an autoscaler decides.

    Unless `run` is cancelled, a replica finishes its calls before it is stopped. pool: must be
    empty, and made with `may_be_empty`. failures: the latest ones, the oldest first. failed_starts:
    the number of failed starts since a start last succeeded, or since the fleet had no calls and
    was stopped; starts that run at the same time count as one. again_s: no replica is started
    before this time (monotonic). Raises ConfigError if the pool has endpoints.
    """

    def __init__(
        self,
        pool: Pool,
        launcher: Launcher,
        settings: ScaleSettings,
        *,
        name: str = "replica",
        clock: Clock = SYSTEM,
    ) -> None:
        if pool.members:
            raise ConfigError(
                "the pool of a fleet has endpoints already", hint="give the fleet an empty pool"
            )
        self.failures: deque[Failure] = deque(maxlen=FAILURES)
        self.failed_starts = 0
        self.again_s = 0.0
        self._pool = pool
        self._launcher = launcher
        self._settings = settings
        self._now_s = clock.now_s
        self._autoscaler = Autoscaler(settings)
        self._names = (f"{name}-{number}" for number in count(1))
        self._starting: dict[str, asyncio.Task[None]] = {}
        self._stopping: set[str] = set()
        self._waits = _Waits(WAIT_SHARE * settings.panic_window_s)
        self._pause_s = FIRST_PAUSE_S

    @property
    def history(self) -> Sequence[Change]:
        """The latest changes and their reasons, the oldest first."""
        return self._autoscaler.history

    @property
    def ready(self) -> list[PoolMember]:
        """Replicas that have been ready and are not being stopped."""
        return [one for one in self._pool.members if one.name not in self._stopping]

    @property
    def starting(self) -> Sequence[str]:
        """The names of the replicas that are not ready yet."""
        return [*self._starting]

    async def run(self) -> None:
        """Keeps the fleet at the decided size until cancelled; then stops all replicas.

        The calls in flight at these replicas are not finished.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                while True:
                    self._replace_lost(tasks)
                    decision = self._autoscaler.decide(self.sample())
                    if not decision.replicas:
                        # Reset: the next call starts a replica at once, whatever failed before.
                        self._pause_s, self.failed_starts, self.again_s = FIRST_PAUSE_S, 0, 0.0
                    self._grow(decision.replicas, tasks)
                    self._shrink(decision.replicas, tasks)
                    await asyncio.sleep(self._settings.tick_s)
        finally:
            async with asyncio.TaskGroup() as tasks:
                for member in self.ready:
                    tasks.create_task(self._end(member.name))

    def sample(self) -> Sample:
        """Returns the fleet's present state. Call it once for each decision: it resets counters."""
        pool, now_s, members = self._pool, self._now_s(), self.ready
        loads = [member.backend.load(now_s) for member in pool.members]
        slots = [member.backend.load(now_s).slots for member in members]
        # Calls that a replica has taken may still wait there.
        in_flight = sum(one.in_flight for one in pool.members)
        queued = sum(load.waiting for load in loads) + sum(
            one.queued for one in pool.members if now_s - one.seen_s <= STALE_S
        )
        queued = min(queued, in_flight)
        waits = list(islice(pool.waits_s(), LOOKED_AT))
        traffic = pool.traffic
        self._waits.add(now_s, traffic.ended + in_flight, traffic.take_waits())
        return Sample(
            at_s=now_s,
            in_flight=in_flight - queued,
            waiting=pool.queued + queued,
            leaving=in_flight - sum(one.in_flight for one in members),
            tokens=sum(one.tokens for one in pool.members),
            ended=traffic.ended,
            answered=traffic.answered,
            served_s=traffic.served_s,
            queue_wait_p95_s=self._waits.p95_s(waits),
            ready=len(members),
            warming=len(self._starting),
            slots=sum(slots) / len(slots) if slots and all(slots) else 0.0,
        )

    def _replace_lost(self, tasks: asyncio.TaskGroup) -> None:
        now_s = self._now_s()
        for member in self.ready:
            if member.breaker.failing_s >= HUNG_S:
                why: object = f"its calls have failed for {HUNG_S:g} s"
            elif member.health(now_s) is Health.GONE:
                why = member.backend.load(now_s).binds if member.error is None else member.error
            else:
                continue
            self._fail(f"{member.name} was lost: {why}")
            self._take(member.name, tasks)

    def _grow(self, replicas: int, tasks: asyncio.TaskGroup) -> None:
        """Starts missing replicas. Replicas that are being stopped count towards the maximum."""
        if self._now_s() < self.again_s:
            return
        have = len(self.ready) + len(self._starting)
        room = self._settings.max_replicas - have - len(self._stopping)
        for _ in range(min(replicas - have, room)):
            name = next(self._names)
            self._starting[name] = tasks.create_task(self._start(name))

    def _shrink(self, replicas: int, tasks: asyncio.TaskGroup) -> None:
        """Stops surplus replicas: starting ones first, then those with the fewest calls."""
        ready = self.ready
        surplus = len(ready) + len(self._starting) - replicas
        for name in [*reversed(self._starting)][: max(0, surplus)]:
            self._stopping.add(name)
            self._starting.pop(name).cancel()
            surplus -= 1
        ready.sort(key=lambda one: one.in_flight)
        for member in ready[: max(0, surplus)]:
            self._take(member.name, tasks)

    def _take(self, name: str, tasks: asyncio.TaskGroup) -> None:
        self._stopping.add(name)
        tasks.create_task(self._drain(name))

    async def _start(self, name: str) -> None:
        begun_s = self._now_s()
        try:
            seat = await self._launcher.start(name)
        except asyncio.CancelledError:
            await self._end(name)
            raise
        except (RedlineError, OSError) as error:
            self._fail(f"{name} could not be started: {error}")
            if begun_s >= self.again_s:
                self.failed_starts += 1
                self.again_s = self._now_s() + self._pause_s
                self._pause_s = min(LONGEST_PAUSE_S, 2 * self._pause_s)
            await self._end(name)
        else:
            self._pause_s, self.failed_starts = FIRST_PAUSE_S, 0
            self._pool.add(seat)
        finally:
            self._starting.pop(name, None)
            self._stopping.discard(name)

    async def _drain(self, name: str) -> None:
        """Waits for the replica's calls, then stops it."""
        try:
            await self._pool.remove(name)
        finally:
            await self._end(name)
            self._stopping.discard(name)

    async def _end(self, name: str) -> None:
        try:
            await self._launcher.stop(name)
        except (RedlineError, OSError) as error:
            self._fail(f"{name} could not be stopped: {error}")

    def _fail(self, what: str) -> None:
        self.failures.append(Failure(self._now_s(), what))


class _Waits:
    """The queue waits of the calls that got a replica in the last `span_s` seconds."""

    def __init__(self, span_s: float) -> None:
        self._span_s = span_s
        self._begun = 0
        self._steps: deque[tuple[float, int, Counter[int]]] = deque()

    def add(self, at_s: float, begun: int, waits: Counter[int]) -> None:
        """Adds the waits since `add` was last called.

        begun: number of calls that have got a replica since the fleet began. waits: the new waits,
        by bucket.
        """
        calls = max(begun - self._begun, waits.total())
        self._begun = max(begun, self._begun)
        self._steps.append((at_s, calls, waits))
        while self._steps[0][0] <= at_s - self._span_s:
            self._steps.popleft()

    def p95_s(self, waiting_s: Sequence[float]) -> float:
        """Returns the 95th percentile in seconds. waiting_s: the waits of calls that still wait."""
        now = Counter(map(wait_class, waiting_s))
        calls = sum(calls for _, calls, _ in self._steps) + len(waiting_s)
        return quantile_s(0.95, calls, [now, *(waits for _, _, waits in self._steps)])
