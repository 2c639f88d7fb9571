"""The fuzz campaign of the gateway: generated requests to `redline serve`, valid and invalid.

A part is one property of tests/support/door_fuzzing.py with a seed of its own, on a gateway and a
simulated provider in separate processes. It fails if the property does not hold, if the gateway
writes to stderr, or if anything is in flight at the end.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import record

sys.path.insert(0, str(record.ROOT / "tests"))

from support.door_fuzzing import PROPERTIES, Door, fuzzed_gateway

EXAMPLES = 2_000
SEEDS = 4

Work = Callable[[Path], dict[str, Any]]


def parts() -> Iterator[tuple[str, int, Work]]:
    """Name, seed and work of each part."""
    for seed in range(1, SEEDS + 1):
        for check in PROPERTIES:
            yield f"{check.__name__.replace('_', ' ')}, seed {seed}", seed, _work(check, seed)


def _work(check: Callable[[Door, int, int | None], None], seed: int) -> Work:
    def work(folder: Path) -> dict[str, Any]:
        with fuzzed_gateway(folder) as door:
            check(door, EXAMPLES, seed)
        statuses = {str(status): count for status, count in sorted(door.statuses.items())}
        print(f"  {door.statuses.total():,} requests: {statuses}")
        return {"requests": door.statuses.total(), "statuses": statuses}

    return work
