"""Settings outside the command line: `redline.toml`, `.env` and the environment."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from dotenv import dotenv_values

from redline.errors import ConfigError, nearest

FILE = "redline.toml"

ENDPOINT_KEYS = (
    "base_url",
    "api_key_env",
    "model",
    "headers",
    "proxy",
    "requests",
    "tokens",
    "concurrency",
    "profile",
    "headroom",
    "timeout",
    "connect_timeout",
    "first_byte_timeout",
)


class Configuration(msgspec.Struct, frozen=True, kw_only=True):
    """endpoints: by name, keys of ENDPOINT_KEYS. run: defaults of `redline run`'s flags.

    environ: the environment, and below it the `.env` file.
    """

    endpoints: dict[str, dict[str, Any]] = {}
    run: dict[str, Any] = {}
    environ: Mapping[str, str] = {}


def load(folder: Path, run_keys: tuple[str, ...]) -> Configuration:
    """What `redline.toml` and `.env` in `folder` say; both may be missing.

    run_keys: the flags that `[run]` may set. Raises ConfigError that names an unknown key and the
    nearest known one.
    """
    environ = {
        name: value for name, value in dotenv_values(folder / ".env").items() if value is not None
    }
    environ.update(os.environ)
    path = folder / FILE
    try:
        tables = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return Configuration(environ=environ)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
    _known(tables, ("endpoints", "run"), FILE)
    endpoints = _table(tables, "endpoints")
    for name, settings in endpoints.items():
        _known(_table(endpoints, name), ENDPOINT_KEYS, f"{FILE}, endpoint {name}")
        if "base_url" not in settings:
            raise ConfigError(f"the endpoint {name} has no base_url", where=FILE)
    run = {key.replace("-", "_"): value for key, value in _table(tables, "run").items()}
    _known(run, run_keys, f"{FILE}, [run]")
    return Configuration(endpoints=endpoints, run=run, environ=environ)


def _table(tables: dict[str, Any], name: str) -> dict[str, Any]:
    table = tables.get(name, {})
    if not isinstance(table, dict):
        raise ConfigError(f"{name} must be a table", where=FILE, hint=f"write [{name}]")
    return table


def _known(table: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    for key in table:
        if key not in known:
            raise ConfigError(
                f"unknown setting: {key}",
                where=where,
                hint=nearest(key, known) or f"known are: {', '.join(known)}",
            )
