"""The campaign of scale-downs: 50 real replicas that are stopped while they have calls in flight.

Each part has fleets of local processes (tests/support/shrinking.py) that grow under a high load and
shrink under a low one, until at least five replicas with calls in flight have been stopped. Every
call must be answered at its first attempt.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import record

sys.path.insert(0, str(record.ROOT / "tests"))

from support.shrinking import CALL_S, REPLICAS, SLOTS, shrink

_PARTS, _STOPPED = 10, 5

Work = Callable[[Path], dict[str, Any]]


def parts() -> Iterator[tuple[str, int, Work]]:
    """Name, seed and work of each part. Nothing is drawn: time decides which calls are caught."""
    for number in range(_PARTS):
        first, last = number * _STOPPED + 1, (number + 1) * _STOPPED
        yield f"stops {first} to {last}", 0, work


def work(folder: Path) -> dict[str, Any]:
    """What became of the calls of each fleet. Raises LostError if one was not answered at once."""
    fleets = list[dict[str, Any]]()
    while sum(fleet["stopped"] for fleet in fleets) < _STOPPED:
        stopped, outcomes = asyncio.run(shrink(folder / str(len(fleets))))
        fleets.append({"stopped": stopped, "outcomes": dict(outcomes)})
    found = {
        "settings": {"replicas": REPLICAS, "slots": SLOTS, "call_s": CALL_S},
        "stopped": sum(fleet["stopped"] for fleet in fleets),
        "calls": sum(sum(fleet["outcomes"].values()) for fleet in fleets),
        "answered": sum(fleet["outcomes"].get("succeeded", 0) for fleet in fleets),
        "fleets": fleets,
    }
    if found["answered"] != found["calls"]:
        raise LostError(found)
    return found


class LostError(AssertionError):
    """Calls that were not answered at once; `found` keeps the figures for the record."""

    def __init__(self, found: dict[str, Any]) -> None:
        super().__init__(f"{found['answered']} of {found['calls']} calls answered at once")
        self.found = found
