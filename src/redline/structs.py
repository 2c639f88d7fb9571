"""Makes setting attributes of msgspec structs as fast as with a class with slots."""

from __future__ import annotations

from typing import TypeVar

import msgspec

_Made = TypeVar("_Made", bound=type[msgspec.Struct])


def mutable(made: _Made) -> _Made:
    """Replaces the attribute setter of a msgspec struct with Python's own, and returns the struct.

    msgspec's setter also makes the garbage collector track the struct once a container is set.
    Python therefore cannot specialise the setter, and setting an attribute takes fourteen times as
    many instructions. Use `mutable` only for structs that are never tracked (gc=False), or that are
    tracked from the start because a field holds a container.
    """
    for name in ("__setattr__", "__delattr__"):
        setattr(made, name, getattr(object, name))
    return made
