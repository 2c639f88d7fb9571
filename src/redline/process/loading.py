"""Loads objects from the user's own modules by name."""

from __future__ import annotations

import importlib
import sys
import traceback
from pathlib import Path
from typing import Any

from redline.errors import ConfigError, nearest

_LONGEST_LINE = 100


def load_object(name: str, hint: str = "") -> Any:
    """Loads the object `module:name` from a module in the working folder or an installed module.

    Adds the working folder to `sys.path`, and runs the module's code if it is not imported yet.
    name: may contain dots on both sides of the colon. hint: added to the error if the module does
    not exist. Raises ConfigError if the object cannot be loaded; its hint names the failing line of
    the user's own code, if there is one.
    """
    module_name, colon, path = name.partition(":")
    if not (colon and module_name and path):
        raise ConfigError(
            f"{name!r} is not module:name", hint="for `embed` in `mine.py`, write mine:embed"
        )
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as error:
        # A user's module may raise any exception.
        raise _not_imported(name, module_name, error, hint) from error
    for part in path.split("."):
        if not hasattr(found, part):
            raise ConfigError(
                f"{module_name} has no {part}", where=name, hint=nearest(part, dir(found))
            )
        found = getattr(found, part)
    return found


def _not_imported(name: str, module: str, error: Exception, hint: str) -> ConfigError:
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if missing is not None and f"{module}.".startswith(f"{missing}."):
        looked = "redline looks in this folder and among the installed packages"
        return ConfigError(
            f"there is no module {module}", where=name, hint=f"{looked}; {hint}" if hint else looked
        )
    reason = str(error) if isinstance(error, ImportError) else f"{type(error).__name__}: {error}"
    return ConfigError(f"{module} cannot be imported: {reason}", where=name, hint=_own_line(error))


def _own_line(error: Exception) -> str:
    """Returns a hint with the last line of the user's code that led to the error; "" if none.

    The user's code is the code in the working folder.
    """
    if isinstance(error, SyntaxError) and error.filename:
        place = _inside(error.filename) or error.filename
        return f"see {place}:{error.lineno}: {(error.text or '').strip()}"[:200]
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_own(frame)]
    if not frames:
        return ""
    last = frames[-1]
    return f"see {_inside(last.filename)}:{last.lineno}: {(last.line or '')[:_LONGEST_LINE]}"


def _is_own(frame: traceback.FrameSummary) -> bool:
    path = _inside(frame.filename)
    return path is not None and not {"site-packages", "redline"} & {*path.parts}


def _inside(filename: str) -> Path | None:
    """Returns the path of a file relative to the working folder; None if it is outside."""
    path, here = Path(filename), Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else None
