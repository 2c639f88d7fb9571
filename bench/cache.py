"""What the cache costs and saves: the same run without it, with misses only, and with hits only.

    python bench/cache.py [--rounds 5] [--rows 20000]

Measures CPU seconds per 1,000 rows, in all threads of the process, and rows per second of wall
time. The rows of `rows.jsonl` have prompts of 1 KB and temperature 0, and the journal is on; the
three kinds of runs alternate. `off` has no cache, `miss` an empty one, and `hit` one that has every
answer. The server is a `redline sim`, which uses most of the other core; `hit` sends it no request.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import record

KINDS = ("off", "miss", "hit")
LOADS = {"64 in flight, 0 ms": (64, 0.0), "1,000 in flight, 200 ms": (1000, 0.2)}


def child(kind: str, url: str, in_flight: int, cache: str) -> int:
    """One run in this process; 0 where every row succeeded as its kind says."""
    from redline.job import run_job
    from redline.job.settings import make_job
    from redline.limits import Limits

    options: dict[str, Any] = {
        "endpoint": url,
        "model": "sim",
        "params": {"temperature": 0},
        "limits": Limits(requests="6m/60s", concurrency=in_flight),
        "output": "out.jsonl",
    }
    if kind != "off":
        options["cache"] = cache
    report = run_job(make_job("rows.jsonl", options, os.environ))
    is_done = report.is_complete and not report.failed
    return 0 if is_done and (kind == "hit") == (report.attempts == 0) else 1


def measure(
    kind: str, server: record.Server, in_flight: int, rows: int, cache: Path
) -> dict[str, Any]:
    """The figures of one run. cache: a folder, filled for `hit`."""
    command = [sys.executable, __file__, "--child", kind, server.url, str(in_flight), str(cache)]
    with record.scratch() as folder:
        record.write_rows(folder / "rows.jsonl", rows)
        done = record.run_client(command, folder)
    return {
        "cache": kind,
        "rows": rows,
        "rows_per_s": round(rows / done.wall_s, 1),
        "cpu_s_per_1000": round(1000 * done.cpu_s / rows, 4),
    }


def summarize(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians of each kind."""
    return {
        f"{figure}_{kind}": round(
            statistics.median(run[figure] for run in runs if run["cache"] == kind), 3
        )
        for figure in ("cpu_s_per_1000", "rows_per_s")
        for kind in KINDS
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--results", type=Path, default=record.RESULTS)
    args = parser.parse_args()
    settings = {"rounds": args.rounds, "rows": args.rows, "loads": LOADS}
    result = record.Record("cache", settings, {"sim": 0})
    result.versions.update(record.own_versions("httptools", "uvloop", "msgspec"))
    summary: dict[str, Any] = {}
    raw: dict[str, Any] = {}
    for load, (in_flight, latency_s) in LOADS.items():
        runs = raw[load] = []
        with record.serving(record.sim("--latency", str(latency_s))) as server:
            for number in range(args.rounds):
                with tempfile.TemporaryDirectory() as folder:
                    # `miss` fills what `hit` finds; `off` comes before or after them in turn.
                    kinds = ("miss", "hit", "off") if number % 2 else ("off", "miss", "hit")
                    where = (server, in_flight, args.rows, Path(folder))
                    runs += [measure(kind, *where) for kind in kinds]
        row = summary[load] = summarize(runs)
        shown = ", ".join(
            f"{kind} {row[f'cpu_s_per_1000_{kind}']:.3f} ({row[f'rows_per_s_{kind}']:,.0f} rows/s)"
            for kind in KINDS
        )
        print(f"{load}: CPU s/1,000 rows {shown}", flush=True)
    print(f"written: {result.write(args.results, summary, raw)}")
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        sys.exit(child(sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5]))
    sys.exit(main())
