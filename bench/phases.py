"""Is a delay found in the phase of the calls where it was planted?

    python bench/phases.py [NAME ...]

Runs what tests/support/phase_runs.py plants, one after the other, and prints a table: what was
planted in each phase, what the timeline says, and which share of the time no phase accounts for.
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
