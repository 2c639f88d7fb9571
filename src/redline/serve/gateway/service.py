"""A gateway until it is told to end: made from its settings, and made anew from them on SIGHUP.

state     from     a call
serving   start    is answered; SIGHUP has the settings read again, and no call is lost by it
draining  SIGTERM  new ones are refused, those in flight have `drain_s`; a second signal ends them
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from redline.calls import Endpoint, Stores
from redline.calls.cache import AnswerStore
from redline.errors import ConfigError, RedlineError
from redline.process import counted, end_at_once, on_signals, raise_limit_fully, run_until_told
from redline.serve.batches import Batches
from redline.serve.functions import function_backend
from redline.serve.gateway.classes import Admission
from redline.serve.gateway.gateway import Gateway
from redline.serve.gateway.lines import Lines
from redline.serve.gateway.lineup import Answers, FunctionLineup, Lineup
from redline.serve.gateway.metering import Meter
from redline.serve.gateway.settings import GatewaySettings
from redline.serve.http import Bounds
from redline.serve.keys import Keyring, SpendingKeeper, Tenants, spending_path
from redline.waist import CacheUse

_LOOK_S = 1.0
# More than all classes keep waiting, so that it is a class that refuses.
_MOST_REQUESTS = 16_384
# What cannot change while it serves.
_FIXED = (
    *("host", "port", "certificate", "embedded", "function"),
    *("state", "keys", "most", "balance", "cache", "classes"),
)


@asynccontextmanager
async def gateway_of(settings: GatewaySettings) -> AsyncIterator[Served]:
    """A gateway that serves while it is entered. Raises ConfigError."""
    async with _answering(settings) as endpoints, _remembering(settings) as answers:
        tenants = Tenants(settings.tenants)
        admission = Admission(settings.classes, tenants, Meter(settings.price_table))
        lineup = _lineup(settings, endpoints, admission, answers)
        certificate = settings.certificate
        keyring = Keyring(settings.keys, tenants)
        batches = None
        if settings.state is not None:
            batches = Batches(settings.state / "batches", Lines(lineup, tenants, admission.meter))
        gateway = Gateway(
            lineup,
            keyring,
            admission,
            batches,
            address=(settings.host, settings.port),
            bounds=Bounds(
                most_requests=_MOST_REQUESTS,
                grace_s=settings.drain_s,
                most_body_bytes=settings.most_body_bytes,
            ),
            ssl=None if certificate is None else certificate.context(),
        )
        try:
            async with _kept(keyring, settings, gateway, tenants), _begun(batches), gateway:
                yield Served(settings, gateway, lineup, keyring, admission)
                # Both at once: batches stop while interactive calls end.
                await asyncio.gather(gateway.aclose(), *([batches.drain()] if batches else []))
        finally:
            await lineup.aclose()


class Served:
    """A gateway that serves, and the settings that it has now."""

    def __init__(
        self,
        settings: GatewaySettings,
        gateway: Gateway,
        lineup: Lineup,
        keyring: Keyring,
        admission: Admission,
    ) -> None:
        self._settings = settings
        self._lineup = lineup
        self._keyring = keyring
        self._admission = admission
        self.gateway = gateway

    def change(self, settings: GatewaySettings) -> list[str]:
        """Takes up other settings; notes about it. Raises ConfigError, and changes nothing."""
        before = self._settings
        fixed = [name for name in _FIXED if getattr(settings, name) != getattr(before, name)]
        old, new = before.endpoints, settings.endpoints
        self._keyring.reload()
        if not (settings.embedded or before.embedded or settings.function or before.function):
            self._lineup.change(settings.endpoints)
        self._admission.tenants.replace(settings.tenants)
        self._admission.meter.change(settings.price_table)
        self._settings = msgspec.structs.replace(
            settings, **{name: getattr(before, name) for name in _FIXED}
        )
        notes = [f"{name} changes only at a start" for name in fixed]
        if come := [one.label for one in new if one not in old]:
            notes.append(f"new: {', '.join(come)}")
        if settings.tenants != before.tenants:
            notes.append("other limits of tenants")
        if gone := [one.label for one in old if one not in new]:
            notes.append(f"no longer: {', '.join(gone)}")
        return notes or ["nothing has changed"]


def serve_gateway(
    settings: GatewaySettings,
    *,
    reread: Callable[[], GatewaySettings],
    on_url: Callable[[str], None],
    on_note: Callable[[str], None],
) -> None:
    """Serves until SIGINT or SIGTERM; a second one ends the process at once.

    reread: the settings as they are stated now, asked for on SIGHUP. on_url: told the base URL,
    once connections are accepted. on_note: told what happens, a line each. Raises ConfigError.
    """

    async def main(stop: asyncio.Event) -> None:
        def close(_: int) -> None:
            on_signals(end_at_once)
            stop.set()

        on_signals(close)
        raise_limit_fully()
        async with gateway_of(settings) as served:
            _on_hangup(lambda: _reread(served, reread, on_note))
            on_url(served.gateway.base_url)
            await stop.wait()
            if in_flight := served.gateway.in_flight:
                calls = counted(in_flight, "call")
                on_note(f"ending {calls}, within {settings.drain_s:g} s")

    run_until_told(main)


def _reread(
    served: Served, reread: Callable[[], GatewaySettings], on_note: Callable[[str], None]
) -> None:
    """Takes up the settings as they are stated now; those in use stay if they are wrong."""
    try:
        notes = served.change(reread())
    except ConfigError as error:
        on_note(f"the settings stay as they are: {error.where}: {error.what}")
        return
    for note in notes:
        served.gateway.watch.note(f"settings read: {note}")
        on_note(f"settings read: {note}")


def _on_hangup(told: Callable[[], None]) -> None:
    """The running event loop calls it on SIGHUP, on systems that have it."""
    if hasattr(signal, "SIGHUP"):
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, told)


@asynccontextmanager
async def _answering(settings: GatewaySettings) -> AsyncIterator[tuple[Endpoint, ...]]:
    """The endpoints, while the server inside, if there is one, runs."""
    if settings.embedded is None:
        yield settings.endpoints
        return
    async with settings.embedded.open() as base_url:
        # Its port is another one each time; what answers is told apart by the group.
        whose = settings.embedded.identity()
        stated = settings.endpoints[0]
        yield (msgspec.structs.replace(stated, base_url=base_url, proxy="", group=whose),)


@asynccontextmanager
async def _remembering(settings: GatewaySettings) -> AsyncIterator[Answers | None]:
    """The cache of answers while it is entered, if there is to be one."""
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
async def _kept(
    keyring: Keyring, settings: GatewaySettings, gateway: Gateway, tenants: Tenants
) -> AsyncIterator[None]:
    """Follows the file of keys, and keeps what tenants spend beside it for the next start."""
    if settings.keys is None:
        yield
        return

    def on_error(error: RedlineError) -> None:
        gateway.watch.note(f"spending cannot be saved: {error.what}")

    keeper = SpendingKeeper(spending_path(settings.keys), tenants, on_error)
    keeper.keep()
    tasks = [
        asyncio.create_task(keeper.run()),
        asyncio.create_task(_follow_keys(keyring, gateway)),
    ]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def _follow_keys(keyring: Keyring, gateway: Gateway) -> None:
    """Reads the file of keys again when it has changed; a damaged one changes nothing."""
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
                gateway.watch.note(f"the keys stay as they are: {said}")


@asynccontextmanager
async def _begun(batches: Batches | None) -> AsyncIterator[None]:
    """Batches go on while it is entered, if there are any."""
    if batches is None:
        yield
        return
    async with batches:
        yield


def _lineup(
    settings: GatewaySettings,
    endpoints: tuple[Endpoint, ...],
    admission: Admission,
    answers: Answers | None,
) -> Lineup:
    """Who answers. Raises ConfigError for a function that cannot be loaded."""
    function = settings.function
    if function is not None:
        served = function_backend(
            function.spec, max_batch_size=function.max_batch_size, max_wait_s=function.max_wait_s
        )
        return FunctionLineup(served, admission)
    stores = Stores() if settings.state is None else Stores(recent=settings.state / "limits")
    return Lineup(
        endpoints,
        admission,
        balance=settings.balance,
        most=settings.most,
        stores=stores,
        answers=answers,
        price=_price,
    )


def _price(endpoint: Endpoint) -> float:
    """What a token costs there, of input and output each; 0 if that is unknown."""
    costs = [price.input + price.output for price in endpoint.tariff.values()]
    return float(max(costs, default=0))
