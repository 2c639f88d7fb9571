"""Structs whose attributes are set as fast as those of a class with slots."""

from __future__ import annotations

from typing import TypeVar

import msgspec

_Made = TypeVar("_Made", bound=type[msgspec.Struct])


def mutable(made: _Made) -> _Made:
    """Gives a struct Python's own way to set an attribute.

    That of msgspec also begins to track the struct for the garbage collector once a container is
    set, which keeps the interpreter from specialising it: it takes fourteen times as many
    instructions. So this is for structs that are never tracked (gc=False), and for those that
    always are, because a field is given a container when they are made.
    """
    for name in ("__setattr__", "__delattr__"):
        setattr(made, name, getattr(object, name))
    return made
