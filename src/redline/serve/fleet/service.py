"""Serves a fleet behind one URL: a front passes calls to as many replicas as the load needs.

state     from             a call
serving   the start        is passed to a replica, or waits until one is ready
failing   3 failed starts  gets 503 if no replica is ready; once one is, the fleet is serving again
draining  SIGINT, SIGTERM  is refused if it is new, and has `drain_s` if it is in flight; then the
                           replicas are stopped
"""

from __future__ import annotations

import asyncio
import math
import os
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from redline.calls import Health, Retry
from redline.clock import SYSTEM
from redline.errors import ConfigError, RedlineError
from redline.process import (
    LockedFile,
    counted,
    end_at_second,
    end_tasks,
    raise_limit_fully,
    run_until_told,
)
from redline.route import Pool, strategy_of
from redline.route.scale import Change, Failure, Fleet, LocalLauncher
from redline.serve.fleet.settings import FleetSettings
from redline.serve.http import Bounds, Refusal, Relay, busy

PAGE = "/fleet"
# After this many failed starts in a row, calls are refused instead of waiting for a replica.
HOPELESS = 3
_LOOK_S = 0.2
_SHOWN = 20


class ReplicaStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The status of one replica.

    state: a value of Health. in_flight, answered: numbers of calls. latency_s: the mean of the last
    answers.
    """

    name: str
    state: str
    in_flight: int = 0
    answered: int = 0
    latency_s: float = 0.0


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """A change or a failure in the fleet.

    at: ISO 8601, UTC.
    """

    at: str
    what: str


class FleetStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The status of a fleet at one moment. changes, failures: the last 20 of each, oldest first.

    in_flight: calls at replicas. waiting: all other calls received: they wait for a replica, its
    limits or a retry. answered: calls that succeeded.
    """

    model: str
    min_replicas: int
    max_replicas: int
    ready: int
    starting: int
    in_flight: int
    waiting: int
    answered: int
    replicas: list[ReplicaStatus] = []
    changes: list[Event] = []
    failures: list[Event] = []

    def __str__(self) -> str:
        replicas = f"{counted(self.ready, 'replica')} ready"
        if self.starting:
            replicas += f", {self.starting} starting"
        return f"{replicas}, {self.in_flight:,} in flight, {self.waiting:,} waiting, " + (
            f"{self.answered:,} answered"
        )


class ServedFleet:
    """A fleet made from its settings; `run` may be called only once.

    on_url: called with the base URL. on_event: called with a line for each change and failure.
    on_status: called with the status five times a second.
    """

    def __init__(
        self,
        settings: FleetSettings,
        *,
        on_url: Callable[[str], None],
        on_event: Callable[[str], None],
        on_status: Callable[[FleetStatus], None],
    ) -> None:
        self._settings = settings
        self._on_url = on_url
        self._on_event = on_event
        self._on_status = on_status
        self._pool = Pool([], strategy_of(settings.balance, random.Random()), may_be_empty=True)
        self._fleet = Fleet(self._pool, LocalLauncher(settings.replica), settings.scale)
        front = settings.front
        self._relay = Relay(
            Retry(self._pool),
            models=(settings.model,),
            address=(front.host, front.port),
            pages={PAGE: lambda: msgspec.json.encode(self.status())},
            trouble=self._trouble,
            bounds=Bounds(grace_s=front.drain_s),
        )
        self._seen_s = -math.inf
        self._seen_ready = frozenset[str]()
        self._was_ready = False
        self._is_over = False

    def status(self) -> FleetStatus:
        """Returns the current status of the fleet."""
        fleet, pool, scale = self._fleet, self._pool, self._settings.scale
        now_s, members = SYSTEM.now_s(), pool.members
        starting, traffic = fleet.starting, pool.traffic
        queued = sum(one.backend.load(now_s).waiting for one in members)
        in_flight = sum(one.in_flight for one in members) - queued
        replicas = [
            ReplicaStatus(
                name=one.name,
                state=one.health(now_s).value,
                in_flight=one.in_flight,
                answered=one.succeeded,
                latency_s=round(one.latency_s or one.forgotten_s, 3),
            )
            for one in members
        ]
        replicas += [ReplicaStatus(name=name, state=Health.STARTING.value) for name in starting]
        return FleetStatus(
            model=self._settings.model,
            min_replicas=scale.min_replicas,
            max_replicas=scale.max_replicas,
            ready=len(fleet.ready),
            starting=len(starting),
            in_flight=in_flight,
            waiting=max(0, self._relay.in_flight - in_flight),
            answered=traffic.answered,
            replicas=replicas,
            changes=_last(fleet.history),
            failures=_last(fleet.failures),
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Serves until `stop` is set, then ends the calls in flight and the replicas.

        Raises ConfigError if the address or the folder of the logs cannot be used, and RedlineError
        if none of the first replicas can be started.
        """
        running: asyncio.Task[None] | None = None
        lock = LockedFile(-1)  # none is open yet
        try:
            async with self._relay as relay:
                lock = _lock(self._settings.replica.logs)
                running = asyncio.create_task(self._fleet.run())
                running.add_done_callback(lambda _: stop.set())
                self._on_url(relay.base_url)
                while not stop.is_set():
                    self._look()
                    with suppress(TimeoutError):
                        async with asyncio.timeout(_LOOK_S):
                            await stop.wait()
                if in_flight := relay.in_flight:
                    calls = counted(in_flight, "call")
                    self._on_event(
                        f"waiting up to {self._settings.front.drain_s:g} s for {calls} in flight"
                    )
        finally:
            await end_tasks(running)
            await self._pool.aclose()
            lock.close()
        if not running.cancelled():
            running.result()

    def _look(self) -> None:
        """Reports changes. Raises RedlineError if the fleet's first starts have failed."""
        fleet = self._fleet
        ready = frozenset(one.name for one in fleet.ready)
        self._was_ready = self._was_ready or bool(ready)
        if not self._was_ready and fleet.failed_starts and not fleet.starting:
            self._is_over = True
            self._relay.refuse_waiting()
            raise RedlineError("the fleet could not be started", hint=str(fleet.failures[-1]))
        events: list[Change | Failure] = [*fleet.history, *fleet.failures]
        news = [one for one in events if one.at_s > self._seen_s]
        for one in sorted(news, key=lambda one: one.at_s):
            self._seen_s = one.at_s
            self._on_event(str(one))
        for name in sorted(ready - self._seen_ready):
            self._on_event(f"{name} is ready")
        self._seen_ready = ready
        self._on_status(self.status())
        self._relay.refuse_waiting()

    def _trouble(self) -> Refusal | None:
        fleet = self._fleet
        if not self._is_over and (fleet.ready or fleet.failed_starts < HOPELESS):
            return None
        starts = counted(fleet.failed_starts, "start has", "starts have")
        return busy(
            f"No replica can be started: {starts} failed.",
            "no_replica",
            wait_s=fleet.again_s - SYSTEM.now_s(),
        )


def serve_fleet(
    settings: FleetSettings,
    *,
    on_url: Callable[[str], None],
    on_event: Callable[[str], None],
    on_status: Callable[[FleetStatus], None],
) -> None:
    """Serves until SIGINT or SIGTERM; a second signal ends the process at once.

    The parameters and errors are those of `ServedFleet` and its `run`.
    """

    async def main(stop: asyncio.Event) -> None:
        # After a second signal, the guardian processes end the replicas.
        end_at_second(stop)
        raise_limit_fully()
        served = ServedFleet(settings, on_url=on_url, on_event=on_event, on_status=on_status)
        await served.run(stop)

    run_until_told(main)


def _lock(logs: Path) -> LockedFile:
    """Locks the folder of the logs, whose files have the same names in every fleet.

    Raises ConfigError if the folder cannot be written, or if another fleet has locked it.
    """
    try:
        logs.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = LockedFile(os.open(logs / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        is_alone = lock.try_lock()
    except OSError as error:
        raise ConfigError(
            f"logs cannot be written in {logs}: {error.strerror}",
            hint="choose another folder with the setting logs",
        ) from error
    if not is_alone:
        lock.close()
        raise ConfigError(
            f"another fleet writes its logs in {logs}",
            hint="stop that fleet, or give each fleet its own file with another folder: logs",
        )
    return lock


def _last(events: Sequence[Change | Failure]) -> list[Event]:
    """Returns the last 20 events, with wall-clock times."""
    begun_s = SYSTEM.wall_s() - SYSTEM.now_s()
    return [
        Event(
            at=datetime.fromtimestamp(begun_s + one.at_s, UTC).isoformat(timespec="seconds"),
            what=str(one),
        )
        for one in [*events][-_SHOWN:]
    ]
