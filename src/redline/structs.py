"""Makes msgspec structs as fast as classes with slots, and checks the types of their fields."""

from __future__ import annotations

import sys
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from redline.errors import ConfigError

_MOST = sys.float_info.max
_Made = TypeVar("_Made", bound=type[msgspec.Struct])


def mutable(made: _Made) -> _Made:
    """Replaces the attribute setter of a msgspec struct with Python's own, and returns the struct.

    msgspec's setter also makes the garbage collector track the struct once a container is set.
    Python therefore cannot specialize the setter, and setting an attribute takes fourteen times as
    many instructions. Use `mutable` only for structs that are never tracked (gc=False), or that are
    tracked from the start because a field holds a container.
    """
    for name in ("__setattr__", "__delattr__"):
        setattr(made, name, getattr(object, name))
    return made


def check_types(struct: msgspec.Struct) -> None:
    """Raises ConfigError unless each field's value has the field's type; see `check_type`.

    A field of type Any is not read.
    """
    for name, kinds in _kinds_of(type(struct)).items():
        check_type(name, getattr(struct, name), kinds)


@cache
def _kinds_of(struct: type[msgspec.Struct]) -> dict[str, tuple[type, ...]]:
    hints = get_type_hints(struct)
    names = [name for name in struct.__struct_fields__ if hints[name] is not Any]
    return {name: classes_in(hints[name]) for name in names}


def classes_in(hint: Any) -> tuple[type, ...]:
    """Returns the classes that a type annotation names; an int is accepted for a float."""
    parts = get_args(hint) if get_origin(hint) is UnionType else (hint,)
    kinds = [get_origin(part) or part for part in parts]
    return tuple(each for kind in kinds for each in ((int, float) if kind is float else (kind,)))


def check_type(name: str, value: object, kinds: tuple[type, ...], shown: str = "") -> None:
    """Raises ConfigError unless the value is an instance of one of the classes.

    To Python, True is an int; here it is accepted only for a bool. shown: the value as the message
    shows it, after its type.
    """
    is_known = isinstance(value, kinds)
    if not is_known or (isinstance(value, bool) and bool not in kinds):
        names = " or ".join("None" if kind is NoneType else kind.__name__ for kind in kinds)
        raise ConfigError(f"{name} must be {names}, not {type(value).__name__}{shown}")


def check_number(name: str, value: Any) -> None:
    """Raises ConfigError unless the value is a finite number that a float can hold."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not -_MOST <= value <= _MOST:
        raise ConfigError(f"{name} must be a finite number, not {value!r:.60}")
