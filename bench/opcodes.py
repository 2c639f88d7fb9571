"""Bytecodes and Python frames per row: python bench/opcodes.py [COMMIT ...] [--top 20].

What a row costs in Python, without the noise of a clock: the difference between a run of 1,300 rows
and one of 300, in all threads, at 16 in flight, against the provider of record.SIM_COMMIT.
COMMIT: `.` is this checkout, and the default. With two, --top lists the functions that differ most.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import record
from versions import LOADS, checked_out, write_rows

FEW, MANY = 300, 1_300
FLAGS = ["--prompt", "Classify: {{ text }}", "--model", "m", "-c", "16", "-q", "-o", "out.jsonl"]
# Runs the command line, and counts: argv is the file for the counts, then the command's.
COUNT = """
import json, sys, threading
from collections import Counter
ran, frames = Counter(), Counter()
def within(frame, event, _):
    if event == "opcode":
        ran[frame.f_code] += 1
    return within
def entered(frame, event, _):
    frame.f_trace_opcodes, frame.f_trace_lines = True, False
    frames[frame.f_code] += 1
    return within
from redline.cli import main
path, sys.argv = sys.argv[1], ["redline", *sys.argv[2:]]
threading.settrace(entered)
sys.settrace(entered)
try:
    main()
except SystemExit as ended:
    status = ended.code
sys.settrace(None)
threading.settrace(None)
counts = Counter()
for code, count in ran.items():
    counts[code.co_qualname] += count
with open(path, "w") as file:
    json.dump({"frames": sum(frames.values()), "opcodes": counts}, file)
sys.exit(status)
"""


class Cost(NamedTuple):
    """Of one row. opcodes: by function."""

    frames: float
    opcodes: dict[str, float]


def counted(source: Path, rows: Path, flags: list[str]) -> tuple[int, dict[str, int]]:
    """Frames, and opcodes by function, of one run."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "counts.json"
        subprocess.run(
            [sys.executable, "-c", COUNT, str(path), "run", str(rows), *FLAGS, *flags],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": str(source)},
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        found = json.loads(path.read_text())
        return found["frames"], found["opcodes"]


def cost(source: Path, folder: Path, flags: list[str]) -> Cost:
    """Of a row, by the difference of two runs."""
    (few_frames, few), (many_frames, many) = (
        counted(source, folder / f"{count}.jsonl", flags) for count in (FEW, MANY)
    )
    rows = MANY - FEW
    opcodes = {name: (many.get(name, 0) - few.get(name, 0)) / rows for name in {*few, *many}}
    return Cost((many_frames - few_frames) / rows, opcodes)


def differences(first: Cost, last: Cost, most: int) -> list[str]:
    """The functions whose opcodes differ most."""
    changes = {
        name: last.opcodes.get(name, 0.0) - first.opcodes.get(name, 0.0)
        for name in {*first.opcodes, *last.opcodes}
    }
    names = sorted(changes, key=lambda name: -abs(changes[name]))[:most]
    return [
        f"  {changes[name]:+8.1f}  {first.opcodes.get(name, 0.0):7.1f} -> "
        f"{last.opcodes.get(name, 0.0):7.1f}  {name}"
        for name in names
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description="Bytecodes and Python frames per row.")
    parser.add_argument("commits", nargs="*", default=["."])
    parser.add_argument("--top", type=int, default=0, help="functions to list")
    given = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for count in (FEW, MANY):
            write_rows(folder / f"{count}.jsonl", count)
        sources = [
            record.ROOT / "src"
            if commit == "."
            else stack.enter_context(checked_out(commit, folder / f"commit-{at}"))
            for at, commit in enumerate(given.commits)
        ]
        url = stack.enter_context(record.serving(record.sim("--latency", "0"))).url
        for load, flags in LOADS.items():
            costs = [cost(source, folder, [*flags, "--base-url", url]) for source in sources]
            for commit, found in zip(given.commits, costs, strict=True):
                opcodes = sum(found.opcodes.values())
                print(f"{load}, {commit}: {opcodes:,.0f} opcodes and {found.frames:,.0f} frames")
            base = costs[0] if len(costs) > 1 else Cost(0.0, {})
            print("\n".join(differences(base, costs[-1], given.top)), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
