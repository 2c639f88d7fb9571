"""Whether `redline route replay` ranks strategies in the same order as real runs.

    python bench/replay.py [--calls 300] [--rounds 3] [--out FOLDER]

Four `redline sim` with different slots and speeds (tests/support/reruns.py), each in a process. A
job of 24 workers is run with every strategy, in a new order in each round, and its calls are
recorded. The first trace of each strategy is replayed, which predicts the makespans of all other
strategies. Two strategies differ if their mean makespans differ by more than three standard errors,
and by more than 5 %. The bar: every replay has each pair that differs in the right order. The rank
correlation (Spearman) of the predicted and the real makespans is given, too. Exits with status 1 if
the bar is missed.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import sys
from collections.abc import Mapping, Sequence
from itertools import permutations
from pathlib import Path
from typing import Any

import record

sys.path.insert(0, str(record.ROOT / "tests"))

from redline.route.replay import replay
from support.reruns import SERVERS, SIGMA, fleet, makespans, rerun

STRATEGIES = ("p2c", "least_tokens", "round_robin", "weighted_score", "normalized_score")
WORKERS = 24
REPLAY_SEEDS = (1, 2, 3)
LEAST = 0.05
ERRORS = 3.0


def measured(calls: int, rounds: int, folder: Path) -> list[dict[str, Any]]:
    """The real runs."""
    runs, draw = list[dict[str, Any]](), random.Random(1)
    with fleet() as urls:
        for number in range(rounds):
            for name in draw.sample(STRATEGIES, len(STRATEGIES)):
                path = folder / f"{name}-{number}"
                makespan_s = rerun(urls, name, path, calls=calls, workers=WORKERS)
                runs.append({"strategy": name, "round": number, "makespan_s": round(makespan_s, 4)})
                print(f"  {name:18} {makespan_s:6.2f} s", flush=True)
    return runs


def differing(found: Mapping[str, Sequence[float]]) -> list[tuple[str, str]]:
    """The pairs of strategies whose first is faster by more than the noise."""
    pairs = list[tuple[str, str]]()
    for better, worse in permutations(found, 2):
        mine, other = statistics.fmean(found[better]), statistics.fmean(found[worse])
        variances = (
            statistics.variance(found[name]) / len(found[name]) for name in (better, worse)
        )
        if other - mine > max(LEAST * other, ERRORS * math.sqrt(sum(variances))):
            pairs.append((better, worse))
    return pairs


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--calls", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=record.RESULTS)
    args = parser.parse_args()
    settings = {
        "servers": SERVERS,
        "sigma": SIGMA,
        "workers": WORKERS,
        "calls": args.calls,
        "rounds": args.rounds,
        "least": LEAST,
        "errors": ERRORS,
    }
    versions = record.own_versions("msgspec")
    made = record.Record("replay", settings, seeds={"replay": [*REPLAY_SEEDS]}, versions=versions)
    with record.scratch() as folder:
        runs = measured(args.calls, args.rounds, folder)
        found = {name: [run["makespan_s"] for run in runs if run["strategy"] == name]
                 for name in STRATEGIES}  # fmt: skip
        real = {name: round(statistics.fmean(values), 3) for name, values in found.items()}
        pairs, replays = differing(found), dict[str, Any]()
        for name in STRATEGIES:
            again = replay(folder / f"{name}-0", strategies=STRATEGIES, seeds=REPLAY_SEEDS)
            told = makespans(again)
            values = [told[each] for each in STRATEGIES], [real[each] for each in STRATEGIES]
            replays[name] = {
                "makespans_s": {each: round(value, 3) for each, value in told.items()},
                "rank_correlation": round(statistics.correlation(*map(ranks, values)), 3),
                "wrong": [pair for pair in pairs if told[pair[0]] >= told[pair[1]]],
                "off": round(again.off, 3),
            }
    is_kept = not any(one["wrong"] for one in replays.values())
    summary = {"real_s": real, "differing": pairs, "replays": replays, "is_kept": is_kept}
    print(f"\nmakespan, s          real   foretold by the trace of {', '.join(STRATEGIES)}")
    for name in STRATEGIES:
        told = "  ".join(f"{replays[by]['makespans_s'][name]:6.2f}" for by in STRATEGIES)
        print(f"  {name:18} {real[name]:5.2f}   {told}")
    print("  rank correlation           "
          + "  ".join(f"{replays[by]['rank_correlation']:6.2f}" for by in STRATEGIES))  # fmt: skip
    wrong = sum(len(one["wrong"]) for one in replays.values())
    print(f"{len(pairs)} pairs differ, {wrong} of {len(pairs) * len(STRATEGIES)} foretold wrongly")
    print(made.write(args.out, summary, runs))
    return 0 if is_kept else 1


def ranks(values: Sequence[float]) -> list[float]:
    """The place of each in their order."""
    ordered = sorted(values)
    return [float(ordered.index(value)) for value in values]


if __name__ == "__main__":
    sys.exit(main())
