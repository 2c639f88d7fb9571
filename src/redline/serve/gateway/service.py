"""Runs a gateway from start to end, and reloads its settings on SIGHUP.

state     from             calls
starting  start            are not accepted; after SIGHUP, the gateway reloads as soon as it serves
serving   ready            are answered; SIGHUP reloads the settings, and no call is lost
draining  SIGINT, SIGTERM  in flight get `drain_s` to end, new ones are refused; a second signal
                           cuts off those in flight
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from redline.calls import Endpoint, Stores
from redline.calls.cache import AnswerStore, Cached
from redline.errors import ConfigError
from redline.httpserver import Address, check_address
from redline.job.settings import Embedded, Flags
from redline.process import counted, end_at_second, end_tasks, raise_limit_fully, run_until_told
from redline.serve.batches import Batches
from redline.serve.functions import function_backend
from redline.serve.gateway.gates import Gates
from redline.serve.gateway.gateway import Gateway
from redline.serve.gateway.lines import Lines
from redline.serve.gateway.lineup import FunctionLineup, Lineup
from redline.serve.gateway.metering import Meter
from redline.serve.gateway.settings import GatewaySettings, make_folder
from redline.serve.http import Bounds
from redline.serve.keys import OWN, Keyring, SharedStore, SpendingKeeper, Tenants
from redline.serve.workers import Elsewhere, Fellows, Worker, supervise

_LOOK_S = 1.0
# Seconds between two attempts to use lost endpoints again.
_RENEW_S = 60.0
# More than the calls that may wait in all classes by default, so that calls are refused by their
# class.
_MOST_REQUESTS = 16_384
# The settings that cannot change while the gateway serves.
_FIXED = (
    *("host", "port", "workers", "certificate", "function"),
    *("state", "keys", "balance", "cache", "cache_ttl_s", "classes", "batches"),
    *("drain_s", "most_body_bytes"),
)
# Names in the file that differ from those of the fields.
_NAMED = {
    "embedded": "endpoint",
    "cache_ttl_s": "cache_ttl",
    "drain_s": "drain",
    "most_body_bytes": "body_size",
}


@asynccontextmanager
async def gateway_of(
    settings: GatewaySettings,
    worker: Worker | None = None,
    on_note: Callable[[str], None] = lambda _: None,
) -> AsyncIterator[Served]:
    """Yields a serving gateway, or one worker's part of it; drains and closes it after the block.

    on_note: called with a text of one line if the key file is damaged after the start. Raises
    ConfigError if the gateway cannot start with these settings, and JournalError if its stored
    state cannot be read or written.
    """
    if worker is None and settings.embedded is not None:
        # Loading a model may take minutes.
        await check_address("the server", (settings.host, settings.port))
    async with AsyncExitStack() as stack:
        inside = await stack.enter_async_context(_inside(settings.embedded, worker))
        remembered = await _remembered(settings, stack)
        tenants = Tenants(
            settings.tenants,
            store=OWN if worker is None else SharedStore(worker.table, worker.number),
        )
        lineup = _lineup(
            settings,
            _placed(settings.endpoints, inside),
            Gates(settings.classes, tenants, Meter(settings.price_table), worker),
            remembered,
            worker,
        )
        stack.push_async_callback(lineup.aclose)
        lines = Lines(lineup, settings.batch_class.name)
        batches = _batches(settings, lines, worker)
        certificate = settings.certificate
        gateway = Gateway(
            lineup,
            Keyring(settings.keys, tenants),
            batches,
            None if worker is None else Fellows(worker),
            address=_address(settings, worker),
            bounds=Bounds(
                most_requests=_MOST_REQUESTS,
                grace_s=settings.drain_s,
                most_body_bytes=settings.most_body_bytes,
                most_held_bytes=settings.most_held_bytes,
            ),
            ssl=None if certificate is None else certificate.context(),
        )
        lineup.report_to(gateway.watch.note)
        lines.count_in(gateway.totals)
        if settings.keys is not None:
            await stack.enter_async_context(_beside_it(_follow_keys(gateway, on_note)))
        if settings.spending is not None:
            await stack.enter_async_context(_keeping(settings.spending, gateway, worker))
        ending = [gateway.aclose]
        if isinstance(batches, Batches):
            await stack.enter_async_context(batches)
            ending.append(batches.drain)
        await stack.enter_async_context(_beside_it(gateway.watch.run()))
        await stack.enter_async_context(_beside_it(_renew(lineup)))
        yield Served(settings, await stack.enter_async_context(gateway), inside)
        # Concurrently: batches stop while interactive calls finish.
        await asyncio.gather(*(end() for end in ending))


def _address(settings: GatewaySettings, worker: Worker | None) -> Address:
    if worker is None:
        return Address(settings.host, settings.port)
    return Address(
        settings.host,
        settings.port,
        is_shared=True,
        door=str(worker.door) if worker.is_first else "",
    )


class Served(msgspec.Struct, eq=False):
    """A serving gateway, and its present settings.

    inside: the settings that a running embedded server replaces in its endpoint.
    """

    settings: GatewaySettings
    gateway: Gateway
    inside: dict[str, Any] = {}

    async def change(self, settings: GatewaySettings) -> list[str]:
        """Applies new settings, and returns notes that describe the changes.

        Only one change may be in progress. Raises ConfigError, and then changes nothing.
        """
        before, gateway = self.settings, self.gateway
        fixed = [name for name in _FIXED if getattr(settings, name) != getattr(before, name)]
        if _place(settings) != _place(before):
            fixed.append("embedded")
        kept = {*_FIXED, "embedded"}
        if "embedded" in fixed or "function" in fixed:
            # The new endpoints do not belong to the server or the function that is running.
            kept |= {"endpoints", "most"}
        settings = replace(settings, **{name: getattr(before, name) for name in kept})
        old, new = before.endpoints, settings.endpoints
        self._check_classes(settings)
        endpoints = _placed(new, self.inside)
        await gateway.lineup.check_shares(endpoints)
        keys, lost = gateway.keyring.read(), gateway.lineup.lost
        gateway.lineup.change(endpoints, settings.most)
        has_other_keys = gateway.keyring.take(keys)
        gateway.gates.tenants.replace(settings.tenants)
        gateway.gates.meter.change(settings.price_table)
        self.settings = settings
        notes = [f"{_NAMED.get(name, name)}: a change needs a restart" for name in fixed]
        before_of = {one.label: one for one in old}
        if come := [one.label for one in new if one.label not in before_of]:
            notes.append(f"new endpoints: {', '.join(come)}")
        if other := [one.label for one in new if before_of.get(one.label, one) != one]:
            notes.append(f"changed endpoints: {', '.join(other)}")
        if again := [one.label for one in new if one in old and one.label in lost]:
            notes.append(f"trying again: {', '.join(again)}")
        if settings.most != before.most:
            notes.append("concurrency changed")
        if settings.tenants != before.tenants:
            notes.append("tenants changed")
        if has_other_keys:
            notes.append(f"keys changed ({gateway.keyring.active:,} active)")
        if settings.prices != before.prices:
            notes.append("prices changed")
        if gone := before_of.keys() - {one.label for one in new}:
            notes.append(f"removed endpoints: {', '.join(sorted(gone))}")
        return notes or ["nothing has changed"]

    def _check_classes(self, settings: GatewaySettings) -> None:
        """Raises ConfigError if a tenant uses a class that exists only after a restart."""
        known = self.gateway.gates.priorities
        for name, tenant in settings.tenants.items():
            for klass in (tenant.default_class, *tenant.classes):
                if klass not in known:
                    raise ConfigError(
                        f"tenant {name} uses the class {klass}, which the running gateway "
                        "does not have",
                        hint="restart the gateway to add a class",
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

    reread: reads the settings again, on SIGHUP. on_url: called with the base URL, once connections
    are accepted. on_note: called with each notice, a text of one line. worker: this process, if it
    is one of several workers; the base URL then goes to its parent, not to `on_url`. Raises
    ConfigError or JournalError as `gateway_of` does.
    """

    async def main(stop: asyncio.Event) -> None:
        end_at_second(stop)
        is_outdated = asyncio.Event()
        if hasattr(signal, "SIGHUP"):
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, is_outdated.set)
        if worker is not None:
            worker.on_orphaned(stop.set)
        raise_limit_fully()
        # All workers read the same settings and keys: only one reports the notes.
        told = on_note if worker is None or worker.is_first else lambda _: None
        async with gateway_of(_worked(settings, worker), worker, told) as served:
            follow = _follow_settings(is_outdated, served, lambda: _worked(reread(), worker), told)
            async with _beside_it(follow):
                (on_url if worker is None else worker.tell)(served.gateway.base_url)
                await stop.wait()
            who = "" if worker is None else f"{worker.name}: "
            if in_flight := served.gateway.in_flight:
                calls = counted(in_flight, "call")
                on_note(f"{who}waiting up to {settings.drain_s:g} s for {calls} in flight")
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
    """Serves as `serve_gateway` does, but with several processes, and returns the exit status.

    flags: from the command line; each process makes its settings from them.
    """
    supervised = partial(
        supervise,
        on_url=on_url,
        on_note=on_note,
        workers=settings.workers,
        address=(settings.host, settings.port),
        embedded=settings.embedded,
        flags=dict(flags),
    )
    return run_until_told(supervised)


def _worked(settings: GatewaySettings, worker: Worker | None) -> GatewaySettings:
    """Returns the settings of a worker, with its port and with limits that all workers share."""
    if worker is None:
        return settings
    state = settings.state or Path(worker.folder)
    endpoints = tuple(worker.sharing(one, state / "limits") for one in settings.endpoints)
    return replace(settings, port=worker.port, endpoints=endpoints)


async def _follow_settings(
    is_outdated: asyncio.Event,
    served: Served,
    reread: Callable[[], GatewaySettings],
    on_note: Callable[[str], None],
) -> None:
    """Reads and applies the settings each time the event is set.

    If they are invalid, reports that and keeps the old ones.
    """
    while True:
        await is_outdated.wait()
        is_outdated.clear()
        try:
            notes = await served.change(reread())
        except ConfigError as error:
            on_note(f"the settings are unchanged: {_located(error)}")
            continue
        for note in notes:
            served.gateway.watch.note(f"settings read: {note}")
            on_note(f"settings read: {note}")


def _place(settings: GatewaySettings) -> str:
    """Returns the name of the embedded server, "" for none, to find out whether it has changed.

    The servers themselves differ, since each reading of the settings makes a new object.
    """
    return "" if settings.embedded is None else settings.embedded.place


@asynccontextmanager
async def _inside(
    embedded: Embedded | None, worker: Worker | None
) -> AsyncIterator[dict[str, Any]]:
    """Runs an embedded server, which all workers use, for the block; yields `Served.inside`."""
    if embedded is None:
        yield {}
        return
    inside = None if worker is None else worker.inside
    async with nullcontext(inside) if inside else embedded.open() as base_url:
        # The port differs at each start, so the group identifies cached answers instead.
        yield {"base_url": base_url, "proxy": "", "group": embedded.identity()}


def _placed(endpoints: Iterable[Endpoint], inside: dict[str, Any]) -> tuple[Endpoint, ...]:
    """Returns the endpoints with the address of the embedded server, if any. inside: see Served."""
    return tuple(replace(one, **inside) for one in endpoints)


async def _remembered(settings: GatewaySettings, stack: AsyncExitStack) -> partial[Cached] | None:
    """Opens the cache until the stack is closed; returns a function that puts a backend behind it.

    Returns None without a cache.
    """
    cache = settings.cache
    if cache is None:
        return None
    assert cache.folder is not None
    store = AnswerStore(Path(cache.folder), cache.max_bytes)
    await asyncio.to_thread(store.open)
    stack.push_async_callback(store.aclose)
    return partial(
        Cached, store=store, includes_sampled=cache.includes_sampled, ttl_s=settings.cache_ttl_s
    )


@asynccontextmanager
async def _beside_it(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Runs the work in a task until the context ends."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        await end_tasks(task)


@asynccontextmanager
async def _keeping(path: Path, gateway: Gateway, worker: Worker | None) -> AsyncIterator[None]:
    """Saves tenants' spending once a second, in only the first of several workers, and at the end.

    At the end of the context, every worker saves, to include its last calls. Raises ConfigError or
    JournalError if the file cannot be read or written at the start.
    """
    keeper = SpendingKeeper(
        path,
        gateway.gates.tenants,
        lambda error: gateway.watch.note(f"spending cannot be saved: {error.what}"),
    )
    if worker is None or worker.is_first:
        make_folder(path.parent)
        # Reads what was spent before this start.
        keeper.keep()
        async with _beside_it(keeper.run()):
            yield
        return
    try:
        yield
    finally:
        keeper.end()


async def _renew(lineup: Lineup) -> None:
    """Tries lost endpoints again every _RENEW_S seconds; they do not come back by themselves."""
    while True:
        await asyncio.sleep(_RENEW_S)
        if lineup.lost:
            lineup.change([*lineup.endpoints], lineup.most)


def _located(error: ConfigError) -> str:
    """Returns the error's text, after its place if it has one."""
    return ": ".join(filter(None, (error.where, error.what)))


async def _follow_keys(gateway: Gateway, on_note: Callable[[str], None]) -> None:
    """Reloads the key file whenever it changes.

    If it is damaged, reports that once, and keeps the previous keys.
    """
    said = ""
    while True:
        await asyncio.sleep(_LOOK_S)
        try:
            if gateway.keyring.reload_if_changed():
                gateway.watch.note("keys read")
            said = ""
        except ConfigError as error:
            note = f"the keys are unchanged: {_located(error)}"
            if note != said:
                said = note
                gateway.watch.note(note)
                on_note(note)


def _batches(
    settings: GatewaySettings, lines: Lines, worker: Worker | None
) -> Batches | Elsewhere | None:
    """Makes the object that serves files and batches; None without a state folder."""
    if settings.state is None:
        return None
    bounds = replace(
        settings.batches, grace_s=settings.drain_s, priority=settings.batch_class.priority
    )
    batches = Batches(settings.state / "batches", lines, bounds)
    if worker is None or worker.is_first:
        return batches
    # Only the first worker has files and batches; the others forward requests to the first.
    return Elsewhere(worker.door, batches.routes)


def _lineup(
    settings: GatewaySettings,
    endpoints: tuple[Endpoint, ...],
    gates: Gates,
    remembered: partial[Cached] | None,
    worker: Worker | None,
) -> Lineup:
    """Makes the lineup. Raises ConfigError, for example if the function cannot be loaded."""
    if settings.function is not None:
        return FunctionLineup(function_backend(settings.function), gates)
    # These files record when this process sent requests; workers share a ledger instead.
    state = settings.state
    stores = None if state is None or worker is not None else Stores(recent=state / "limits")
    return Lineup(
        endpoints,
        gates,
        balance=settings.balance,
        most=settings.most,
        worker=worker,
        stores=stores,
        remembered=remembered,
    )
