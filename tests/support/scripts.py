"""Scripts of benches and examples as modules."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]


def script(path: str, *needed: str) -> ModuleType:
    """The script at a path such as `bench/depth.py`, under its own name, as its siblings import it.

    needed: the siblings that it imports, in the order in which they are to be loaded. A search path
    is not used: the folders hold names that packages have, too.
    """
    folder, name = (ROOT / path).parent, Path(path).stem
    for each in (*needed, name):
        spec = importlib.util.spec_from_file_location(each, folder / f"{each}.py")
        assert spec is not None
        assert spec.loader is not None
        # Dataclasses look up their module while they are made.
        module = sys.modules[each] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return module
