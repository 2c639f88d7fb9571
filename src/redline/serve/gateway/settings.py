"""Defines the settings of a gateway: where it listens, what answers, and who may call."""

from __future__ import annotations

import math
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from redline.calls import Cache, Endpoint
from redline.calls.cost import Price, Prices
from redline.errors import ConfigError
from redline.httpserver import check_host
from redline.job.settings import Embedded, Option, errors_in, fields_in, table_in, values
from redline.limits.shared import check_ledger
from redline.process import MOST_PROCESSES
from redline.serve.admission import CLASSES, ClassSettings
from redline.serve.batches import BatchSettings
from redline.serve.functions import FunctionSettings, function_backend
from redline.serve.gateway.lineup import grouped
from redline.serve.keys import Keyring, SpendingFile, Tenants, TenantSettings, spending_path

if TYPE_CHECKING:
    from ssl import SSLContext

# Just below the bound on all held bodies together.
_MOST_BODY_BYTES = 10**9
_STATE_HINT = "choose a writable folder: --state"


class Certificate(msgspec.Struct, frozen=True, kw_only=True):
    """Files in PEM form: a certificate with its chain, and its private key."""

    chain: Path
    key: Path

    def context(self) -> SSLContext:
        """Makes the server's TLS context. Raises ConfigError if the files cannot be used."""
        import ssl  # importing ssl is slow, and most gateways listen on loopback

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.set_alpn_protocols(["http/1.1"])
        try:
            context.load_cert_chain(self.chain, self.key)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"the certificate cannot be used: {error.strerror or error}",
                where=f"{self.chain}, {self.key}",
                hint="both must be PEM files, and the key must not have a passphrase",
            ) from error
        return context


class GatewaySettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a gateway.

    endpoints: answer the calls. embedded: a server to start; its address becomes that of the only
    endpoint. function: answers instead of endpoints; None for endpoints.

    balance: how a pool chooses among its endpoints. most: the most calls in flight at all endpoints
    of a pool together; None for the sum of the endpoints' bounds. port: 0 for a free one. workers:
    the number of processes that listen at the address. drain_s: seconds for calls in flight at
    shutdown. most_body_bytes: the largest body of a request. most_held_bytes: see Bounds. state:
    the folder for data that outlives the process.

    keys: the file of API keys; None if requests need no key. tenants: the settings of each, by
    name. classes: priority classes, highest first. batches: bounds of files and batches. cache: its
    folder and size; None for no cache. cache_ttl_s: for how many seconds it keeps an answer.
    prices: by model, in dollars per million tokens.
    Raises ConfigError for an empty host, and for `workers` or `most_body_bytes` out of range.
    """

    endpoints: tuple[Endpoint, ...]
    embedded: Embedded | None = None
    function: FunctionSettings | None = None
    balance: str = "p2c"
    most: int | None = None
    host: str = "127.0.0.1"
    port: int = 8080
    workers: int = 1
    certificate: Certificate | None = None
    drain_s: float = 60.0
    most_body_bytes: int = 32_000_000
    most_held_bytes: int = 2**30
    state: Path | None = None
    keys: Path | None = None
    tenants: dict[str, TenantSettings] = {}
    classes: tuple[ClassSettings, ...] = CLASSES
    batches: BatchSettings = BatchSettings()
    cache: Cache | None = None
    cache_ttl_s: float = math.inf
    prices: dict[str, Price] = {}

    def __post_init__(self) -> None:
        check_host(self.host)
        if not 1 <= self.workers <= MOST_PROCESSES:
            raise ConfigError(f"workers must be 1 to {MOST_PROCESSES}, not {self.workers}")
        if not 0 < self.most_body_bytes <= _MOST_BODY_BYTES:
            raise ConfigError(
                f"the body size must be above 0 and at most 1g, not {self.most_body_bytes:,} bytes",
                hint="for example 500k or 32m",
            )

    def check(self) -> None:
        """Raises ConfigError for errors in the settings that would prevent a start.

        Imports the function, if there is one. Makes no connection, and does not listen.
        """
        grouped(self.endpoints)
        if self.certificate is not None:
            self.certificate.context()
        Keyring(self.keys, Tenants(self.tenants))
        if self.function is not None:
            function_backend(self.function)
        for endpoint in self.endpoints:
            if endpoint.limits.share:
                check_ledger(endpoint.limits)
        if self.state is not None:
            _check_folder(self.state / "batches")
        if self.cache is not None and self.cache.folder is not None:
            _check_folder(Path(self.cache.folder))
        spending = self.spending
        if spending is not None and spending.parent.exists():
            SpendingFile(spending).check()

    @property
    def spending(self) -> Path | None:
        """The file that records what tenants spend; None if neither keys nor state is set."""
        if self.keys is not None:
            return spending_path(self.keys)
        return None if self.state is None else self.state / "spent.json"

    @property
    def batch_class(self) -> ClassSettings:
        """The class of batches: `low`, whatever its priority, or the lowest if none is `low`."""
        lowest = max(self.classes, key=lambda one: one.priority)
        return next((one for one in self.classes if one.name == "low"), lowest)

    @property
    def price_table(self) -> Prices:
        """The prices, including models that an endpoint renames or prices differently."""
        models = {one.label: one.models for one in self.endpoints}
        return Prices(self.prices, models, {one.label: one.tariff for one in self.endpoints})


def _check_folder(folder: Path) -> None:
    """Raises ConfigError if the folder, or its nearest existing parent, is not writable."""
    found = next(one for one in (folder, *folder.absolute().parents) if one.exists())
    if not found.is_dir() or not os.access(found, os.W_OK | os.X_OK):
        reason = "is not writable" if found.is_dir() else "is not a folder"
        raise ConfigError(
            f"the state cannot be saved in {folder}: {found} {reason}", hint=_STATE_HINT
        )


def make_folder(folder: Path) -> None:
    """Creates the state folder if it does not exist. Raises ConfigError if that fails."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"the state cannot be saved in {folder}: {error.strerror}", hint=_STATE_HINT
        ) from error


CLASS_OPTIONS = (
    Option(key="priority", read=partial(values.whole, least=0, most=1000)),
    Option(key="reserved", read=values.number),
    Option(key="most_waiting", read=partial(values.whole, least=0)),
    Option(key="most_waiting_each", read=partial(values.whole, least=1)),
    Option(key="longest_wait", field="longest_wait_s", read=values.duration),
)


def parse_classes(tables: object, file: str) -> tuple[ClassSettings, ...]:
    """Returns the default classes, changed and extended by the tables [serve.classes.NAME].

    tables: NAME to table. file: the file's name, for errors. Raises ConfigError, which names the
    file and the table.
    """
    found = {one.name: one for one in CLASSES}
    for name, table in table_in(tables, "serve.classes", file).items():
        place = f"serve.classes.{name}"
        stated = fields_in(table, place, file, CLASS_OPTIONS)
        with errors_in(f"{file}, [{place}]"):
            found[name] = _class(name, stated, found.get(name))
    names: dict[int, str] = {}
    for name, one in found.items():
        if (other := names.setdefault(one.priority, name)) != name:
            raise ConfigError(
                f"the classes {other} and {name} both have priority {one.priority}",
                where=f"{file}, [serve.classes.{name}]",
                hint="give each its own; the lower number goes first",
            )
    return tuple(sorted(found.values(), key=lambda one: one.priority))


def _class(name: str, stated: dict[str, Any], usual: ClassSettings | None) -> ClassSettings:
    if usual is None and "priority" not in stated:
        raise ConfigError(
            "priority is missing", hint="the lower number goes first; the default of normal is 10"
        )
    if usual is None:
        return ClassSettings(name=name, **stated)
    return msgspec.structs.replace(usual, **stated)
