"""Reads settings from TOML files and converts them to the form of flags; errors name the place."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from redline.errors import ConfigError
from redline.job.settings.options import Kind, Option, kinds_of, read
from redline.job.settings.tables import errors_in, refuse_unknown
from redline.job.settings.values import reason_of

Table = dict[str, Any]


def read_toml(path: Path) -> Table:
    """Returns the tables of a file.

    Raises FileNotFoundError if there is no such file, and ConfigError if it cannot be read or is
    not TOML.
    """
    try:
        text = path.read_text("utf-8-sig")
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {path}: {reason_of(error)}") from error
    # Imported here: most folders have no settings file.
    import tomllib

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _invalid(path, str(error)) from error
    except ValueError as error:
        raise _invalid(path, "a number is too long") from error
    except RecursionError as error:
        raise _invalid(path, "lists are nested too deeply") from error


def _invalid(path: Path, why: str) -> ConfigError:
    what = f"{path.name} is not valid TOML: {why}"
    return ConfigError(what, where=str(path), hint="see https://toml.io")


def table_in(value: object, name: str, file: str) -> Table:
    """Returns the table of this name. Raises ConfigError if the value is not a table."""
    if not isinstance(value, dict):
        raise ConfigError(f"{name} must be a table", where=file, hint=f"write [{name}]")
    return value


def settings_in(table: Table, kinds: Mapping[str, Kind], where: str) -> Table:
    """Returns the table with its values in the form of flags: numbers, for example, become text.

    kinds: the type of value of each known key; in `table`, a key may have dashes for underscores.
    Raises ConfigError for an unknown key, a key that is set twice, and a value of the wrong type.
    """
    named = underscored(table, where)
    refuse_unknown(named, kinds, where)
    return {key: _value(key, value, kinds[key], where) for key, value in named.items()}


def underscored(table: Mapping[str, Any], where: str) -> Table:
    """Returns the table with the dashes in its keys replaced by underscores.

    Raises ConfigError for a key that is set both with dashes and with underscores.
    """
    found: Table = {}
    for key, value in table.items():
        name = key.replace("-", "_")
        if name in found:
            raise ConfigError(
                f"{name} is set twice, once as {name.replace('_', '-')}",
                where=where,
                hint="leave one out",
            )
        found[name] = value
    return found


def fields_in(table: object, name: str, file: str, options: Collection[Option]) -> Table:
    """Returns the values that a table sets for these options, by field.

    name: the table's name in the file. Raises ConfigError for an unknown setting or an invalid
    value; the error contains the setting's name and its place in the file.
    """
    where = f"{file}, [{name}]"
    stated = settings_in(table_in(table, name, file), kinds_of(options), where)
    with errors_in(where):
        return read(options, stated, shown=str)


def _value(key: str, value: object, kind: Kind, where: str) -> Any:
    if kind in (Kind.FLAG, Kind.PAGE) and isinstance(value, bool):
        return value
    if kind is Kind.PAGE and isinstance(value, str):
        return value
    if kind in (Kind.TEXT, Kind.LIST) and _is_scalar(value):
        return str(value) if kind is Kind.TEXT else [str(value)]
    if kind is Kind.LIST and isinstance(value, list) and all(map(_is_scalar, value)):
        return [str(item) for item in value]
    if kind is Kind.TABLE and isinstance(value, dict) and all(map(_is_scalar, value.values())):
        return {name: str(item) for name, item in value.items()}
    hint = ""
    if kind is Kind.TABLE and isinstance(value, dict) and dict in map(type, value.values()):
        hint = 'quote a name that contains a dot, such as "gpt-4.1"'
    raise ConfigError(f"{key} must be {kind.value}", where=where, hint=hint)


def _is_scalar(value: object) -> bool:
    return isinstance(value, (str, int, float)) and not isinstance(value, bool)
