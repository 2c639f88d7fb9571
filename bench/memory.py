"""The memory of a long run: resident set by completed rows, of `redline run` over 200,000 rows.

    python bench/memory.py [--rows 200000] [--concurrency 64]

/proc/PID/status is read every half second, together with the number of lines in the results file.
The memory counts as flat if its maximum after 20 % of the rows exceeds its size at that point by no
more than the two sets of row keys may grow: 16 to 32 bytes per row each. Without these sets, a row
could be done twice.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import record

EVERY_S = 0.5
FLAT_FROM = 0.2
# Two sets of 64-bit keys, each at most a quarter full just after it has doubled.
ALLOWED_BYTES_PER_ROW = 64
PLOT_COLUMNS, PLOT_LINES = 60, 10


class LineCounter:
    """Counts the lines of a growing file, reading each byte once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0
        self.lines = 0

    def read(self) -> int:
        """Lines so far; 0 while there is no file."""
        if self._path.exists():
            with self._path.open("rb") as file:
                file.seek(self._at)
                while block := file.read(1 << 20):
                    self._at += len(block)
                    self.lines += block.count(b"\n")
        return self.lines


def resident_mb(pid: int) -> float | None:
    """VmRSS of a process in MiB; None once it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return None
    for line in status.splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return None


def watch(command: Sequence[str], folder: Path) -> list[dict[str, float]]:
    """Samples of rows, resident MiB and seconds, from the start of the process to its end."""
    samples: list[dict[str, float]] = []
    counter = LineCounter(folder / "out.jsonl")
    begun_s = time.monotonic()
    with (folder / "stderr").open("wb") as stderr:
        process = subprocess.Popen(
            command, cwd=folder, env=record.clean_environment(), stderr=stderr
        )
        try:
            while process.poll() is None:
                # The rows first: what they cost is in the memory that is read after them.
                rows = counter.read()
                memory_mb = resident_mb(process.pid)
                if memory_mb is not None and rows:
                    at_s = round(time.monotonic() - begun_s, 2)
                    samples.append({"rows": rows, "rss_mb": round(memory_mb, 2), "at_s": at_s})
                time.sleep(EVERY_S)
        finally:
            process.kill()
            process.wait()
    if process.returncode != 0:
        raise RuntimeError((folder / "stderr").read_text()[-4000:])
    return samples


def at_rows(samples: Sequence[dict[str, float]], rows: float) -> dict[str, float]:
    """The first sample with at least `rows`, else the last."""
    return next((sample for sample in samples if sample["rows"] >= rows), samples[-1])


def summarize(samples: Sequence[dict[str, float]], rows: int) -> dict[str, Any]:
    """The resident set at each tenth, and how much it grew."""
    tenths = {
        f"{tenth * 10} %": round(at_rows(samples, rows * tenth / 10)["rss_mb"], 1)
        for tenth in range(1, 11)
    }
    early = at_rows(samples, rows * FLAT_FROM)
    later = [sample["rss_mb"] for sample in samples if sample["rows"] >= early["rows"]]
    growth_mb = max(later) - early["rss_mb"]
    allowed_mb = ALLOWED_BYTES_PER_ROW * rows * (1 - FLAT_FROM) / 2**20
    return {
        "rss_mb": tenths,
        "peak_mb": round(max(sample["rss_mb"] for sample in samples), 1),
        "growth_mb": round(growth_mb, 1),
        "growth_bytes_per_row": round(growth_mb * 2**20 / max(1, rows - early["rows"])),
        "growth_share": round(growth_mb / early["rss_mb"], 3),
        "allowed_mb": round(allowed_mb, 1),
        "is_flat": growth_mb <= allowed_mb,
    }


def plot(samples: Sequence[dict[str, float]], rows: int) -> str:
    """The resident set by rows done, from 0 MB, in characters."""
    top_mb = max(sample["rss_mb"] for sample in samples) * 1.1
    columns = [
        at_rows(samples, rows * (column + 1) / PLOT_COLUMNS)["rss_mb"]
        for column in range(PLOT_COLUMNS)
    ]
    lines = []
    for line in range(PLOT_LINES, 0, -1):
        from_mb, to_mb = top_mb * (line - 1) / PLOT_LINES, top_mb * line / PLOT_LINES
        marks = "".join("*" if from_mb < value <= to_mb else " " for value in columns)
        lines.append(f"{to_mb:6.0f} MB |{marks}".rstrip())
    lines.append(" " * 10 + "+" + "-" * PLOT_COLUMNS)
    lines.append(" " * 10 + "0" + f"{rows:,} rows".rjust(PLOT_COLUMNS))
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--results", type=Path, default=record.RESULTS)
    args = parser.parse_args()
    settings = {
        "rows": args.rows,
        "concurrency": args.concurrency,
        "prompt_bytes": 1024,
        "every_s": EVERY_S,
        "flat_from": FLAT_FROM,
        "allowed_bytes_per_row": ALLOWED_BYTES_PER_ROW,
        "server": "redline sim",
    }
    result = record.Record("memory", settings, {"sim": 0})
    result.versions.update(record.own_versions("httptools", "uvloop", "msgspec"))
    with record.scratch() as folder, record.serving(record.sim()) as server:
        record.write_rows(folder / "rows.jsonl", args.rows)
        flags = f"--model sim --base-url {server.url} -c {args.concurrency} -o out.jsonl".split()
        samples = watch([*record.REDLINE, "run", "rows.jsonl", *flags], folder)
        written = LineCounter(folder / "out.jsonl").read()
    if written != args.rows:
        raise RuntimeError(f"{written} of {args.rows} results were written")
    summary = summarize(samples, args.rows)
    curve = plot(samples, args.rows)
    path = result.write(args.results, {**summary, "plot": curve.splitlines()}, samples)
    print(curve)
    for share, memory_mb in summary["rss_mb"].items():
        print(f"{share:>6} {memory_mb:8.1f} MB")
    verdict = "flat" if summary["is_flat"] else "NOT FLAT"
    print(
        f"{verdict}: {summary['growth_mb']:+.1f} MB from 20 % to 100 % of the rows "
        f"({summary['growth_bytes_per_row']} bytes a row; {summary['allowed_mb']:.1f} MB allowed)"
    )
    print(f"written: {path}")
    return 0 if summary["is_flat"] else 1


if __name__ == "__main__":
    sys.exit(main())
