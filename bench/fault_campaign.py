"""The campaign of fault scripts: 10,000 distinct traces in which every row has exactly one outcome.

A script is a job of up to 60 rows that is run, ended and continued several times in virtual time,
with faults in its attempts (tests/faults). Two scripts are distinct if their events differ, or the
order of them: the row and attempt, the stage, and the result of each. The second part breaks parts
of redline, one at a time; the tests must notice each of these changes.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import record

sys.path.insert(0, str(record.ROOT / "tests"))

from faults.mutations import MUTATIONS, caught_by
from faults.play import BrokenLaw, play

TRACES = 10_000
# Scripts that differ in nothing that happens are few; more would be a defect of the drawing.
MOST_SCRIPTS = 11_000
FIRST_SEED = 100_000
_MOST_BROKEN = 20
_SHOWN_EVERY = 1_000

Work = Callable[[Path], dict[str, Any]]


class BrokenScriptsError(AssertionError):
    """Scripts break the law; `found` keeps the figures for the record."""

    def __init__(self, what: str, found: dict[str, Any]) -> None:
        super().__init__(what)
        self.found = found


def parts() -> Iterator[tuple[str, int, Work]]:
    """Name, first seed and work of each part."""
    yield "traces", FIRST_SEED, _traces
    yield "mutants", FIRST_SEED, _mutants


def _traces(_: Path) -> dict[str, Any]:
    counts: Counter[str] = Counter()
    hashes: set[str] = set()
    broken: list[str] = []
    begun_s = time.process_time()
    seed = FIRST_SEED
    while len(hashes) < TRACES and seed < FIRST_SEED + MOST_SCRIPTS and len(broken) < _MOST_BROKEN:
        try:
            played = play(seed)
        except BrokenLaw as error:
            broken.append(str(error))
            print(f"  {error}", flush=True)
        else:
            counts += played.counts()
            hashes.add(played.hash)
        seed += 1
        if (seed - FIRST_SEED) % _SHOWN_EVERY == 0:
            print(f"  {seed - FIRST_SEED:,} scripts, {len(hashes):,} traces", flush=True)
    found = {
        "scripts": seed - FIRST_SEED,
        "distinct_traces": len(hashes),
        **{name: counts[name] for name in ("runs", "rows", "events")},
        **{f"by_{kind}": _of(counts, kind) for kind in ("attempt", "outcome", "failure")},
        "by_ending": _of(counts, "ending"),
        "by_stage_of_ending": _of(counts, "ended at"),
        "cpu_s": round(time.process_time() - begun_s, 1),
        "broken": broken,
    }
    print(f"  {found}")
    if broken or len(hashes) < TRACES:
        raise BrokenScriptsError(f"{len(hashes)} traces, {len(broken)} broken scripts", found)
    return found


def _of(counts: Counter[str], kind: str) -> dict[str, int]:
    prefix = f"{kind}: "
    return {k.removeprefix(prefix): n for k, n in sorted(counts.items()) if k.startswith(prefix)}


def _mutants(_: Path) -> dict[str, Any]:
    caught: dict[str, Any] = {}
    for mutation in MUTATIONS:
        broken = caught_by(mutation, range(FIRST_SEED, FIRST_SEED + 1_000))
        is_caught = broken is not None and mutation.is_named_by(broken)
        caught[mutation.name] = broken.seed if broken is not None and is_caught else None
        print(f"  {mutation.name}: {broken}", flush=True)
    missed = [name for name, seed in caught.items() if seed is None]
    found = {"caught_by_seed": caught}
    if missed:
        raise BrokenScriptsError(f"not noticed: {missed}", found)
    return found
