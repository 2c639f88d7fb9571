"""The fuzz campaign of redline's own HTTP server: seeded faults in requests, in random pieces.

Twenty parts take half a minute of CPU time each, with different seeds. Each part counts its
executions, and fails if the property of tests/support/server_fuzzing.py does not hold. Four more
parts send such requests to `redline sim`, and fail if the property of
tests/support/socket_fuzzing.py does not hold.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import record

sys.path.insert(0, str(record.ROOT / "tests"))

from redline.httpserver import connection
from support.server_fuzzing import fuzz
from support.socket_fuzzing import Figures, fuzz_sim, fuzzed_sim

LASTS_S = 30.0
PARTS = 20
OVER_SOCKETS = 4
CONNECTIONS = 500

Work = Callable[[Path], dict[str, Any]]


def parts() -> Iterator[tuple[str, int, Work]]:
    """Name, seed and work of each part."""
    for seed in range(1, PARTS + 1):
        yield f"seed {seed}", seed, _work(seed)
    for seed in range(1, OVER_SOCKETS + 1):
        yield f"redline sim, seed {seed}", seed, _clients(seed)


def _work(seed: int) -> Work:
    def work(_: Path) -> dict[str, Any]:
        found = fuzz(connection, seed, lasts_s=LASTS_S).as_record()
        print(f"  {found['executions']:,} executions: {found['outcomes']}")
        return found

    return work


def _clients(seed: int) -> Work:
    def work(_: Path) -> dict[str, Any]:
        figures, number, ends_s = Figures(), 1_000 * seed, time.monotonic() + LASTS_S
        with fuzzed_sim() as port:
            while time.monotonic() < ends_s:
                fuzz_sim(port, number, CONNECTIONS, figures)
                number += 1
        print(f"  {figures.executions:,} connections: {figures.outcomes}")
        return figures.as_record()

    return work
