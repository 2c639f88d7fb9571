"""10,000 connections at once: the cost of each, and whether any is left open.

    python bench/connections.py [--connections 10000] [--rows 20000] [--latency 20]

Runs `redline.run` against a `redline sim` in another process, whose answers take `latency` seconds,
so that all connections are needed at once. A run of a few calls comes first, to create what every
run creates. The client's memory and open files are read ten times a second (proc(5)), and by the
client itself before and after the run. Exits with status 1 if a row is missing, if the calls in
flight were more or fewer than requested, or if files remain open. The server may count somewhat
fewer calls at once, since some written requests are still in its sockets.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import memory
import record

import redline

EVERY_S = 0.1
WARM_UP_ROWS = 100
LATENCY_S = 20.0

Figures = dict[str, Any]


def open_files(pid: int | str = "self") -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def child(url: str, folder: Path, connections: int) -> None:
    """Both runs in this process; what it found goes to stdout."""

    def run(name: str, concurrency: int) -> redline.Report:
        return redline.run(
            folder / f"{name}.jsonl",
            endpoint=url,
            model="sim",
            concurrency=concurrency,
            output=folder / f"{name}.out.jsonl",
            progress=False,
        )

    run("few", WARM_UP_ROWS)
    # The peak begins again (proc(5), clear_refs).
    Path("/proc/self/clear_refs").write_text("5")
    before: Figures = {"rss_mb": memory.resident_mb(os.getpid()), "files": open_files()}
    begun_s = time.monotonic()
    cpu_s = time.process_time()
    report = run("rows", connections)
    found = {
        "begun_s": begun_s,
        "wall_s": round(time.monotonic() - begun_s, 2),
        "cpu_s": round(time.process_time() - cpu_s, 2),
        "succeeded": report.succeeded,
        "offered": report.offered,
        "retries": report.retries,
        "most_in_flight": report.most_in_flight,
        "before": before,
        "after": {"files": open_files()},
    }
    json.dump(found, sys.stdout)


def watched(command: list[str], folder: Path) -> tuple[Figures, list[Figures]]:
    """What the client found, and the samples of its memory and open files. at_s is monotonic."""
    samples: list[Figures] = []
    with (folder / "stderr").open("wb") as stderr, (folder / "stdout").open("wb") as stdout:
        process = subprocess.Popen(
            command, cwd=folder, env=record.clean_environment(), stdout=stdout, stderr=stderr
        )
        try:
            while process.poll() is None:
                try:
                    files, memory_mb = open_files(process.pid), memory.resident_mb(process.pid)
                except OSError:
                    break
                if memory_mb is not None:
                    sample = {"at_s": time.monotonic(), "rss_mb": memory_mb, "files": files}
                    samples.append(sample)
                time.sleep(EVERY_S)
        finally:
            if process.wait(record.LONGEST_S) != 0:
                raise RuntimeError((folder / "stderr").read_text()[-4000:])
    found: Figures = json.loads((folder / "stdout").read_text())
    own = [sample for sample in samples if sample["at_s"] >= found["begun_s"]]
    for sample in own:
        sample["at_s"] = round(sample["at_s"] - found["begun_s"], 2)
        sample["rss_mb"] = round(sample["rss_mb"], 2)
    return found, own


def seen_by_server(url: str) -> Figures:
    with urllib.request.urlopen(f"{url.removesuffix('/v1')}/sim/stats", timeout=30) as answer:
        stats: Figures = json.load(answer)
    return {name: stats[name] for name in ("received", "answered", "most_in_flight")}


def summarize(found: Figures, samples: list[Figures], connections: int) -> Figures:
    before = found["before"]
    peak_mb = max(sample["rss_mb"] for sample in samples)
    standing = [sample for sample in samples if sample["files"] >= before["files"] + connections]
    return {
        "succeeded": found["succeeded"],
        "most_in_flight": found["most_in_flight"],
        "all_connected_s": standing[0]["at_s"] if standing else None,
        "wall_s": found["wall_s"],
        "cpu_s_per_1000_rows": round(1000 * found["cpu_s"] / found["succeeded"], 3),
        "rss_mb_before": round(before["rss_mb"], 1),
        "peak_mb": round(peak_mb, 1),
        "kb_per_connection": round((peak_mb - before["rss_mb"]) * 1024 / connections, 1),
        "most_files": max(sample["files"] for sample in samples),
        "files_before": before["files"],
        "files_after": found["after"]["files"],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--latency", type=float, default=LATENCY_S)
    parser.add_argument("--results", type=Path, default=record.RESULTS)
    parser.add_argument("--child", nargs=2, metavar=("URL", "FOLDER"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(args.child[0], Path(args.child[1]), args.connections)
        return 0
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    settings = {
        "connections": args.connections,
        "rows": args.rows,
        "latency_s": args.latency,
        "every_s": EVERY_S,
        "open_files_allowed": None if hard == resource.RLIM_INFINITY else hard,
    }
    result = record.Record("connections", settings, {"sim": 0})
    result.versions.update(record.own_versions("httptools", "uvloop", "msgspec"))
    server_command = record.sim("--latency", str(args.latency))
    with record.scratch() as folder, record.serving(server_command) as server:
        record.write_rows(folder / "few.jsonl", WARM_UP_ROWS, 200)
        record.write_rows(folder / "rows.jsonl", args.rows, 200)
        words = [__file__, "--connections", str(args.connections)]
        found, samples = watched(
            [sys.executable, *words, "--child", server.url, str(folder)], folder
        )
        seen = seen_by_server(server.url)
    summary = summarize(found, samples, args.connections)
    path = result.write(
        args.results, summary, {"client": found, "server": seen, "samples": samples}
    )
    for name, value in summary.items():
        print(f"{name:20} {'never' if value is None else format(value, ','):>10}")
    print(f"written: {path}")
    is_all = found["succeeded"] == args.rows == seen["answered"] - WARM_UP_ROWS
    is_full = found["most_in_flight"] == args.connections >= seen["most_in_flight"]
    return 0 if is_all and is_full and summary["files_after"] == summary["files_before"] else 1


if __name__ == "__main__":
    sys.exit(main())
