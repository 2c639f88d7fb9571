"""The campaign of the pipeline: no stage waits longer than necessary.

With m micro-batches, T steps and p stages of equal duration, p or more micro-batches keep all
stages busy for (m T + p - 1) times that duration: the first step passes through p stages, and each
further step ends one duration after the one before it. A sleep makes the stages slow, so that the
benchmark does not measure computation, for which two cores are too few.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import record

sys.path.insert(0, str(record.ROOT / "tests"))

STEPS, RUNS, MOST = 16, 5, 1.1
CASES = [(2, 2), (2, 3), (2, 4), (4, 4), (4, 6)]

Work = Callable[[Path], dict[str, Any]]


def parts() -> Iterator[tuple[str, int, Work]]:
    """Name, seed and work of each part."""
    for stages, batches in CASES:
        yield f"{stages} stages, {batches} micro-batches", 0, partial(_timed, stages, batches)


def _timed(stages: int, batches: int, folder: Path) -> dict[str, Any]:
    # It takes seconds, and the other campaigns do without.
    from support.engine_models import random_model
    from support.engine_ranks import SlowRanks, Split, ranks_of, stage_times

    with ranks_of(random_model("llama", folder), Split(stages=stages), SlowRanks) as ranks:
        stage_times(ranks, batches, 2)
        found = [round(stage_times(ranks, batches, STEPS), 4) for _ in range(RUNS)]
    assert min(found) >= 0.99, f"faster than stages can be: {found}"
    assert statistics.median(found) <= MOST, f"gaps between steps: {found}"
    return {"stages": stages, "batches": batches, "steps": STEPS, "of_the_bound": found}
