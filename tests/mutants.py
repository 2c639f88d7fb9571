"""Mutants: a module with one line changed, which the checks of that module must catch.

A test that passes on a wrong limiter proves nothing, so each check names the lines it guards.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from redline.testing import Deadlock

_NUMBERS = itertools.count(1)


def mutant(module: ModuleType, line: str, replacement: str, **names: Any) -> ModuleType:
    """A copy of `module` with `line` replaced; the module itself stays as it is.

    line: the whole line without its indentation, and it must occur exactly once. replacement:
    takes its place at the same indentation. names: what the copy is to see under these names in
    place of what it imported, such as a mutant's class.
    """
    path = Path(str(module.__file__))
    lines = path.read_text("utf-8").splitlines()
    found = [number for number, text in enumerate(lines) if text.strip() == line]
    if len(found) != 1:
        raise LookupError(f"{path.name} has {len(found)} lines `{line}`; the mutant needs one")
    text = lines[found[0]]
    indent = text[: len(text) - len(text.lstrip())]
    lines[found[0]] = indent + replacement
    return _executed(module, "\n".join(lines), names)


def with_names(module: ModuleType, **names: Any) -> ModuleType:
    """A copy of `module` that sees these names in place of what it imported."""
    unknown = [name for name in names if not hasattr(module, name)]
    if unknown:
        raise LookupError(f"{module.__name__} has no {', '.join(unknown)}")
    return _executed(module, Path(str(module.__file__)).read_text("utf-8"), names)


def assert_caught(check: Callable[[Any], None], original: Any, changed: Any) -> None:
    """`check` passes on the original and fails on the changed one."""
    check(original)
    try:
        check(changed)
    except (AssertionError, Deadlock):
        return
    raise AssertionError("the check does not notice the mutant, so it cannot fail")


def _executed(module: ModuleType, source: str, names: dict[str, Any]) -> ModuleType:
    copy = ModuleType(f"{module.__name__}_mutant_{next(_NUMBERS)}")
    copy.__file__ = module.__file__
    # Classes look up their annotations through sys.modules while they are made.
    sys.modules[copy.__name__] = copy
    try:
        exec(compile(source, str(module.__file__), "exec"), copy.__dict__)
    finally:
        del sys.modules[copy.__name__]
    copy.__dict__.update(names)
    return copy
