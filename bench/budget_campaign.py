"""The campaign of budgets: 50 runs with random latencies, faults and kills, in parts of ten.

Each run is one of tests/crash/spending.py. The highest amount that the server may bill is never
above the amount that redline has counted, and that amount is never above the budget. In a run that
the budget ended, redline has counted at least 95 % of the budget.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import record

sys.path.insert(0, str(record.ROOT / "tests"))

from crash.spending import Plan, spend_until_done

_PARTS, _RUNS = 5, 10
_MOST_KILLS = 4
FIRST_SEED = 500

Work = Callable[[Path], dict[str, Any]]


def parts() -> Iterator[tuple[str, int, Work]]:
    """Name, first seed and work of each part."""
    for number in range(_PARTS):
        first = FIRST_SEED + number * _RUNS
        yield f"runs {number * _RUNS + 1} to {(number + 1) * _RUNS}", first, _work(first)


def _work(first: int) -> Work:
    def work(folder: Path) -> dict[str, Any]:
        runs = []
        for seed in range(first, first + _RUNS):
            chance = random.Random(seed)
            plan = Plan(
                seed=seed,
                kills=chance.randint(0, _MOST_KILLS),
                concurrency=chance.choice((1, 4, 8, 16)),
                calls=chance.choice((100, 200)),
            )
            place = folder / str(seed)
            place.mkdir()
            runs.append(asdict(plan) | asdict(spend_until_done(plan, place)))
        return {
            "kills": sum(run["kills"] for run in runs),
            "faults": sum(run["faults"] for run in runs),
            "ended_by_the_budget": sum(run["has_ended"] for run in runs),
            "least_counted": min(run["counted"] for run in runs),
            "most_counted": max(run["counted"] for run in runs),
            "most_billed": max(run["billed"] for run in runs),
            "runs": runs,
        }

    return work
