"""Real fleets that shrink while their replicas have calls in flight.

Fleets of 8 local processes grow under a high load and shrink under a low one, until 50 replicas
have been stopped that had calls in flight. Prints how many, and what became of all calls.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections import Counter
from pathlib import Path

import record

sys.path.insert(0, str(record.ROOT / "tests"))

from support.shrinking import shrink

WANTED = 50


async def main() -> bool:
    """Whether no call was lost."""
    stopped, fleets, outcomes = 0, 0, Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        while stopped < WANTED:
            caught, ended = await shrink(Path(folder, str(fleets)))
            stopped, fleets = stopped + caught, fleets + 1
            outcomes += ended
            print(f"{fleets} fleets, {stopped} replicas stopped with calls in flight: {outcomes}")
    return set(outcomes) == {"succeeded"}


if __name__ == "__main__":
    sys.exit(0 if asyncio.run(main()) else 1)
