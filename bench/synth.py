"""How close `redline synth` comes to the time that its calls alone take, and what it delivers.

    python bench/synth.py [--count 1000] [--in-flight 20] [--latency 0.8] [--share 0.1]

A `redline sim` with a constant latency writes stories in three runs: one without repetitions; one
in which a tenth of the stories are earlier ones with three words changed; and the latter with a
kill -9 half-way, followed by the same command. The ideal duration of a run is its number of
requests divided by those in flight, times the latency; a run that replaces texts has more requests.
The start is the time from the start of the process to the arrival of its first request, summed over
both processes of the killed run. All pairs of stories are compared by the Jaccard index of their
runs of three words. Exits with status 1 if the first run takes over 3 % more than its ideal and
start, or if a run delivers another number of texts, or two that are alike.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import subprocess
import sys
import time
import urllib.request
from itertools import combinations
from pathlib import Path
from typing import Any

import record

MOST_OVER = 0.03
SIMILARITY = 0.8
TOPICS = "dragons,rain,a lost letter,the last train,a quiet neighbour"


def command(url: str, args: argparse.Namespace) -> list[str]:
    flags = f"-c {args.in_flight} --model m --base-url {url} -o stories.jsonl --quiet"
    what = ["--prompt", "Write a story about {{ topic }}.", "--vary", f"topic={TOPICS}"]
    return [*record.REDLINE, "synth", "--count", str(args.count), *what, *flags.split()]


def arrivals_s(server: record.Server) -> list[float]:
    """When each request so far arrived, monotonic, in order."""
    url = server.url.removesuffix("/v1") + "/sim/requests?limit=100000"
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=10) as reply:
        return sorted(each["arrival_s"] for each in json.load(reply)["requests"])


def killed_half_way(argv: list[str], folder: Path, count: int) -> tuple[float, float]:
    """Starts a run and kills it -9 when half of its lines are there; its start and its end."""
    results = folder / "stories.jsonl"
    started_s = time.monotonic()
    process = subprocess.Popen(
        argv,
        cwd=folder,
        env=record.clean_environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while process.poll() is None and time.monotonic() - started_s < record.LONGEST_S:
        if results.exists() and results.read_bytes().count(b"\n") >= count // 2:
            break
        time.sleep(0.01)
    if process.poll() is not None:
        raise RuntimeError("the run ended before it could be killed")
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    return started_s, time.monotonic()


def most_similar(texts: list[str]) -> float:
    """The highest Jaccard index of any two texts."""
    runs = []
    for text in texts:
        words = text.lower().replace(".", "").split()
        runs.append({tuple(words[at : at + 3]) for at in range(len(words) - 2)})
    return max(len(one & other) / len(one | other) for one, other in combinations(runs, 2))


def measure(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """The figures of one run."""
    share = 0.0 if name == "plain" else args.share
    flags = ("--stories", "--near-duplicates", str(share), "--latency", str(args.latency))
    with record.scratch() as folder, record.serving(record.sim(*flags)) as server:
        argv = command(server.url, args)
        wall_s = start_s = 0.0
        if name == "killed":
            started_s, ended_s = killed_half_way(argv, folder, args.count)
            wall_s += ended_s - started_s
            start_s += arrivals_s(server)[0] - started_s
        done = record.run_client(argv, folder)
        wall_s += done.wall_s
        arrived_s = arrivals_s(server)
        start_s += min(each for each in arrived_s if each >= done.started_s) - done.started_s
        lines = [json.loads(line) for line in (folder / "stories.jsonl").open()]
    ideal_s = math.ceil(len(arrived_s) / args.in_flight) * args.latency
    return {
        "run": name,
        "wall_s": round(wall_s, 3),
        "start_up_s": round(start_s, 3),
        "ideal_s": round(ideal_s, 3),
        "over": round((wall_s - start_s) / ideal_s - 1, 4),
        "cpu_s": round(done.cpu_s, 3),
        "peak_rss_mb": round(done.peak_rss_mb, 1),
        "requests": len(arrived_s),
        "dropped": sum(len(line.get("dropped", ())) for line in lines),
        "texts": len({line["row"] for line in lines}),
        "lines": len(lines),
        "most_similar": round(most_similar([line["output"] for line in lines]), 4),
        "said": done.stdout.splitlines()[-1],
    }


def is_right(run: dict[str, Any], count: int) -> bool:
    is_whole = run["texts"] == run["lines"] == count
    is_told = run["said"] == f"delivered: {count}/{count}"
    return is_whole and is_told and run["most_similar"] < SIMILARITY


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--in-flight", type=int, default=20)
    parser.add_argument("--latency", type=float, default=0.8)
    parser.add_argument("--share", type=float, default=0.1)
    parser.add_argument("--results", type=Path, default=record.RESULTS)
    args = parser.parse_args()
    settings = {name: value for name, value in vars(args).items() if name != "results"}
    bars = {"most_over": MOST_OVER, "similarity": SIMILARITY}
    result = record.Record("synth", settings | bars, {"sim": 0, "first_seed": 0})
    result.versions.update(record.own_versions("datasketch", "numpy", "uvloop", "msgspec"))
    runs = []
    for name in ("plain", "repeated", "killed"):
        run = measure(name, args)
        runs.append(run)
        print(
            f"{name}: {run['wall_s']:.2f} s, of it {run['start_up_s']:.2f} s start-up; ideal "
            f"{run['ideal_s']:.2f} s for {run['requests']:,} requests, {run['over']:+.2%}; "
            f"{run['texts']:,} texts, {run['dropped']:,} dropped, the two most alike "
            f"{run['most_similar']:.3f}; {run['said']}",
            flush=True,
        )
    summary = {run["run"]: {key: run[key] for key in run if key != "run"} for run in runs}
    print(f"written: {result.write(args.results, summary, runs)}")
    is_fast = runs[0]["over"] <= MOST_OVER
    return 0 if is_fast and all(is_right(run, args.count) for run in runs) else 1


if __name__ == "__main__":
    sys.exit(main())
