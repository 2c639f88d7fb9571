"""Microseconds of CPU that one call costs, by stage of its way through `redline run`.

    python bench/stages.py [--rows 20000] [--rounds 3] [--results DIR]

The run is sampled: after every millisecond of CPU time, a signal records the part of redline that
is running, by the innermost frame that belongs to a stage. So C code counts for the stage that
called it, and the event loop's own work, with its system calls for sockets, counts as "event loop".
The shares of the samples are applied to the process's whole CPU time, measured in a run without
sampling. The start occurs once and is given separately.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import record

LOADS = {"64 in flight, 0 ms": (64, 0.0), "1,000 in flight, 200 ms": (1000, 0.2)}
SAMPLE_S = 0.001
# The first prefix that a frame's module has decides; the longer ones come first.
STAGES = (
    ("redline/sources/", "reading rows"),
    ("redline/job/work/feed", "reading rows"),
    ("redline/journal/identity", "reading rows"),
    ("redline/job/work/template", "rendering"),
    ("redline/job/show/progress", "progress"),
    ("redline/job/work/tally", "progress"),
    ("redline/waist/counters", "progress"),
    ("redline/events", "progress"),
    ("redline/journal/", "journal"),
    ("redline/job/", "workers"),
    ("redline/limits/", "limits"),
    ("redline/calls/client/retry", "retry"),
    ("redline/calls/wire/", "transport"),
    ("redline/apis/", "reading answers"),
    ("redline/calls/http/limits", "limits"),
    ("redline/calls/", "calls"),
    ("redline/waist/", "calls"),
    ("asyncio/", "event loop"),
)
START_UP, LOOP = "start-up", "event loop"
_FIRST = "redline/job/work/runner.py"

Shares = dict[str, float]


class Sampler:
    """Counts in which stage the process spends its CPU time."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._stages: dict[str, str | None] = {}
        self._has_begun = False

    def start(self) -> None:
        signal.signal(signal.SIGPROF, self._sample)
        signal.setitimer(signal.ITIMER_PROF, SAMPLE_S, SAMPLE_S)

    def stop(self) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)

    def _sample(self, number: int, frame: FrameType | None) -> None:
        found = None
        while frame is not None:
            path = frame.f_code.co_filename
            if found is None:
                found = self._stage(path)
            if not self._has_begun and path.endswith(_FIRST):
                self._has_begun = True
            frame = frame.f_back
        self.counts[(found or LOOP) if self._has_begun else START_UP] += 1

    def _stage(self, path: str) -> str | None:
        if path not in self._stages:
            names = (name for part, name in STAGES if f"/{part}" in path)
            self._stages[path] = next(names, None)
        return self._stages[path]


def child(report: Path, words: Sequence[str], *, is_sampled: bool) -> int:
    """`redline run` in this process; its CPU time and samples go to `report`."""
    sampler = Sampler()
    if is_sampled:
        sampler.start()
    # What a fresh interpreter imports is part of what a run costs.
    from redline.cli import main

    status = 0
    try:
        main(list(words))
    except SystemExit as end:
        status = int(end.code or 0)
    finally:
        sampler.stop()
    report.write_text(json.dumps({"cpu_s": time.process_time(), "samples": sampler.counts}))
    return status


def measure(folder: Path, rows: Path, url: str, in_flight: int, *, is_sampled: bool) -> Any:
    """The figures of one run in a process of its own."""
    report = folder / "profile.json"
    for old in folder.glob("out*"):
        with contextlib.suppress(IsADirectoryError):
            old.unlink()
    output = folder / f"out-{time.monotonic_ns()}.jsonl"
    words = ["run", str(rows), "-o", str(output), "--base-url", url, "--model", "sim"]
    words += ["-c", str(in_flight), "--requests", "60m/60s"]
    flags = ["--sampled"] if is_sampled else []
    command = [sys.executable, __file__, "--child", str(report), *flags, "--", *words]
    record.run_client(command, folder, on_terminal=True)
    return json.loads(report.read_text())


def summarize(plain: Sequence[Any], sampled: Sequence[Any], rows: int) -> dict[str, float]:
    """Microseconds a call by stage, medians; start-up in seconds."""
    cpu_s = statistics.median(run["cpu_s"] for run in plain)
    shares: dict[str, list[float]] = {}
    for run in sampled:
        whole = sum(run["samples"].values())
        for stage in {name for one in sampled for name in one["samples"]}:
            shares.setdefault(stage, []).append(run["samples"].get(stage, 0) / whole)
    found = {stage: statistics.median(own) * cpu_s for stage, own in shares.items()}
    start_s = found.pop(START_UP, 0.0)
    stages = {stage: round(1e6 * own_s / rows, 1) for stage, own_s in found.items()}
    ordered = dict(sorted(stages.items(), key=lambda item: -item[1]))
    total = round(1e6 * (cpu_s - start_s) / rows, 1)
    return {**ordered, "all stages": total, "start-up, s": round(start_s, 3)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--results", type=Path, default=record.RESULTS)
    args = parser.parse_args()
    settings = {"rows": args.rows, "rounds": args.rounds, "sample_s": SAMPLE_S, "loads": LOADS}
    result = record.Record("profile", settings)
    result.versions.update(record.own_versions("httptools", "uvloop", "msgspec"))
    summary: dict[str, Any] = {}
    raw: dict[str, Any] = {}
    for load, (in_flight, latency_s) in LOADS.items():
        with (
            record.scratch() as folder,
            record.serving(record.sim("--latency", str(latency_s))) as server,
        ):
            rows = folder / "rows.jsonl"
            record.write_rows(rows, args.rows)
            runs: dict[bool, list[Any]] = {False: [], True: []}
            for _ in range(args.rounds):
                for is_sampled in (False, True):
                    run = measure(folder, rows, server.url, in_flight, is_sampled=is_sampled)
                    runs[is_sampled].append(run)
        summary[load] = summarize(runs[False], runs[True], args.rows)
        raw[load] = {"plain": runs[False], "sampled": runs[True]}
        print(f"\n{load}: microseconds of CPU a call")
        for stage, value in summary[load].items():
            print(f"  {stage:18}{value:10.1f}" if value > 1 else f"  {stage:18}{value:10.3f}")
    path = result.write(args.results, summary, raw)
    print(f"written: {path}")
    return 0


if __name__ == "__main__":
    if "--child" in sys.argv:
        at = sys.argv.index("--child")
        end = sys.argv.index("--")
        sys.exit(
            child(
                Path(sys.argv[at + 1]),
                sys.argv[end + 1 :],
                is_sampled="--sampled" in sys.argv[at:end],
            )
        )
    sys.exit(main())
