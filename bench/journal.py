"""What durability costs: the same run with the journal and without it, against the same server.

    python bench/journal.py [--rounds 5] [--rows 20000]

Rows a second of wall time and CPU seconds per 1,000 rows of `rows.jsonl` with prompts of 1 KB,
interleaved. With the journal each result is written, synced in groups and acknowledged; without it
the outcomes are counted and dropped. One more run with the journal is watched by strace, where that
is installed: how many fsyncs and writes it made. The server is a `redline sim`, which takes most of
the other core.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
from pathlib import Path
from typing import Any

import record

LOADS = {"64 in flight, 0 ms": (64, 0.0), "1,000 in flight, 200 ms": (1000, 0.2)}
MOST_LOSS = 0.05
_STRACE = ("strace", "-f", "-c", "-e", "trace=fsync,fdatasync,write,pwrite64", "-o", "strace.txt")


def child(kind: str, url: str, in_flight: int) -> int:
    """One run in this process; 0 where every row succeeded."""
    from redline.job import run_job
    from redline.job.settings import make_job
    from redline.limits import Limits

    options: dict[str, Any] = {
        "endpoint": url,
        "model": "sim",
        "limits": Limits(requests="6m/60s", concurrency=in_flight),
    }
    if kind == "on":
        options["output"] = "out.jsonl"
    report = run_job(make_job("rows.jsonl", options, os.environ))
    return 0 if report.is_complete and not report.failed else 1


def command(kind: str, url: str, in_flight: int) -> list[str]:
    return [sys.executable, __file__, "--child", kind, url, str(in_flight)]


def measure(kind: str, server: record.Server, in_flight: int, rows: int) -> dict[str, Any]:
    """The figures of one run."""
    with record.scratch() as folder:
        record.write_rows(folder / "rows.jsonl", rows)
        done = record.run_client(command(kind, server.url, in_flight), folder)
        output = folder / "out.jsonl"
        written = output.stat().st_size if output.exists() else 0
    return {
        "journal": kind,
        "rows": rows,
        "rows_per_s": round(rows / done.wall_s, 1),
        "cpu_s_per_1000": round(1000 * done.cpu_s / rows, 4),
        "bytes_written": written,
    }


def calls_to_the_kernel(server: record.Server, in_flight: int, rows: int) -> dict[str, int]:
    """How often each call of a watched run was made, by strace; empty where there is none."""
    if shutil.which("strace") is None:
        return {}
    with record.scratch() as folder:
        record.write_rows(folder / "rows.jsonl", rows)
        record.run_client([*_STRACE, *command("on", server.url, in_flight)], folder)
        lines = [line.split() for line in (folder / "strace.txt").read_text().splitlines()]
    names = ("fsync", "fdatasync", "write", "pwrite64")
    return {line[-1]: int(line[3]) for line in lines if line and line[-1] in names}


def summarize(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians with and without, and what the journal costs."""

    def median(kind: str, figure: str) -> float:
        return float(statistics.median(run[figure] for run in runs if run["journal"] == kind))

    on, off = median("on", "rows_per_s"), median("off", "rows_per_s")
    return {
        "rows_per_s_on": round(on),
        "rows_per_s_off": round(off),
        "lost": round(1 - on / off, 3),
        "cpu_s_per_1000_on": round(median("on", "cpu_s_per_1000"), 3),
        "cpu_s_per_1000_off": round(median("off", "cpu_s_per_1000"), 3),
        "bytes_a_row": round(median("on", "bytes_written") / runs[0]["rows"]),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--results", type=Path, default=record.RESULTS)
    args = parser.parse_args()
    settings = {"rounds": args.rounds, "rows": args.rows, "loads": LOADS, "most_loss": MOST_LOSS}
    result = record.Record("journal", settings, {"sim": 0})
    result.versions.update(record.own_versions("httptools", "uvloop", "msgspec"))
    summary: dict[str, Any] = {}
    raw: dict[str, Any] = {}
    for load, (in_flight, latency_s) in LOADS.items():
        runs = raw[load] = []
        with record.serving(record.sim("--latency", str(latency_s))) as server:
            for number in range(args.rounds):
                # Each first in turn: what comes second finds warm caches.
                kinds = ("on", "off") if number % 2 else ("off", "on")
                runs += [measure(kind, server, in_flight, args.rows) for kind in kinds]
            calls = calls_to_the_kernel(server, in_flight, args.rows)
        summary[load] = summarize(runs) | {"calls": calls}
        row = summary[load]
        print(
            f"{load}: {row['rows_per_s_on']:,} rows/s with the journal, {row['rows_per_s_off']:,} "
            f"without: {row['lost']:+.1%} lost; CPU s/1,000 {row['cpu_s_per_1000_on']:.3f} and "
            f"{row['cpu_s_per_1000_off']:.3f}; {row['bytes_a_row']:,} bytes a row; "
            f"calls: {calls or 'strace is not installed'}",
            flush=True,
        )
    print(f"written: {result.write(args.results, summary, raw)}")
    return 0 if all(row["lost"] <= MOST_LOSS for row in summary.values()) else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        sys.exit(child(sys.argv[2], sys.argv[3], int(sys.argv[4])))
    sys.exit(main())
