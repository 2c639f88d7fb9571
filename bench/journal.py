"""What durability costs: the same run with the journal and without it, against the same server.

    python bench/journal.py [--rounds 5] [--rows 20000]

Rows a second of wall time and CPU time a row of `rows.jsonl` with prompts of 1 KB, interleaved.
With the journal each result is written, synced in groups and acknowledged; without it the outcomes
are counted and dropped. What the journal costs is the difference in CPU time, in us a row and as a
share of the whole CPU time of a row. One more run with the journal counts its calls of `os.write`
and `os.fsync`. The server is this checkout's `redline sim`. One that is slower than the client,
such as the frozen one of the other benchmarks, would leave the client time to write each answer by
itself, and hide what that costs. Status 1 if the journal costs more than 20 us or 0.3 writes a row
at 64 in flight and 0 ms.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import record

LOADS = {"64 in flight, 0 ms": (64, 0.0), "1,000 in flight, 200 ms": (1000, 0.2)}
SIM = (*record.REDLINE, "sim", "--port", "0")
# Without latency, when nothing else hides what the journal costs.
MOST_US, MOST_WRITES = 20.0, 0.3


def child(kind: str, url: str, in_flight: int) -> int:
    """One run in this process; 0 if every row succeeded. kind: on, off, or counted."""
    from redline.job import run_job
    from redline.job.settings import make_job
    from redline.limits import Limits

    options: dict[str, Any] = {
        "endpoint": url,
        "model": "sim",
        "limits": Limits(requests="6m/60s", concurrency=in_flight),
    }
    if kind != "off":
        options["output"] = "out.jsonl"
    calls = Counter[str]()
    if kind == "counted":
        for name in ("write", "fsync"):
            setattr(os, name, counting(getattr(os, name), name, calls))
    # Without an output and a function that takes the results, the report would keep them all, which
    # costs more than the journal.
    on_result = dropped if kind == "off" else None
    report = run_job(make_job("rows.jsonl", options, os.environ), on_result=on_result)
    print(json.dumps(calls))
    return 0 if report.is_complete and not report.failed else 1


def dropped(_: object) -> None:
    """Takes a result and keeps nothing of it."""


def counting(call: Callable[..., Any], name: str, calls: Counter[str]) -> Callable[..., Any]:
    """The call, which counts itself in `calls`."""

    def counted(*args: Any) -> Any:
        calls[name] += 1
        return call(*args)

    return counted


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
    """How often a run with the journal called `os.write` and `os.fsync`."""
    with record.scratch() as folder:
        record.write_rows(folder / "rows.jsonl", rows)
        done = record.run_client(command("counted", server.url, in_flight), folder)
    calls: dict[str, int] = json.loads(done.stdout)
    return calls


def summarize(runs: list[dict[str, Any]], calls: dict[str, int]) -> dict[str, Any]:
    """Medians with and without, and what the journal costs. calls: of one more run."""

    def median(kind: str, figure: str) -> float:
        return float(statistics.median(run[figure] for run in runs if run["journal"] == kind))

    on, off = median("on", "rows_per_s"), median("off", "rows_per_s")
    cpu_on, cpu_off = median("on", "cpu_s_per_1000"), median("off", "cpu_s_per_1000")
    rows = runs[0]["rows"]
    return {
        "rows_per_s_on": round(on),
        "rows_per_s_off": round(off),
        "lost": round(1 - on / off, 3),
        "cpu_s_per_1000_on": round(cpu_on, 3),
        "cpu_s_per_1000_off": round(cpu_off, 3),
        "us_a_row": round(1000 * (cpu_on - cpu_off), 1),
        "share": round(1 - cpu_off / cpu_on, 3),
        "bytes_a_row": round(median("on", "bytes_written") / rows),
        "writes_a_row": round(calls["write"] / rows, 3),
        "calls": calls,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--results", type=Path, default=record.RESULTS)
    args = parser.parse_args()
    bars = {"most_us_a_row": MOST_US, "most_writes_a_row": MOST_WRITES}
    settings = {"rounds": args.rounds, "rows": args.rows, "loads": LOADS, **bars}
    result = record.Record("journal", settings, {"sim": 0})
    result.versions.update(record.own_versions("httptools", "uvloop", "msgspec"))
    summary: dict[str, Any] = {}
    raw: dict[str, Any] = {}
    for load, (in_flight, latency_s) in LOADS.items():
        runs = raw[load] = []
        with record.serving((*SIM, "--latency", str(latency_s))) as server:
            for number in range(args.rounds):
                # Each first in turn: what comes second finds warm caches.
                kinds = ("on", "off") if number % 2 else ("off", "on")
                runs += [measure(kind, server, in_flight, args.rows) for kind in kinds]
            calls = calls_to_the_kernel(server, in_flight, args.rows)
        summary[load] = summarize(runs, calls)
        row = summary[load]
        print(
            f"{load}: {row['rows_per_s_on']:,} rows/s with the journal, {row['rows_per_s_off']:,} "
            f"without: {row['lost']:.1%} lost; the journal takes {row['us_a_row']:.1f} of "
            f"{1000 * row['cpu_s_per_1000_on']:.1f} us of CPU a row, {row['share']:.1%}; "
            f"{row['bytes_a_row']:,} bytes and {row['writes_a_row']} writes a row, "
            f"{calls['fsync']:,} fsyncs",
            flush=True,
        )
    print(f"written: {result.write(args.results, summary, raw)}")
    first = next(iter(summary.values()))
    is_cheap = first["us_a_row"] <= MOST_US and first["writes_a_row"] <= MOST_WRITES
    verdict = "kept" if is_cheap else "missed"
    print(f"the bar of {MOST_US:g} us and {MOST_WRITES:g} writes a row is {verdict}")
    return 0 if is_cheap else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        sys.exit(child(sys.argv[2], sys.argv[3], int(sys.argv[4])))
    sys.exit(main())
