"""Fakes in place of redline's own classes and functions, in every module that has imported them."""

from __future__ import annotations

import sys
from collections import defaultdict
from types import ModuleType
from typing import Any


class Swap:
    """A context manager: meanwhile each module of redline sees a fake in place of its original.

    fakes: pairs of an original and its fake. An object is found by its identity, so it may be
    defined, and imported, anywhere in redline.
    """

    def __init__(self, *fakes: tuple[object, object]) -> None:
        self._fakes = fakes
        self._swapped: list[tuple[dict[str, Any], str, object]] = []

    def __enter__(self) -> None:
        _PLACES.learn([])
        for original, fake in self._fakes:
            for names, name in _PLACES.of(original):
                names[name] = fake
                self._swapped.append((names, name, original))

    def __exit__(self, *_: object) -> None:
        for names, name, original in self._swapped:
            names[name] = original
        self._swapped.clear()
        # Modules that were imported meanwhile have imported the fakes.
        _PLACES.learn([(fake, original) for original, fake in self._fakes])


class _Places:
    """Where in redline an object is a module's global: each module is looked through once.

    Another test may have had something else in a place then. A class or function is looked for by
    its own name as well.
    """

    def __init__(self) -> None:
        self._known: dict[str, ModuleType] = {}
        self._seen: object = None
        self._places: defaultdict[int | str, list[tuple[dict[str, Any], str]]] = defaultdict(list)

    def learn(self, undone: list[tuple[object, object]]) -> None:
        """Looks through modules that are new; there, the second of each pair replaces the first."""
        # Thousands are imported by all tests together, and a module that is new comes last.
        seen = len(sys.modules), next(reversed(sys.modules))
        if seen == self._seen:
            return
        self._seen = seen
        new = {
            name: module
            for name, module in list(sys.modules.items())
            if f"{name}.".startswith("redline.") and self._known.get(name) is not module
        }
        for module in new.values():
            names = vars(module)
            for name, value in list(names.items()):
                for fake, original in undone:
                    if value is fake:
                        names[name] = value = original
                self._places[id(value)].append((names, name))
                self._places[name].append((names, name))
        self._known |= new

    def of(self, original: object) -> list[tuple[dict[str, Any], str]]:
        places = [*self._places.get(id(original), [])]
        places += self._places.get(getattr(original, "__name__", ""), [])
        found = {(id(names), name): (names, name) for names, name in places}
        return [(names, name) for names, name in found.values() if names.get(name) is original]


_PLACES = _Places()
