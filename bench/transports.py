"""The cost of a request with each HTTP client: CPU seconds per 1,000 calls, and memory.

    python bench/transports.py [--rounds 5] [--calls 10000]

The clients of bench/peers/transport_clients.py take turns against one `redline sim`, with bodies of
1 KB, at the loads of bench/run.py. Redline sets a deadline for each call and records the times of
its phases; the other clients do not.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import record

CLIENTS = ("direct", "bare", "pyreqwest")
SCRIPT = Path(__file__).resolve().parent / "peers" / "transport_clients.py"
LOADS = {"64 in flight, 0 ms": (64, 0.0), "1,000 in flight, 200 ms": (1000, 0.2)}


def measure(kind: str, python: str, url: str, calls: int, in_flight: int) -> dict[str, Any]:
    """The figures of one run, in a process of its own."""
    command = [python, str(SCRIPT), kind, url, str(calls), str(in_flight)]
    done = subprocess.run(
        command,
        env=record.clean_environment(),
        capture_output=True,
        text=True,
        timeout=record.LONGEST_S,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"`{shlex.join(command)}` failed: {done.stderr[-2000:]}")
    figures: dict[str, Any] = json.loads(done.stdout)
    return {"client": kind, "calls": calls, **{name: round(v, 4) for name, v in figures.items()}}


def summarize(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Medians by load and client."""
    summary: dict[str, Any] = {}
    for load in dict.fromkeys(run["load"] for run in runs):
        rows = summary[load] = {}
        for kind in dict.fromkeys(run["client"] for run in runs):
            own = [run for run in runs if (run["load"], run["client"]) == (load, kind)]
            cpu_s = [1000 * run["cpu_s"] / run["calls"] for run in own]
            rows[kind] = {
                "cpu_s_per_1000": round(statistics.median(cpu_s), 4),
                "cpu_s_per_1000_min": round(min(cpu_s), 4),
                "cpu_s_per_1000_max": round(max(cpu_s), 4),
                "calls_per_s": round(
                    statistics.median(run["calls"] / run["wall_s"] for run in own)
                ),
                "peak_rss_mb": round(statistics.median(run["peak_rss_mb"] for run in own), 1),
            }
    return summary


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=10_000)
    parser.add_argument("--results", type=Path, default=record.RESULTS)
    args = parser.parse_args()
    settings = {"rounds": args.rounds, "calls": args.calls, "loads": LOADS, "server": "redline sim"}
    result = record.Record("transports", settings, {"sim": 0})
    peer = record.peer_python("transports", "pyreqwest", "aiohttp", "uvloop")
    found = record.peer_versions(peer, "pyreqwest", "aiohttp", "uvloop")
    result.versions.update({f"peer {name}": version for name, version in found.items()})
    result.versions.update(record.own_versions("httptools", "uvloop"))
    pythons = {"direct": sys.executable, "bare": str(peer), "pyreqwest": str(peer)}
    runs: list[dict[str, Any]] = []
    for load, (in_flight, latency_s) in LOADS.items():
        with record.serving(record.sim("--latency", str(latency_s))) as server:
            for number in range(args.rounds):
                turn = number % len(CLIENTS)
                for kind in CLIENTS[turn:] + CLIENTS[:turn]:
                    run = measure(kind, pythons[kind], server.url, args.calls, in_flight)
                    runs.append({"load": load, "round": number + 1, **run})
                    print(f"{load}, round {number + 1}: {kind:10} {run['cpu_s']:7.3f} CPU s",
                          flush=True)  # fmt: skip
    summary = summarize(runs)
    path = result.write(args.results, summary, runs)
    for load, rows in summary.items():
        print(f"\n{load}\n{'client':12}{'CPU s/1,000':>12}{'calls/s':>10}{'peak MB':>9}")
        for kind, row in rows.items():
            print(
                f"{kind:12}{row['cpu_s_per_1000']:12.4f}{row['calls_per_s']:10,}"
                f"{row['peak_rss_mb']:9,}"
            )
    print(f"written: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
