"""Reads the settings outside the command line: `redline.toml`, `.env` and the environment."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from redline.calls.cost import Price, parse_price
from redline.errors import ConfigError
from redline.job.settings import (
    FLAGS,
    KEY_VARIABLE,
    OF_ENDPOINT,
    SIM,
    Environment,
    Kind,
    OtelSettings,
    kinds_of,
    parse_alerts,
    parse_otel,
    read_toml,
    reason_of,
    refuse_unknown,
    settings_in,
    table_in,
)
from redline.observe import AlertSettings

if TYPE_CHECKING:
    from dotenv.parser import Original

FILE = "redline.toml"
_TABLES = ("alerts", "endpoints", "otel", "prices", "run", "serve", "tenants")
_NAME_THE_KEY = (
    f"--api-key-env NAME sends the key in NAME there, even if NAME is {KEY_VARIABLE}; "
    f"{KEY_VARIABLE}= before the command sends none"
)


# The settings of [run]: the options that are flags, and those of the display.
RUN_KEYS = {
    **kinds_of(option for option in FLAGS.values() if "toml" not in option.absent),
    "quiet": Kind.FLAG,
    "log": Kind.TEXT,
}
# The settings of [endpoints.NAME]. There, headers are a table and not a list of `NAME: VALUE`;
# `load` takes the prices out before it reads the other settings.
ENDPOINT_KEYS = {
    **kinds_of(OF_ENDPOINT.values()),
    **dict.fromkeys(("headers", "prices"), Kind.TABLE),
}


class Configuration(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the settings from redline.toml, `.env` and the environment.

    endpoints: settings by endpoint name, with keys of ENDPOINT_KEYS. run: defaults of the
    command's flags. The values in both have the form in which flags give them: text, booleans,
    lists of text, and tables of text.

    file: the name of the settings file. defaults: the name of the table that `run` comes from.
    serve, tenants: the tables as they are in the file. prices: by model. tariffs: the endpoints'
    own prices, by endpoint and model. alerts, otel: None if the file has no such table. environ:
    the environment, completed by the `.env` file. dotenv: the variables that only `.env` sets.
    notes: the lines of `.env` that are skipped, as sentences for the user.
    """

    file: str = FILE
    defaults: str = "run"
    serve: dict[str, Any] = {}
    tenants: dict[str, Any] = {}
    endpoints: dict[str, dict[str, Any]] = {}
    run: dict[str, Any] = {}
    prices: dict[str, Price] = {}
    alerts: AlertSettings | None = None
    otel: OtelSettings | None = None
    tariffs: dict[str, dict[str, Price]] = {}
    environ: Mapping[str, str] = {}
    dotenv: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()

    @property
    def environment(self) -> Environment:
        """The environment from which a job reads its server and API key."""
        return Environment(environ=self.environ, dotenv=self.dotenv, key_hint=_NAME_THE_KEY)

    def where_defaults(self) -> str:
        """Returns the table of the flags' defaults as shown in errors: `redline.toml, [run]`."""
        return _where(self.defaults, self.file)

    @contextmanager
    def located(self, given: Mapping[str, Any]) -> Iterator[None]:
        """Adds the table that set a flag to a ConfigError about it, unless `given` sets the flag.

        Such an error begins with the flag's name. given: the flags on the command line.
        """
        try:
            yield
        except ConfigError as error:
            name = error.what.partition(" ")[0].removeprefix("--").replace("-", "_")
            if name in self.run and name not in given:
                error.where = error.where or self.where_defaults()
            raise

    def where_endpoint(self, name: str) -> str:
        """Returns the table of an endpoint as errors name it: `redline.toml, [endpoints.NAME]`."""
        return _where(f"endpoints.{name}", self.file)


def load(
    folder: Path, run_kinds: Mapping[str, Kind] = RUN_KEYS, *, file: str = FILE
) -> Configuration:
    """Reads the settings in `redline.toml` and `.env` in `folder`; both may be missing.

    run_kinds: the flags that `[run]` may set. file: the file to read instead of redline.toml.
    Raises a ConfigError that names an unknown key and the nearest known one, or a value of the
    wrong kind.
    """
    from_file, notes = _dotenv(folder / ".env")
    tables = {}
    with suppress(FileNotFoundError):
        tables = read_toml(folder / file)
    refuse_unknown(tables, _TABLES, file)

    def table(name: str) -> dict[str, Any]:
        return table_in(tables.get(name, {}), name, file)

    stated = {
        name: table_in(each, f"endpoints.{name}", file) for name, each in table("endpoints").items()
    }
    tariffs = {
        name: _prices(each.pop("prices"), f"endpoints.{name}.prices", file)
        for name, each in stated.items()
        if "prices" in each
    }
    endpoints = {name: _endpoint(name, each, file) for name, each in stated.items()}
    run = table("run")
    alerts, otel = _where("alerts", file), _where("otel", file)
    return Configuration(
        file=file,
        serve=table("serve"),
        tenants=table("tenants"),
        endpoints=endpoints,
        run=settings_in(run, run_kinds, _where("run", file)),
        prices=_prices(tables.get("prices", {}), "prices", file),
        alerts=parse_alerts(table("alerts"), alerts) if "alerts" in tables else None,
        otel=parse_otel(table("otel"), otel) if "otel" in tables else None,
        tariffs=tariffs,
        environ={**from_file, **os.environ},
        dotenv=frozenset(from_file.keys() - os.environ.keys()),
        notes=notes,
    )


def _where(table: str, file: str) -> str:
    return f"{file}, [{table}]"


def _dotenv(path: Path) -> tuple[dict[str, str], tuple[str, ...]]:
    """Returns the variables in the file, and notes on its lines that cannot be parsed.

    Both are empty if there is no file. Raises ConfigError if it cannot be read.
    """
    if not path.exists() or path.is_dir():
        return {}, ()
    # Imported here: most folders have no `.env` file.
    from dotenv import dotenv_values
    from dotenv.parser import parse_stream

    try:
        with path.open(encoding="utf-8") as file:
            parsed = list(parse_stream(file))
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {path}: {reason_of(error)}") from error
    notes = [
        f"{path}: line {_line(each.original)} is skipped, as it does not have the form NAME=VALUE"
        for each in parsed
        if each.error
    ]
    valid = StringIO("".join(each.original.string for each in parsed if not each.error))
    values = dotenv_values(stream=valid)
    return {name: value for name, value in values.items() if value is not None}, tuple(notes)


def _line(found: Original) -> int:
    """Returns the number of the line with the statement, which may follow empty lines."""
    text = found.string
    return found.line + text[: len(text) - len(text.lstrip())].count("\n")


def _endpoint(name: str, table: dict[str, Any], file: str) -> dict[str, Any]:
    where = _where(f"endpoints.{name}", file)
    if name == SIM:
        raise ConfigError(
            f"no endpoint can be named {SIM}, the name of the simulated provider",
            where=where,
            hint="choose another name",
        )
    settings = settings_in(table, ENDPOINT_KEYS, where)
    if "base_url" not in settings:
        raise ConfigError(
            f"the endpoint {name} has no base_url",
            where=where,
            hint='for example base_url = "http://127.0.0.1:8000/v1"',
        )
    return settings


def _prices(tables: object, name: str, file: str) -> dict[str, Price]:
    """Reads the prices in a table of this name, by model."""
    found = {}
    for model, table in table_in(tables, name, file).items():
        place = f'{name}."{model}"'
        found[model] = parse_price(model, table_in(table, place, file), _where(place, file))
    return found
