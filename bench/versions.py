"""CPU per call of two commits, in turn: python bench/versions.py 4294e90 [HEAD] [--pairs 10].

Each pair runs the same rows with both commits, against one server, in alternating order: at 64 in
flight with immediate answers, and at 1,000 in flight with answers after 0.4 s. With this latency,
1,000 calls are in flight nearly all the time, and neither the client nor the server, which share
the two cores, is always busy. The ratio is the newer commit's CPU seconds divided by the older
one's; the cost of a run of fewer rows is subtracted, to leave out the start and, at 1,000, the
connections.

On a virtual machine, the same run may cost 10 to 15 % more or less than the one before, or twice as
much next to other work, and its cost drifts over minutes. So a pair has several short runs of each
commit, in turn, and its ratio is the median of their ratios. Ten pairs take about 25 minutes if the
cores are idle. The bound is the upper end of a one-sided 95 % interval for the mean of the ratio's
logarithm. Exits with status 1 if a bound is above --most. For 4294e90, the bar is 0.65.
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
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import record


class InFlight(NamedTuple):
    """Calls at once, the server's latency, the rows of the two runs, and runs of each in a pair."""

    count: int
    latency_s: float
    many: int
    few: int
    turns: int


IN_FLIGHT = {
    "64 in flight": InFlight(64, 0.0, 16_000, 2_000, 5),
    "1,000 in flight": InFlight(1_000, 0.4, 12_000, 4_000, 4),
}
# Without limits, and with one that never binds.
LOADS = {"no limits": [], "with --rps": ["--rps", "1000000"]}
FLAGS = ["--prompt", "Classify: {{ text }}", "--model", "m", "-q"]
SERVE = "from redline.cli import main; import sys; sys.argv = ['redline', *sys.argv[1:]]; main()"
# Student's t, one-sided 95 %, by degrees of freedom; beyond the last the normal quantile is near.
_T = {
    1: 6.314,
    2: 2.92,
    3: 2.353,
    4: 2.132,
    5: 2.015,
    7: 1.895,
    9: 1.833,
    10: 1.812,
    11: 1.796,
    12: 1.782,
    13: 1.771,
    14: 1.761,
    19: 1.729,
    29: 1.699,
}


@contextmanager
def checked_out(commit: str, folder: Path) -> Iterator[Path]:
    """The `src` of a commit, while it is entered."""
    git = ["git", "-C", str(record.ROOT), "worktree"]
    subprocess.run([*git, "add", "--detach", str(folder), commit], check=True, capture_output=True)
    try:
        yield folder / "src"
    finally:
        subprocess.run([*git, "remove", "--force", str(folder)], check=True)


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


class Compared(Protocol):
    """One of the things that are compared."""

    def cpu_s(self, rows: Path) -> float:
        """CPU seconds of one run over `rows`."""


class Variant(NamedTuple):
    """A version of the program, and the flags of its runs."""

    source: Path
    flags: Sequence[str]

    def cpu_s(self, rows: Path) -> float:
        """CPU seconds of one run over `rows`, with its children."""
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-c", SERVE, "run", str(rows), *FLAGS, *self.flags]
            command += ["-o", str(Path(folder) / "out.jsonl")]
            # Otherwise each run would compile what it imports.
            kept = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
            process = subprocess.Popen(
                command,
                env=kept | {"PYTHONPATH": str(self.source)},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            if process.returncode:
                raise RuntimeError(f"{command} ended with status {process.returncode}")
            return usage.ru_utime + usage.ru_stime


def compare(
    variants: Sequence[Compared], rows: Sequence[Path], counts: InFlight, pairs: int
) -> list[list[float]]:
    """CPU seconds per 1,000 calls of each pair, in the order of the variants. rows: many, few.

    Those of the first are a median over the turns; those of another one are that, times the median
    of its ratios to the first in each turn. What disturbs a turn does not count, and what lasts
    longer is the same for both.
    """
    found = []
    for variant in variants:
        variant.cpu_s(rows[-1])  # warms up, and compiles what it imports
    for pair in range(pairs):
        turns = list[list[float]]()
        for turn in range(counts.turns):
            spent_s = [0.0] * len(variants)
            for at in range(len(variants))[:: 1 if (pair + turn) % 2 else -1]:
                many_s, few_s = (variants[at].cpu_s(path) for path in rows)
                spent_s[at] = many_s - few_s
            turns.append(spent_s)
        first_s = 1000 * statistics.median(turn[0] for turn in turns) / (counts.many - counts.few)
        ratios = (
            statistics.median(turn[at] / turn[0] for turn in turns) for at in range(len(variants))
        )
        found.append([round(first_s * ratio, 5) for ratio in ratios])
    return found


def summarize(pairs: list[list[float]]) -> dict[str, float]:
    """Medians, and the bound of the ratio."""
    old, new = zip(*pairs, strict=True)
    ratios = [pair[1] / pair[0] for pair in pairs]
    return {
        "old_cpu_s_per_1000": round(statistics.median(old), 4),
        "new_cpu_s_per_1000": round(statistics.median(new), 4),
        "ratio": round(statistics.median(ratios), 3),
        "ratio_min": round(min(ratios), 3),
        "ratio_max": round(max(ratios), 3),
        "bound": round(upper_bound(ratios), 3),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="CPU per call of two commits, in turn.")
    parser.add_argument("old")
    parser.add_argument("new", nargs="?", default="HEAD")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--most", type=float, default=1.03, help="the bound that is allowed")
    parser.add_argument("--results", type=Path, default=record.RESULTS)
    given = parser.parse_args()
    settings = {"pairs": given.pairs, "loads": LOADS, "most": given.most}
    settings |= {name: counts._asdict() for name, counts in IN_FLIGHT.items()}
    settings |= {"old": given.old, "new": given.new}
    result = record.Record("versions", settings, {"sim": 0})
    result.versions.update(record.own_versions("httptools", "uvloop", "msgspec"))
    summary, raw = dict[str, Any](), dict[str, Any]()
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        sources = [
            stack.enter_context(checked_out(commit, folder / f"commit-{at}"))
            for at, commit in enumerate((given.old, given.new))
        ]
        for in_flight, counts in IN_FLIGHT.items():
            rows = [
                write_rows(folder / f"{count}.jsonl", count) for count in (counts.many, counts.few)
            ]
            with record.serving(record.sim("--latency", str(counts.latency_s))) as server:
                for load, own in LOADS.items():
                    flags = [*own, "-c", str(counts.count), "--base-url", server.url]
                    variants = [Variant(source, flags) for source in sources]
                    pairs = compare(variants, rows, counts, given.pairs)
                    key = f"{in_flight}, {load}"
                    raw[key], summary[key] = pairs, summarize(pairs)
                    one = summary[key]
                    print(
                        f"{key}: {one['old_cpu_s_per_1000']:.4f} -> "
                        f"{one['new_cpu_s_per_1000']:.4f} CPU s per 1,000 calls, median ratio "
                        f"{one['ratio']:.3f}, upper 95 % bound {one['bound']:.3f} of "
                        f"{len(pairs)} pairs ({given.most:g} allowed)",
                        flush=True,
                    )
    print(f"written: {result.write(given.results, summary, raw)}")
    return int(max(one["bound"] for one in summary.values()) > given.most)


if __name__ == "__main__":
    raise SystemExit(main())
