"""The cost of durability: the same run with the journal and without it, against one server.

    python bench/journal.py [--pairs 10]

Measures CPU time per row, and rows per second of wall time, for rows with prompts of 1 KB. With the
journal, each result is written, synced in groups and acknowledged; without it, outcomes are dropped
at the point where the journal would take them. Each pair runs the same rows both ways, alternately,
like bench/versions.py: the cost of a run of fewer rows is subtracted, to leave out the start. At 64
in flight, which has the bar, a pair is the median of several runs, because the journal costs less
than the difference between two runs. The result is the cost of the journal in CPU time per row: the
median, and the upper end of a one-sided 95 % interval for the mean. One more run with the journal
counts its calls of `os.write` and `os.fsync`. Ten pairs take about 8 minutes if the cores are idle.
Exits with status 1 if, at 64 in flight and 0 ms, the bound is above 20 us per row, or if there are
more than 0.3 writes per row.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import record
from versions import InFlight, compare, upper_bound

LOADS = {
    "64 in flight, 0 ms": InFlight(64, 0.0, 16_000, 2_000, 7),
    "1,000 in flight, 200 ms": InFlight(1_000, 0.2, 12_000, 4_000, 1),
}
# Without latency, when nothing else hides what the journal costs.
MOST_US, MOST_WRITES = 20.0, 0.3


class Dropped:
    """Takes results in place of the journal, and keeps nothing of them."""

    failure = None

    def __init__(self) -> None:
        from redline.process import Changes

        self.changes = Changes()

    def append(self, _: object) -> None:
        """Drops it."""


def child(kind: str, url: str, in_flight: int, rows: str) -> int:
    """One run in this process; 0 if every row succeeded. kind: on, off, or counted."""
    import uvloop

    from redline import _start
    from redline.job import Parts, execute
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
    # As the command does.
    gc.freeze()
    _start.collect_rarely()
    parts = Parts(results=Dropped()) if kind == "off" else Parts()
    report = uvloop.run(execute(make_job(rows, options, os.environ), parts))
    print(json.dumps(calls))
    return 0 if report.is_complete and not report.failed else 1


def counting(call: Callable[..., Any], name: str, calls: Counter[str]) -> Callable[..., Any]:
    """The call, which counts itself in `calls`."""

    def counted(*args: Any) -> Any:
        calls[name] += 1
        return call(*args)

    return counted


class Runs:
    """Runs of a kind against a server. Of those with `many` rows it keeps speed and bytes."""

    def __init__(self, kind: str, url: str, counts: InFlight) -> None:
        self.kind = kind
        self.rows_per_s = list[float]()
        self.bytes_written = 0
        self._words = [sys.executable, __file__, "--child", kind, url, str(counts.count)]
        self._many = counts.many

    def cpu_s(self, rows: Path) -> float:
        """CPU seconds of one run over `rows`."""
        return self.run(rows).cpu_s

    def run(self, rows: Path) -> record.Finished:
        """One run over `rows`, in a folder of its own."""
        with record.scratch() as folder:
            done = record.run_client([*self._words, str(rows)], folder)
            if rows.stem == str(self._many):
                self.rows_per_s.append(round(self._many / done.wall_s, 1))
                if self.kind != "off":
                    self.bytes_written = (folder / "out.jsonl").stat().st_size
        return done


def summarize(
    pairs: list[list[float]], off: Runs, on: Runs, calls: dict[str, int], many: int
) -> dict[str, Any]:
    """Medians with and without, and what the journal costs. calls: of one more run."""
    cpu_off, cpu_on = (statistics.median(costs) for costs in zip(*pairs, strict=True))
    speed_off, speed_on = (statistics.median(runs.rows_per_s) for runs in (off, on))
    ratios = [with_it / without for without, with_it in pairs]
    ratio = statistics.median(ratios)
    return {
        "rows_per_s_on": round(speed_on),
        "rows_per_s_off": round(speed_off),
        "lost": round(1 - speed_on / speed_off, 3),
        "cpu_s_per_1000_on": round(cpu_on, 4),
        "cpu_s_per_1000_off": round(cpu_off, 4),
        "us_a_row": round(1000 * cpu_off * (ratio - 1), 1),
        "us_bound": round(1000 * cpu_off * (upper_bound(ratios) - 1), 1),
        "share": round(1 - 1 / ratio, 3),
        "bytes_a_row": round(on.bytes_written / many),
        "writes_a_row": round(calls["write"] / many, 3),
        "calls": calls,
    }


def measure(counts: InFlight, count_of_pairs: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """The summary and the raw figures under a load."""
    with (
        record.scratch() as folder,
        record.serving(record.sim("--latency", str(counts.latency_s))) as server,
    ):
        rows = [folder / f"{count}.jsonl" for count in (counts.many, counts.few)]
        for path in rows:
            record.write_rows(path, int(path.stem))
        off, on, counted = (Runs(kind, server.url, counts) for kind in ("off", "on", "counted"))
        pairs = compare([off, on], rows, counts, count_of_pairs)
        calls = json.loads(counted.run(rows[0]).stdout)
    raw = {"pairs": pairs, "rows_per_s": {"off": off.rows_per_s, "on": on.rows_per_s}}
    return summarize(pairs, off, on, calls, counts.many), raw


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--results", type=Path, default=record.RESULTS)
    args = parser.parse_args()
    settings = {"pairs": args.pairs, "most_us_a_row": MOST_US, "most_writes_a_row": MOST_WRITES}
    settings |= {name: counts._asdict() for name, counts in LOADS.items()}
    result = record.Record("journal", settings, {"sim": 0})
    result.versions.update(record.own_versions("httptools", "uvloop", "msgspec"))
    summary, raw = dict[str, Any](), dict[str, Any]()
    for load, counts in LOADS.items():
        summary[load], raw[load] = measure(counts, args.pairs)
        row = summary[load]
        print(
            f"{load}: {row['rows_per_s_on']:,} rows/s with the journal, {row['rows_per_s_off']:,} "
            f"without: {row['lost']:.1%} lost; the journal takes {row['us_a_row']:.1f} of "
            f"{1000 * row['cpu_s_per_1000_on']:.1f} us of CPU a row, {row['share']:.1%}, upper "
            f"95 % bound {row['us_bound']:.1f} us of {args.pairs} pairs; {row['bytes_a_row']:,} "
            f"bytes and {row['writes_a_row']} writes a row, {row['calls']['fsync']:,} fsyncs",
            flush=True,
        )
    print(f"written: {result.write(args.results, summary, raw)}")
    first = next(iter(summary.values()))
    is_cheap = first["us_bound"] <= MOST_US and first["writes_a_row"] <= MOST_WRITES
    verdict = "kept" if is_cheap else "missed"
    print(f"the bar of {MOST_US:g} us and {MOST_WRITES:g} writes a row is {verdict}")
    return 0 if is_cheap else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        sys.exit(child(sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5]))
    sys.exit(main())
