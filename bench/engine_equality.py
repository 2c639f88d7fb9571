"""The campaign of greedy answers: they equal those of transformers' generate in all settings.

A part is one kind of model, whole or split among processes: with every number of slots, draft
length and kind of draft, with and without reuse of prefixes, and with a cache so small that
sequences lose their slots. The logits of split models are compared, too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import record

sys.path.insert(0, str(record.ROOT / "tests"))

Work = Callable[[Path], dict[str, Any]]


def parts() -> Iterator[tuple[str, int, Work]]:
    """Name, seed and work of each part."""
    # It takes seconds, and the other campaigns do without.
    import torch

    from support.engine_ranks import ALL

    torch.set_num_threads(1)
    for kind, split in ALL:
        name = f"{kind}, tensor {split.shares}, pipeline {split.stages}"
        yield name, 0, partial(_checked, kind, split)


def _checked(kind: str, split: Any, folder: Path) -> dict[str, Any]:
    from support.engine_ranks import check_grid

    found = check_grid(kind, split, folder)
    print(f"  {found}", flush=True)
    return found | {name: version(name) for name in ("torch", "transformers")}
