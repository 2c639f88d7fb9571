"""Checks whether the timeline of a job names the causes that were planted in the job.

    python bench/binds.py [--seeds 5] [--no-relax] [NAME ...]
    python bench/binds.py --apart

Runs the scenarios of tests/support/bottlenecks.py. For each of them, prints the share of its
seconds for which the timeline names the planted cause, and what it named in the other seconds.
Seeds are derived from the hash of the last commit that changed code. Scenarios whose answers take
30 s leave the machine idle, and run at the same time as the others. Each label is confirmed by
another run without its cause, which must send at least a fifth more requests while the label
applies; --no-relax omits these runs. The 2 s after the start and after each change are not counted;
if the cause is in the endpoint, one p95 latency is not counted instead, if that is longer.

Exits with status 1 unless 95 % of all seconds are right, 90 % in each scenario (over all seeds),
and each label is confirmed. The lowest share of a single run is printed, but has no bar.

--apart runs the scenarios of tests/support/bottlenecks_apart.py once, with the first seed, and adds
the results to the record, where later runs keep them: these scenarios are never used for tuning.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import record

sys.path.insert(0, str(record.ROOT / "tests"))

from support.bottlenecks import Scenario, gains, played, scenarios
from support.bottlenecks_apart import apart

# In each scenario, and of all seconds together.
LEAST_OF_ONE, LEAST_OF_ALL = 0.90, 0.95
# Without the cause, as many times the requests.
LEAST_GAIN = 1.2
_MOST_SHOWN = 3
_SLOW = "-30s"
CODE = ("src", "tests/support/bottlenecks.py")


@dataclass(frozen=True)
class Found:
    """One scenario with one seed. gains: without its causes, by label; empty if none was tried."""

    name: str
    seed: int
    seconds: int
    right: int
    wrong: tuple[str, ...]
    gains: dict[str, float]

    @property
    def gain(self) -> float | None:
        """The least of them; None if none was tried."""
        return min(self.gains.values(), default=None)

    @property
    def not_confirmed(self) -> list[str]:
        return [label for label, gain in self.gains.items() if gain < LEAST_GAIN]

    def __str__(self) -> str:
        text = f"{self.name:24} {self.right:4} of {self.seconds:4} s"
        if self.gains:
            text += ", as many requests without the cause, times:"
            text += "".join(f" {label} {gain:.2f}" for label, gain in self.gains.items())
        shown = self.wrong[:_MOST_SHOWN]
        return "\n".join([text, *(f"    seed {self.seed}: {line}" for line in shown)])


def seeds(count: int) -> list[int]:
    """So many, from the hash of the last commit that changed what is tested."""
    command = ["git", "log", "-1", "--format=%H", "--", *CODE]
    found = subprocess.run(command, cwd=record.ROOT, capture_output=True, text=True, check=True)
    return [int(found.stdout.strip()[5 * place : 5 * place + 5], 16) for place in range(count)]


def tried(scenario: Scenario, seed: int, *, relax: bool) -> Found:
    """The scenario, and again without each of its causes."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as other:
        verdict = played(scenario, Path(folder))
        gained = gains(scenario, verdict, Path(other)) if relax else {}
    return Found(
        scenario.name,
        seed,
        verdict.seconds,
        verdict.right,
        tuple(verdict.wrong),
        {label: round(gain, 2) for label, gain in gained.items()},
    )


def results(wanted: list[tuple[Scenario, int]], *, relax: bool) -> Iterator[Found]:
    """Of each as it ends, those that take long at last."""
    quick = [one for one in wanted if not one[0].name.endswith(_SLOW)]
    slow = [one for one in wanted if one[0].name.endswith(_SLOW)]
    with ThreadPoolExecutor(max(1, len(slow))) as pool:
        going = [pool.submit(tried, *one, relax=relax) for one in slow]
        for scenario, seed in quick:
            yield tried(scenario, seed, relax=relax)
        for one in going:
            yield one.result()


def summarize(found: Iterable[Found]) -> dict[str, Any]:
    """Shares of the seconds that are right, in all and by scenario, and what is not confirmed."""
    every = list(found)
    names = dict.fromkeys(one.name for one in every)
    shares = {name: _share([one for one in every if one.name == name]) for name in names}
    least = min(every, key=lambda one: _share([one]))
    return {
        "seconds": sum(one.seconds for one in every),
        "share": _share(every),
        "least": min(shares.values()),
        "shares": shares,
        "by_seed": {
            name: {str(one.seed): _share([one]) for one in every if one.name == name}
            for name in names
        },
        "least_run": {"name": least.name, "seed": least.seed, "share": _share([least])},
        "not_confirmed": [
            f"{one.name}, {label}, seed {one.seed}" for one in every for label in one.not_confirmed
        ],
    }


def _share(found: list[Found]) -> float:
    seconds = sum(one.seconds for one in found)
    return round(sum(one.right for one in found) / max(1, seconds), 4)


def raw_of(found: Iterable[Found]) -> list[dict[str, Any]]:
    """As the record has them."""
    return [{**vars(one), "gain": one.gain, "wrong": list(one.wrong)} for one in found]


def try_apart(path: Path, *, relax: bool) -> int:
    """Runs the scenarios that are kept apart, once, and adds them to the record."""
    whole = json.loads(path.read_text())
    if "apart" in whole:
        print(f"{path}: they have been run, and count as they came", file=sys.stderr)
        return 2
    [seed] = seeds(1)
    kept = record.Record("apart", {"relax": relax}, {"scenarios": [seed]})
    found = []
    for scenario in apart(seed):
        found.append(tried(scenario, seed, relax=relax))
        print(found[-1], flush=True)
    summary = summarize(found)
    print(f"{'kept apart':24} {100 * summary['share']:5.1f} % of {summary['seconds']:,} s")
    with record.scratch() as folder:
        made = kept.write(folder, summary, raw_of(found))
        whole["apart"] = json.loads(made.read_text())
    path.write_text(json.dumps(whole, indent=1) + "\n")
    print(f"written: {path}")
    return 0


def main() -> int:
    """The exit status: 0 if enough seconds are right."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--no-relax", action="store_true", help="confirm no label by another run")
    parser.add_argument("--apart", action="store_true", help="those kept apart, once")
    parser.add_argument("--results", type=Path, default=record.RESULTS)
    given = parser.parse_args()
    path = given.results / "binds.json"
    if given.apart:
        return try_apart(path, relax=not given.no_relax)
    drawn = seeds(given.seeds)
    wanted = [
        (scenario, seed)
        for seed in drawn
        for scenario in scenarios(seed)
        if not given.names or scenario.name in given.names
    ]
    kept = record.Record("binds", {"relax": not given.no_relax}, {"scenarios": drawn})
    found: list[Found] = []
    for one in results(wanted, relax=not given.no_relax):
        found.append(one)
        print(one, flush=True)
    summary = summarize(found)
    for name, share in summary["shares"].items():
        print(f"{name:24} {100 * share:5.1f} %")
    print(f"{'all':24} {100 * summary['share']:5.1f} % of {summary['seconds']:,} s")
    least = summary["least_run"]
    print(f"least of one run: {100 * least['share']:.1f} %, {least['name']}, seed {least['seed']}")
    for name in summary["not_confirmed"]:
        print(f"not confirmed: {name}")
    if not given.names:
        before = json.loads(path.read_text()) if path.exists() else {}
        kept.write(given.results, summary, raw_of(found))
        if "apart" in before:
            whole = {**json.loads(path.read_text()), "apart": before["apart"]}
            path.write_text(json.dumps(whole, indent=1) + "\n")
        print(f"written: {path}")
    is_good = summary["share"] >= LEAST_OF_ALL and summary["least"] >= LEAST_OF_ONE
    return 0 if is_good and not summary["not_confirmed"] else 1


if __name__ == "__main__":
    sys.exit(main())
