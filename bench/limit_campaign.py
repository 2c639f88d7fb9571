"""The campaign of real limiters: every server, jitter, rate and profile, and the long runs.

Ten repeats of 20/1s and of 60/6s, and one of 600/60s, with `any` and with the profile that matches
the server. A part passes if the server rejected none of its calls, and if every last call was sent
within the bar for the jitter that was measured.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import record
from limits import MATCHING, Table, run_limiter

sys.path.insert(0, str(record.ROOT / "tests"))

from redline.limits import Rate
from support.opponents import KINDS, Setting, opponent

JITTERS_S = (0.0, 0.05)
LATENCY_S = (0.01, 0.01)
# The rate, windows in a run and repeats: 201 and 181 calls, and 1,201.
PLANS = ((Rate(20, 1.0), 10, 10), (Rate(60, 6.0), 3, 10), (Rate(600, 60.0), 2, 1))
# A part's servers end themselves after this.
LONGEST_S = 900

Work = Callable[[Path], dict[str, Any]]


class RejectedError(AssertionError):
    """A call was rejected or late; `found` keeps the figures for the record."""

    def __init__(self, what: str, found: dict[str, Any]) -> None:
        super().__init__(what)
        self.found = found


def parts() -> Iterator[tuple[str, int, Work]]:
    """Name, first seed and work of each part: four servers at once, one repeat after another."""
    for rate, windows, repeats in PLANS:
        for jitter_s in JITTERS_S:
            table = Table(rate, jitter_s, LATENCY_S, windows * rate.count + 1)
            for limiter in ("redline-any", MATCHING):
                name = f"{rate}, jitter {1000 * jitter_s:g} ms, {limiter.removeprefix('redline-')}"
                yield name, 1, _work(table, limiter, range(1, repeats + 1))


def _work(table: Table, limiter: str, seeds: Sequence[int]) -> Work:
    def work(_: Path) -> dict[str, Any]:
        runs: list[dict[str, Any]] = []
        before_s = os.times()
        with ExitStack() as stack:
            settings = [Setting(kind, table.rate, table.latency_s) for kind in KINDS]
            servers = [stack.enter_context(opponent(s, life_s=LONGEST_S)) for s in settings]
            for seed in seeds:
                runs += run_limiter(limiter, sys.executable, servers, table, seed)
        after_s = os.times()
        spent_s = sum(after_s[:4]) - sum(before_s[:4])
        rejected = sum(run["rejected"] for run in runs)
        late = [run for run in runs if not run["is_in_real_bar"]]
        in_bar = sum(run["is_in_bar"] for run in runs)
        found = {
            "runs": len(runs),
            "calls": table.calls,
            "rejected": rejected,
            "late": len(late),
            "in_bar": in_bar,
            "machine_used": round(spent_s / (after_s[4] - before_s[4]) / (os.cpu_count() or 1), 3),
            "raw": runs,
        }
        if rejected or late:
            raise RejectedError(f"{rejected} calls rejected, {len(late)} runs late", found)
        return found

    return work
