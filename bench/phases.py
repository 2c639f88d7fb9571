"""Checks whether the timeline finds a delay in the phase of the calls in which it was planted.

    python bench/phases.py [NAME ...]

Runs the delays of tests/support/phase_runs.py, one after the other. Prints a table with the delay
that was planted in each phase, the timeline's figure, and the share of the time in no phase. Exits
with status 1 if a figure is off by more than 5 %, or if more than 1 % of the time is in no phase.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import record

sys.path.insert(0, str(record.ROOT / "tests"))

from support.phase_runs import PLANTED

MOST_ERROR, MOST_UNATTRIBUTED = 0.05, 0.01


def main() -> int:
    """The exit status: 0 if each phase has what was planted there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*PLANTED, []])
    names = parser.parse_args().names or list(PLANTED)
    print("| phase | planted, s | found, s | off | unattributed |\n|---|---|---|---|---|")
    is_right = True
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            planted = PLANTED[name](Path(folder))
        error, rest = planted.error, planted.ran.unattributed
        is_right = is_right and abs(error) <= MOST_ERROR and rest <= MOST_UNATTRIBUTED
        figures = f"{planted.seconds:.3f} | {planted.found_s:.3f} | {100 * error:+.2f} %"
        print(f"| {name.replace('_', ' ')} | {figures} | {100 * rest:.3f} % |", flush=True)
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
