"""Converts tables of settings to structs, with errors that name the setting and its place."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec

from redline.errors import ConfigError
from redline.job.settings.option_hints import meant

T = TypeVar("T", bound=msgspec.Struct)

# Descriptions of types, by the names that msgspec uses in messages.
_TYPES = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "object": "a table",
    "array": "a list",
}
_MISSING = re.compile(r"Object missing required field `(\w+)`(?: - at `\$\.([^`]*)`)?")
_MISMATCH = re.compile(r"Expected `([^`]+)`, got `(\w+)`(?: - at `\$\.?([^`]*)`)?")
_BOUND = re.compile(r"Expected `(\w+)` ([<>]=) (\S+) - at `\$\.([^`]*)`")


@contextmanager
def errors_in(where: str) -> Iterator[None]:
    """Sets `where` as the place of a ConfigError that the block raises."""
    try:
        yield
    except ConfigError as error:
        error.where = where
        raise


def refuse_unknown(table: Iterable[str], known: Iterable[str], where: str) -> None:
    """Raises ConfigError for a key that is not in `known`; the hint suggests a known key."""
    known = tuple(known)
    for key in table:
        if key not in known:
            raise ConfigError(
                f"unknown setting: {key}",
                where=where,
                hint=meant(str(key), known) or f"known settings: {', '.join(known)}",
            )


def struct_in(table: Mapping[str, Any], kind: type[T], where: str) -> T:
    """Returns the table as a struct of type `kind`.

    Raises ConfigError for an unknown or a missing key, or an invalid value; the error names the
    key.
    """
    refuse_unknown(table, kind.__struct_fields__, where)
    try:
        return msgspec.convert(table, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(_words(str(error)), where=where) from None
    except ConfigError as error:
        error.where = error.where or where
        raise


def _words(error: str) -> str:
    """Rewords a message of msgspec in the terms of a settings file."""
    if found := _MISSING.match(error):
        return f"{found[2]}.{found[1]} is missing" if found[2] else f"{found[1]} is missing"
    if found := _BOUND.match(error):
        bound = "at least" if found[2] == ">=" else "at most"
        return f"{found[4]} must be {_TYPES.get(found[1], found[1])} of {bound} {found[3]}"
    found = _MISMATCH.match(error)
    if found is None or found[3] is None:
        return f"a setting cannot be read: {error}"
    kinds = [kind for kind in found[1].split(" | ") if kind != "null"]  # TOML has no null
    wanted = " or ".join(_TYPES.get(kind, kind) for kind in kinds)
    name = re.sub(r"(.*)\[\.\.\.\]", r"a value of \1", found[3])
    return f"{name} must be {wanted}, not {_TYPES.get(found[2], found[2])}"
