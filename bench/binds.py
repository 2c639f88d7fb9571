"""Does the timeline of a job say what was planted in it?

    python bench/binds.py [--seed N] [NAME ...]

Runs the scenarios of tests/support/bottlenecks.py, one after the other, and prints for each the
share of its seconds that are named by the planted cause, and what the others were taken for.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import record

sys.path.insert(0, str(record.ROOT / "tests"))

from support.bottlenecks import Verdict, played, scenarios

# In each scenario, and of all seconds together.
LEAST_OF_ONE, LEAST_OF_ALL = 0.90, 0.95
_MOST_SHOWN = 3


def main() -> int:
    """The exit status: 0 if enough seconds are right."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="a folder for the timelines")
    arguments = parser.parse_args()
    found: dict[str, Verdict] = {}
    for scenario in scenarios(arguments.seed):
        if arguments.names and scenario.name not in arguments.names:
            continue
        with tempfile.TemporaryDirectory() as folder:
            verdict = found[scenario.name] = played(scenario, Path(folder))
            if arguments.keep is not None:
                path = Path(folder) / "out.redline" / "timeline.jsonl"
                (arguments.keep / f"{scenario.name}.jsonl").write_bytes(path.read_bytes())
        print(f"{scenario.name:24} {verdict.right:4} of {verdict.seconds:4} s", flush=True)
        for line in verdict.wrong[:_MOST_SHOWN]:
            print(f"    {line}", flush=True)
    seconds = sum(verdict.seconds for verdict in found.values())
    right = sum(verdict.right for verdict in found.values())
    print(f"{'all':24} {right:4} of {seconds:4} s, {100 * right / max(1, seconds):.1f} %")
    is_each = all(verdict.share >= LEAST_OF_ONE for verdict in found.values())
    return 0 if is_each and right >= LEAST_OF_ALL * seconds else 1


if __name__ == "__main__":
    sys.exit(main())
