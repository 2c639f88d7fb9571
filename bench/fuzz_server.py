"""The fuzz campaign of redline's own HTTP server: seeded faults in requests, in random pieces.

Twenty parts of half a minute, each with its own seed. Each counts its executions, and fails if the
law of tests/support/server_fuzzing.py breaks.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import record

sys.path.insert(0, str(record.ROOT / "tests"))

from redline.httpserver import connection
from support.server_fuzzing import fuzz

LASTS_S = 30.0
PARTS = 20

Work = Callable[[Path], dict[str, Any]]


def parts() -> Iterator[tuple[str, int, Work]]:
    """Name, seed and work of each part."""
    for seed in range(1, PARTS + 1):
        yield f"seed {seed}", seed, _work(seed)


def _work(seed: int) -> Work:
    def work(_: Path) -> dict[str, Any]:
        found = fuzz(connection, seed, lasts_s=LASTS_S).as_record()
        print(f"  {found['executions']:,} executions: {found['outcomes']}")
        return found

    return work
