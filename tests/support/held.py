"""How much a thing holds."""

from __future__ import annotations

import gc
from types import FunctionType, ModuleType


def held(thing: object) -> int:
    """The objects reachable from `thing`, without classes, functions and modules."""
    seen: dict[int, object] = {}
    found = [thing]
    while found:
        each = found.pop()
        if id(each) not in seen and not isinstance(each, (type, FunctionType, ModuleType)):
            seen[id(each)] = each
            found += gc.get_referents(each)
    return len(seen)
