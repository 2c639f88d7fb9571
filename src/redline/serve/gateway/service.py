"""A gateway from start to end: made from its settings, which it reads again on SIGHUP.

state     from     a call
serving   start    is answered; on SIGHUP the settings are read again, and no call is lost
draining  SIGTERM  new ones are refused, those in flight have `drain_s`; a second signal ends them
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

import msgspec

from redline.calls import Endpoint, Stores
from redline.calls.cache import AnswerStore
from redline.errors import ConfigError, RedlineError
from redline.httpserver import Address
from redline.job.settings import Flags
from redline.process import counted, end_at_once, on_signals, raise_limit_fully, run_until_told
from redline.serve.batches import Batches
from redline.serve.functions import function_backend
from redline.serve.gateway.gates import Gates
from redline.serve.gateway.gateway import Gateway, Listening
from redline.serve.gateway.lines import Lines
from redline.serve.gateway.lineup import Answers, FunctionLineup, Lineup
from redline.serve.gateway.metering import Meter
from redline.serve.gateway.settings import GatewaySettings
from redline.serve.http import Bounds
from redline.serve.keys import OWN, Keyring, SharedStore, SpendingKeeper, Tenants, spending_path
from redline.serve.workers import Elsewhere, Fellows, Plan, Worker, supervise
from redline.waist import CacheUse

_LOOK_S = 1.0
# More than the waiting calls of all classes, so that refusals come from a class.
_MOST_REQUESTS = 16_384
# The settings that cannot change while the gateway serves.
_FIXED = (
    *("host", "port", "workers", "certificate", "embedded", "function"),
    *("state", "keys", "most", "balance", "cache", "classes", "batches"),
)


@asynccontextmanager
async def gateway_of(
    settings: GatewaySettings, worker: Worker | None = None
) -> AsyncIterator[Served]:
    """A gateway that serves while it is entered, or one worker's part of it.

    Raises ConfigError.
    """
    inside = None if worker is None else worker.inside
    async with _answering(settings, inside) as endpoints, _remembering(settings) as answers:
        store = OWN if worker is None else SharedStore(worker.table, worker.number)
        tenants = Tenants(settings.tenants, store=store)
        flights = None if worker is None else worker.flights
        gates = Gates(settings.classes, tenants, Meter(settings.price_table), flights)
        lineup = _lineup(settings, endpoints, gates, answers, worker)
        keyring = Keyring(settings.keys, tenants)
        batches = None
        if settings.state is not None:
            lines = Lines(lineup, tenants, gates.meter)
            batches = Batches(settings.state / "batches", lines, settings.batches)
        is_first = worker is None or worker.is_first
        gateway = Gateway(
            lineup,
            keyring,
            gates,
            _beside(batches, worker),
            None if worker is None else Fellows(worker),
            listening=_listening(settings, worker),
        )
        own = batches if is_first else None
        try:
            async with (
                _following(keyring, settings, gateway),
                _keeping(settings if is_first else None, gateway, tenants),
                _begun(own),
                gateway,
            ):
                yield Served(settings, gateway, lineup, keyring, gates)
                # Both at once: batches stop while interactive calls end.
                await asyncio.gather(gateway.aclose(), *([own.drain()] if own else []))
        finally:
            await lineup.aclose()


def _beside(batches: Batches | None, worker: Worker | None) -> Batches | Elsewhere | None:
    """Files and batches, which only the first worker owns; the others forward requests to it."""
    if batches is None or worker is None or worker.is_first:
        return batches
    return Elsewhere(worker.door, batches.routes)


def _listening(settings: GatewaySettings, worker: Worker | None) -> Listening:
    certificate = settings.certificate
    address = Address(settings.host, settings.port)
    if worker is not None:
        door = str(worker.door) if worker.is_first else ""
        address = Address(settings.host, settings.port, is_shared=True, door=door)
    return Listening(
        address,
        Bounds(
            most_requests=_MOST_REQUESTS,
            grace_s=settings.drain_s,
            most_body_bytes=settings.most_body_bytes,
            most_held_bytes=settings.most_held_bytes,
        ),
        None if certificate is None else certificate.context(),
    )


class Served:
    """A serving gateway, and its present settings."""

    def __init__(
        self,
        settings: GatewaySettings,
        gateway: Gateway,
        lineup: Lineup,
        keyring: Keyring,
        gates: Gates,
    ) -> None:
        self._settings = settings
        self._lineup = lineup
        self._keyring = keyring
        self._gates = gates
        self.gateway = gateway

    def change(self, settings: GatewaySettings) -> list[str]:
        """Applies other settings; returns notes about them.

        Raises ConfigError, and then changes nothing.
        """
        before = self._settings
        fixed = [name for name in _FIXED if getattr(settings, name) != getattr(before, name)]
        old, new = before.endpoints, settings.endpoints
        self._check_classes(settings)
        self._keyring.reload()
        if not (settings.embedded or before.embedded or settings.function or before.function):
            self._lineup.change(settings.endpoints)
        self._gates.tenants.replace(settings.tenants)
        self._gates.meter.change(settings.price_table)
        self._settings = msgspec.structs.replace(
            settings, **{name: getattr(before, name) for name in _FIXED}
        )
        notes = [f"{name} changes only at a restart" for name in fixed]
        if come := [one.label for one in new if one not in old]:
            notes.append(f"new: {', '.join(come)}")
        if settings.tenants != before.tenants:
            notes.append("other limits of tenants")
        if gone := [one.label for one in old if one not in new]:
            notes.append(f"no longer: {', '.join(gone)}")
        return notes or ["nothing has changed"]

    def _check_classes(self, settings: GatewaySettings) -> None:
        """Raises ConfigError for a tenant with a class that needs a restart."""
        known = self._gates.priorities
        for name, tenant in settings.tenants.items():
            for klass in (tenant.default_class, *tenant.classes):
                if klass not in known:
                    raise ConfigError(
                        f"the class {klass} of tenant {name} needs a restart",
                        hint="restart the gateway for other classes",
                    )


def serve_gateway(
    settings: GatewaySettings,
    *,
    reread: Callable[[], GatewaySettings],
    on_url: Callable[[str], None],
    on_note: Callable[[str], None],
    worker: Worker | None = None,
) -> None:
    """Serves until SIGINT or SIGTERM; a second signal ends the process at once.

    reread: returns the settings as they are configured now; called on SIGHUP. on_url: called with
    the base URL, once connections are accepted. on_note: called with each notice, one line. worker:
    if this process is one of several. Raises ConfigError.
    """

    async def main(stop: asyncio.Event) -> None:
        def close(_: int) -> None:
            on_signals(end_at_once)
            stop.set()

        on_signals(close)
        if worker is not None:
            worker.on_orphaned(stop.set)
        raise_limit_fully()
        async with gateway_of(_worked(settings, worker), worker) as served:
            # All workers read the same settings: only one reports the notes.
            told = on_note if worker is None or worker.is_first else _forget
            _on_hangup(lambda: _reread(served, lambda: _worked(reread(), worker), told))
            on_url(served.gateway.base_url)
            await stop.wait()
            who = "" if worker is None else f"{worker.name}: "
            if in_flight := served.gateway.in_flight:
                calls = counted(in_flight, "call")
                on_note(f"{who}ending {calls}, within {settings.drain_s:g} s")
        if cut := served.gateway.totals.cut:
            calls = counted(cut, "call was", "calls were")
            on_note(f"{who}{calls} cut off after {settings.drain_s:g} s")

    run_until_told(main)


def serve_workers(
    settings: GatewaySettings,
    flags: Flags,
    *,
    on_url: Callable[[str], None],
    on_note: Callable[[str], None],
) -> int:
    """Serves as `serve_gateway` does, by several processes; returns their exit status.

    flags: of the command line, from which each process makes its settings.
    """
    status = 0
    plan = Plan(
        workers=settings.workers,
        host=settings.host,
        port=settings.port,
        embedded=settings.embedded,
        flags=dict(flags),
    )

    async def main(stop: asyncio.Event) -> None:
        nonlocal status
        status = await supervise(plan, stop, on_url, on_note)

    run_until_told(main)
    return status


def _worked(settings: GatewaySettings, worker: Worker | None) -> GatewaySettings:
    """The settings of a worker: its port, and rates that all workers share."""
    if worker is None:
        return settings
    state = settings.state or Path(worker.folder)
    endpoints = tuple(worker.sharing(one, state / "limits") for one in settings.endpoints)
    return msgspec.structs.replace(settings, port=worker.port, endpoints=endpoints)


def _forget(_: str) -> None:
    """Says nothing."""


def _reread(
    served: Served, reread: Callable[[], GatewaySettings], on_note: Callable[[str], None]
) -> None:
    """Reads and applies the settings; invalid ones are reported, and the present ones stay."""
    try:
        notes = served.change(reread())
    except ConfigError as error:
        why = ": ".join(filter(None, (error.where, error.what)))
        on_note(f"the settings are unchanged: {why}")
        return
    for note in notes:
        served.gateway.watch.note(f"settings read: {note}")
        on_note(f"settings read: {note}")


def _on_hangup(told: Callable[[], None]) -> None:
    """Has the running event loop call `told` on SIGHUP, on systems that have this signal."""
    if hasattr(signal, "SIGHUP"):
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, told)


@asynccontextmanager
async def _answering(
    settings: GatewaySettings, inside: str | None
) -> AsyncIterator[tuple[Endpoint, ...]]:
    """The endpoints, while the embedded server, if there is one, runs.

    inside: its URL if it runs already.
    """
    if settings.embedded is None:
        yield settings.endpoints
        return
    async with nullcontext(inside) if inside else settings.embedded.open() as base_url:
        # Its port differs at each start; cached answers are identified by the group.
        whose = settings.embedded.identity()
        stated = settings.endpoints[0]
        yield (msgspec.structs.replace(stated, base_url=base_url, proxy="", group=whose),)


@asynccontextmanager
async def _remembering(settings: GatewaySettings) -> AsyncIterator[Answers | None]:
    """The cache of answers while it is entered; None if no cache is configured."""
    cache = settings.cache
    if cache is None:
        yield None
        return
    assert cache.folder is not None
    store = AnswerStore(Path(cache.folder), cache.max_bytes)
    await asyncio.to_thread(store.open)
    try:
        yield Answers(
            store=store,
            use=CacheUse(),
            includes_sampled=cache.includes_sampled,
            ttl_s=settings.cache_ttl_s,
        )
    finally:
        await store.aclose()


@asynccontextmanager
async def _keeping(
    settings: GatewaySettings | None, gateway: Gateway, tenants: Tenants
) -> AsyncIterator[None]:
    """Saves tenants' spending beside the key file for the next start, if keys are configured."""
    if settings is None or settings.keys is None:
        yield
        return

    def on_error(error: RedlineError) -> None:
        gateway.watch.note(f"spending cannot be saved: {error.what}")

    keeper = SpendingKeeper(spending_path(settings.keys), tenants, on_error)
    keeper.keep()
    async with _beside_it(keeper.run()):
        yield


@asynccontextmanager
async def _following(
    keyring: Keyring, settings: GatewaySettings, gateway: Gateway
) -> AsyncIterator[None]:
    """Follows the key file, if there is one."""
    if settings.keys is None:
        yield
        return
    async with _beside_it(_follow_keys(keyring, gateway)):
        yield


@asynccontextmanager
async def _beside_it(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Runs the work while it is entered."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def _follow_keys(keyring: Keyring, gateway: Gateway) -> None:
    """Reads the key file again when it has changed; a damaged file changes nothing."""
    said = ""
    while True:
        await asyncio.sleep(_LOOK_S)
        try:
            if keyring.reload_if_changed():
                gateway.watch.note("keys read")
            said = ""
        except ConfigError as error:
            if error.what != said:
                said = error.what
                gateway.watch.note(f"the keys are unchanged: {said}")


@asynccontextmanager
async def _begun(batches: Batches | None) -> AsyncIterator[None]:
    """Runs batches while it is entered, if there are any."""
    if batches is None:
        yield
        return
    async with batches:
        yield


def _lineup(
    settings: GatewaySettings,
    endpoints: tuple[Endpoint, ...],
    gates: Gates,
    answers: Answers | None,
    worker: Worker | None,
) -> Lineup:
    """The lineup of endpoints. Raises ConfigError for a function that cannot be loaded."""
    function = settings.function
    if function is not None:
        served = function_backend(
            function.spec, max_batch_size=function.max_batch_size, max_wait_s=function.max_wait_s
        )
        return FunctionLineup(served, gates)
    # These files record the sends of this process; workers share a ledger instead.
    state = settings.state
    stores = None if state is None or worker is not None else Stores(recent=state / "limits")
    return Lineup(
        endpoints,
        gates,
        balance=settings.balance,
        most=settings.most,
        worker=worker,
        stores=stores,
        answers=answers,
    )
