"""CPU per call of two commits, in turn: python bench/versions.py 4294e90 [HEAD] [--pairs 12].

Each pair runs the same rows through both, against one server, in alternating order. The ratio is
the newer commit's CPU seconds over the older one's, start-up taken off by a run of few rows; the
bound is the upper end of a one-sided 95 % interval for the mean of its logarithm.
It leaves no record: what it compares changes with every commit.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import record

ROWS, FEW = 12_000, 500
# Without limits, and with one that never binds.
LOADS = {"no limits": [], "with --rps": ["--rps", "1000000"]}
FLAGS = ["--prompt", "Classify: {{ text }}", "--model", "m", "-c", "64", "-q"]
SERVE = "from redline.cli import main; import sys; sys.argv = ['redline', *sys.argv[1:]]; main()"
# Student's t, one-sided 95 %, by degrees of freedom; beyond the last the normal quantile is near.
_T = {9: 1.833, 10: 1.812, 11: 1.796, 12: 1.782, 13: 1.771, 14: 1.761, 19: 1.729, 29: 1.699}


@contextmanager
def checked_out(commit: str, folder: Path) -> Iterator[Path]:
    """The `src` of a commit, while it is entered."""
    git = ["git", "-C", str(record.ROOT), "worktree"]
    subprocess.run([*git, "add", "--detach", str(folder), commit], check=True, capture_output=True)
    try:
        yield folder / "src"
    finally:
        subprocess.run([*git, "remove", "--force", str(folder)], check=True)


def cpu_s(source: Path, rows: Path, flags: list[str]) -> float:
    """CPU seconds of one run over `rows`, with its children."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", SERVE, "run", str(rows), *FLAGS, *flags]
        command += ["-o", str(Path(folder) / "out.jsonl")]
        process = subprocess.Popen(
            command,
            env=os.environ | {"PYTHONPATH": str(source)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise RuntimeError(f"{command} ended with status {process.returncode}")
        return usage.ru_utime + usage.ru_stime


def write_rows(path: Path, count: int) -> Path:
    text = "Ticket {}: the printer on floor {} does not answer, please help us soon."
    lines = (
        json.dumps({"custom_id": f"r{n}", "text": text.format(n, n % 17)}) for n in range(count)
    )
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return path


def upper_bound(ratios: list[float]) -> float:
    """Of the geometric mean of the ratios, one-sided 95 %."""
    logs = [math.log(ratio) for ratio in ratios]
    t = next((value for freedom, value in _T.items() if freedom >= len(logs) - 1), 1.69)
    return math.exp(statistics.mean(logs) + t * statistics.stdev(logs) / math.sqrt(len(logs)))


def main() -> int:
    parser = argparse.ArgumentParser(description="CPU per call of two commits, in turn.")
    parser.add_argument("old")
    parser.add_argument("new", nargs="?", default="HEAD")
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--most", type=float, default=1.03, help="the bound that is allowed")
    given = parser.parse_args()
    is_kept = True
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        many = write_rows(folder / "many.jsonl", ROWS)
        few = write_rows(folder / "few.jsonl", FEW)
        with (
            checked_out(given.old, folder / "old") as old,
            checked_out(given.new, folder / "new") as new,
            record.serving(record.sim("--latency", "0")) as server,
        ):
            for load, flags in LOADS.items():
                flags = [*flags, "--base-url", server.url]
                ratios, spent = [], {old: [], new: []}
                for pair in range(given.pairs + 1):
                    for source in (old, new) if pair % 2 else (new, old):
                        took = cpu_s(source, many, flags) - cpu_s(source, few, flags)
                        spent[source].append(1000 * took / (ROWS - FEW))
                    if pair:  # the first one warms up
                        ratios.append(spent[new][-1] / spent[old][-1])
                bound = upper_bound(ratios)
                is_kept &= bound <= given.most
                print(
                    f"{load}: {statistics.median(spent[old]):.4f} -> "
                    f"{statistics.median(spent[new]):.4f} CPU s per 1,000 calls, median ratio "
                    f"{statistics.median(ratios):.3f}, upper 95 % bound {bound:.3f} of "
                    f"{len(ratios)} pairs ({given.most:g} allowed)",
                    flush=True,
                )
    return 0 if is_kept else 1


if __name__ == "__main__":
    raise SystemExit(main())
