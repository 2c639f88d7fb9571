"""Fakes in place of redline's own classes and functions, in every module that has imported them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any


class Swap:
    """A context manager: meanwhile each module of redline sees a fake in place of its original.

    fakes: pairs of an original and its fake. An object is found by its identity, so it may be
    defined, and imported, anywhere in redline.
    """

    def __init__(self, *fakes: tuple[object, object]) -> None:
        self._fakes = fakes

    def __enter__(self) -> None:
        _replace({id(original): fake for original, fake in self._fakes})

    def __exit__(self, *_: object) -> None:
        _replace({id(fake): original for original, fake in self._fakes})


def _replace(new: dict[int, Any]) -> None:
    for module in _modules():
        names = vars(module)
        for name in [name for name, value in names.items() if id(value) in new]:
            names[name] = new[id(names[name])]


def _modules() -> Iterator[ModuleType]:
    return (each for name, each in list(sys.modules.items()) if name.partition(".")[0] == "redline")
