"""Reads the settings of a fleet from a file such as fleet.toml."""

from __future__ import annotations

import dataclasses
import os
import shlex
from pathlib import Path
from typing import Any

import msgspec

from redline.calls import Endpoint
from redline.errors import ConfigError
from redline.httpserver import check_host
from redline.job.settings import (
    OF_ENDPOINT,
    Environment,
    Kind,
    endpoint_of,
    errors_in,
    key_in,
    kinds_of,
    options_in,
    read_toml,
    refuse_unknown,
    settings_in,
    struct_in,
    table_in,
    underscored,
)
from redline.route import check_balance
from redline.route.scale import LocalReplica, ScaleSettings

# The settings of an endpoint that [replica] does not accept, because a replica has no URL, name or
# account of its own; and those that it accepts.
_NOT_OF_REPLICA = {"base_url", "model", "proxy", "share", "weight", "group", "models"}
_OF_REPLICA = {
    **kinds_of(o for name, o in OF_ENDPOINT.items() if name not in _NOT_OF_REPLICA),
    "headers": Kind.TABLE,
}
_ANY_URL = "http://127.0.0.1/v1"


class _Top(msgspec.Struct, kw_only=True):
    model: str = ""
    balance: str = "p2c"
    front: dict[str, Any] = {}
    replica: dict[str, Any] = {}
    scale: dict[str, Any] = {}


class FrontSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The address at which the fleet listens. port: 0 for a free one.

    drain_s: seconds that calls in flight get at shutdown, above 0 and at most 86,400. Raises
    ConfigError for a value out of range.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    drain_s: float = 60.0

    def __post_init__(self) -> None:
        check_host(self.host)
        if not 0 <= self.port <= 65_535:
            raise ConfigError(
                f"port must be 0 to 65535, not {self.port}", hint="0 picks a free one"
            )
        if not 0 < self.drain_s <= 86_400:
            raise ConfigError(f"drain_s must be above 0 and at most 86,400, not {self.drain_s:g}")


class _Started(msgspec.Struct, kw_only=True):
    """The settings in [replica] other than those of an endpoint."""

    command: str | list[str] = ""
    env: dict[str, str] = {}
    cwd: str = "."
    logs: str = ""
    start_s: float = LocalReplica.__struct_defaults__[-1]
    trial: str = "/v1/chat/completions"


class FleetSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a fleet.

    model: the model's name for clients, and in requests to replicas. balance: see `Pool`.
    """

    model: str
    replica: LocalReplica
    balance: str = "p2c"
    front: FrontSettings = FrontSettings()
    scale: ScaleSettings = ScaleSettings()


def read_fleet(path: Path) -> FleetSettings:
    """Returns the fleet that a file describes. Paths in the file are relative to its folder.

    Raises ConfigError, which names the file and the table.
    """
    top = _top(path)
    where = path.name
    if not top.model:
        raise ConfigError(
            "model is missing",
            where=where,
            hint='for example model = "qwen3-8b", above the tables',
        )
    with errors_in(f"{where}, balance"):
        check_balance(top.balance)
    return FleetSettings(
        model=top.model,
        balance=top.balance,
        front=_front(top, where),
        replica=_replica(path, top),
        scale=struct_in(top.scale, ScaleSettings, f"{where}, [scale]"),
    )


def front_of(path: Path) -> FrontSettings:
    """Returns the address of the fleet that a file describes. Raises ConfigError."""
    return _front(_top(path), path.name)


def _top(path: Path) -> _Top:
    try:
        tables = read_toml(path)
    except FileNotFoundError:
        raise ConfigError(
            f"there is no file {path}", hint="docs/fleet.md#a-fleet-of-your-own has an example"
        ) from None
    for name in ("front", "replica", "scale"):
        table_in(tables.get(name, {}), name, path.name)
    return struct_in(tables, _Top, path.name)


def _front(top: _Top, where: str) -> FrontSettings:
    return struct_in(top.front, FrontSettings, f"{where}, [front]")


def _replica(path: Path, top: _Top) -> LocalReplica:
    where, folder = f"{path.name}, [replica]", path.parent
    table = underscored(top.replica, where)
    refuse_unknown(table, (*_Started.__struct_fields__, *_OF_REPLICA), where)
    own = {key: value for key, value in table.items() if key in _Started.__struct_fields__}
    # Values in `env` may be numbers as well as strings.
    if isinstance(own.get("env"), dict):
        own["env"] = settings_in(own["env"], dict.fromkeys(own["env"], Kind.TEXT), f"{where}.env")
    started = struct_in(own, _Started, where)
    rest = {key: value for key, value in table.items() if key not in own}
    try:
        command = started.command
        return LocalReplica(
            command=shlex.split(command) if isinstance(command, str) else command,
            model=top.model,
            trial=started.trial,
            endpoint=_endpoint(settings_in(rest, _OF_REPLICA, where)),
            env=started.env,
            cwd=folder / Path(started.cwd).expanduser(),
            logs=folder / Path(started.logs or f"{path.stem}.logs").expanduser(),
            start_s=started.start_s,
        )
    except ValueError as error:
        raise ConfigError(f"command cannot be read: {error}", where=where) from error
    except ConfigError as error:
        error.where = error.where or where
        raise


def _endpoint(stated: dict[str, Any]) -> Endpoint:
    """Returns an endpoint with the limits, key, headers and timeouts of every replica."""
    variable = stated.get("api_key_env")
    options = dataclasses.replace(
        options_in(stated, shown=str),
        base_url=_ANY_URL,
        # Without api_key_env, no key is sent: the user's own server must not get a provider's key.
        api_key="" if variable is None else key_in(variable, "api_key_env", os.environ),
        headers=stated.get("headers"),
    )
    return endpoint_of(options, Environment(environ={}))
