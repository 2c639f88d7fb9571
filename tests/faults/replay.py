"""Plays scripts of faults again: .venv/bin/python tests/faults/replay.py SEED [SEED ...] [--quiet]

Prints each script's plan and its trace with times, then its hash and what became of the law; with
--quiet the hashes alone. The same seed gives the same trace on every machine.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from faults.play import BrokenLaw, play
from faults.script import Script


def main(words: list[str]) -> int:
    """The number of scripts that broke the law, 1 at most."""
    is_quiet = "--quiet" in words
    status = 0
    for word in words:
        if word == "--quiet":
            continue
        seed = int(word)
        if not is_quiet:
            _show_plan(Script(seed))
        try:
            played = play(seed)
            trace, verdict = played.trace, "the law holds"
        except BrokenLaw as error:
            trace, verdict, status = error.trace, str(error), 1
        if not is_quiet:
            for at_s, what, number, stage, result in trace.events:
                print(f"{at_s:10.4f}  {what} {number} {stage} {result}".rstrip())
        print(f"seed {seed}: {trace.hash}: {verdict}")
    return status


def _show_plan(script: Script) -> None:
    print(f"seed {seed_words(script)}")
    for number, line in enumerate(script.rows, 1):
        print(f"row {number}: {line.kind} {line.name} {line.raw[:100]!r}")
    for number, run in enumerate(script.runs, 1):
        print(f"run {number}: {run}")


def seed_words(script: Script) -> str:
    return f"{script.seed}: {script.settings}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
