"""Does redline predict the effect of another setting?

    python bench/predict.py [NAME ...] [--seconds 4]

Thirty jobs run against servers of a known law (bench/law_server.py): some seconds with each of
about three settings, then with another one. When that last run begins, the timeline of its job
predicts its rate. The real rate is measured at the server, by the answers that it gave.

Exits with status 1 unless at least 27 gains are within their intervals, half of the intervals are
at most 30 % of the predicted rate wide and nine of ten at most 60 %, and fewer than 6 predictions
are unknown. The predictions must also be closer than those of proportionality to the calls in
flight, the limits or the endpoints, and than those on the line through the rates that were seen
with other numbers of calls in flight.
"""

from __future__ import annotations

import argparse
import json
import math
import shlex
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import record

from redline.timeline import NAME, read_timeline

SERVER = Path(__file__).with_name("law_server.py")
LEAST_RIGHT, MOST_UNKNOWN = 27, 5
MOST_WIDE_HALF, MOST_WIDE_NINE = 0.30, 0.60
ROWS = 200_000
LEAST_ON_LINE = 0.1
# Of a run, before it is steady; of its answers at the server, before it is ended.
SETTLING_S, ENDING_S = 1.2, 0.2


@dataclass(frozen=True)
class Case:
    """law: and its numbers. seen: flags of the earlier runs; to: of the predicted one.

    factor: what one would expect in proportion. servers: of the predicted run. levels: calls in
    flight of each of the runs, the predicted one last; none if something else changes.
    """

    name: str
    law: str
    seen: tuple[str, ...]
    to: str
    factor: float
    servers: int = 1
    levels: tuple[int, ...] = ()

    def on_line(self, rates: Sequence[float]) -> float:
        """The gain on the least-squares line through the rates of the earlier runs.

        In proportion if the runs differ in something else than calls in flight. At least
        LEAST_ON_LINE, for a line that falls may come to nothing or less.
        """
        if not self.levels:
            return self.factor
        *levels, to = self.levels
        slope, start = statistics.linear_regression(levels, rates)
        return max(LEAST_ON_LINE, (start + slope * to) / rates[-1])


def slots(name: str, law: str, seen: tuple[int, ...], to: int) -> Case:
    """Another number of calls in flight."""
    flags = tuple(f"-c {n}" for n in seen)
    return Case(name, law, flags, f"-c {to}", to / seen[-1], levels=(*seen, to))


CASES = (
    # In proportion.
    slots("steady", "steady 0.2", (4, 8, 16), 32),
    slots("steady, few calls", "steady 0.1", (2, 3, 5), 10),
    slots("steady, half as many more", "steady 0.2", (8, 16, 32), 48),
    slots("long tail", "tail -2 0.8", (8, 16, 32), 64),
    slots("fewer calls", "steady 0.2", (32, 16, 24), 8),
    # A cap that shows.
    slots("12 servers", "servers 12 0.2", (8, 16, 32), 64),
    slots("24 servers", "servers 24 0.2", (8, 16, 32), 64),
    slots("10 servers", "servers 10 0.2", (4, 8, 16), 32),
    slots("14 servers of random times", "random 14 0.15", (8, 16, 24), 48),
    # A cap behind what was seen.
    slots("28 servers, 16 seen", "servers 28 0.2", (4, 8, 16), 32),
    # Full from the beginning.
    slots("4 servers", "servers 4 0.1", (8, 16, 32), 64),
    slots("6 servers", "servers 6 0.15", (8, 12, 18), 36),
    slots("3 servers of random times", "random 3 0.06", (6, 12, 24), 48),
    # Of other kinds.
    slots("shared", "shared 0.1 0.01", (4, 8, 16), 32),
    slots("shared, little", "shared 0.15 0.003", (8, 16, 32), 64),
    slots("batches", "batches 0.08 0.004", (4, 8, 16), 32),
    slots("crowded", "crowded 12 0.1 0.004", (8, 16, 32), 64),
    slots("two tiers", "tiers 8 0.1 0.3", (4, 8, 16), 32),
    slots("far away", "far 10 0.1 0.1", (4, 8, 16, 32), 64),
    # Rate limits.
    Case("limit binds", "steady 0.2", ("-c 4", "-c 6", "-c 64 --rps 40"), "-c 64 --rps 80", 2.0),
    Case("limit, then calls", "steady 0.2", ("-c 4", "-c 8", "-c 16 --rps 60"),
         "-c 16 --rps 120", 2.0),
    Case("limit, then servers", "servers 12 0.2", ("-c 4", "-c 8", "-c 64 --rps 50"),
         "-c 64 --rps 100", 2.0),
    Case("limit, more calls", "steady 0.2", ("-c 4", "-c 6", "-c 32 --rps 40"),
         "-c 64 --rps 40", 2.0),
    Case("limit that does not bind", "servers 12 0.2", ("-c 4", "-c 8", "-c 32 --rps 200"),
         "-c 32 --rps 400", 2.0),
    Case("one of two limits", "steady 0.2",
         ("-c 4", "-c 6", "-c 64 --rps 40 --tokens 15200/1s"), "-c 64 --rps 80 --tokens 15200/1s",
         2.0),
    Case("a lower limit", "steady 0.2", ("-c 4", "-c 8", "-c 64 --rps 60"), "-c 64 --rps 30", 0.5),
    # Endpoints.
    Case("another server", "servers 12 0.2", ("-c 8", "-c 16", "-c 32"), "-c 32", 2.0, 2),
    Case("another server, limits", "steady 0.2", ("-c 4", "-c 6", "-c 64 --rps 40"),
         "-c 64 --rps 40", 2.0, 2),
    Case("another server, no need", "steady 0.2", ("-c 4", "-c 8", "-c 16"), "-c 16", 2.0, 2),
    Case("another server, batches", "batches 0.1 0.01", ("-c 4", "-c 8", "-c 16"), "-c 16", 2.0, 2),
)  # fmt: skip


@dataclass(frozen=True)
class Result:
    """Gains are rates of answers, of that before; 0 in `low` to `high` for what is unknown."""

    name: str
    low: float
    likely: float
    high: float
    measured: float
    in_proportion: float
    on_line: float
    unknown: str

    @property
    def is_right(self) -> bool:
        return not self.unknown and self.low <= self.measured <= self.high

    @property
    def width(self) -> float:
        """Of the interval, of the predicted rate."""
        return math.inf if self.unknown else (self.high - self.low) / self.likely


def run_for(seconds: float, flags: str, urls: list[str], folder: Path) -> float:
    """Answers a second that the servers gave to a run of the job, once it was steady."""
    where = [word for url in urls for word in ("--endpoint", url)]
    command = [*record.REDLINE, "run", "rows.jsonl", *where, "--model", "m", "-q", "-o",
               "out.jsonl", *shlex.split(flags)]  # fmt: skip
    before = time.monotonic()
    with subprocess.Popen(
        command,
        cwd=folder,
        env=record.clean_environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            while not (begun := [at for at in answered(urls) if at > before]):
                if time.monotonic() > before + 60 or process.poll() is not None:
                    raise RuntimeError(f"no answer: {shlex.join(command)}")
                time.sleep(0.05)
            time.sleep(max(0.0, begun[0] + SETTLING_S + seconds - time.monotonic()))
            ended = time.monotonic()
            process.send_signal(signal.SIGINT)
            process.wait(30)
        finally:
            process.kill()
    stamps = [at for at in answered(urls) if begun[0] + SETTLING_S <= at <= ended - ENDING_S]
    return (len(stamps) - 1) / (stamps[-1] - stamps[0])


def answered(urls: list[str]) -> list[float]:
    found: list[float] = []
    for url in urls:
        with urlopen(f"{url}/answered", timeout=30) as reply:
            found += json.load(reply)
    return sorted(found)


def played(case: Case, seconds: float) -> Result:
    """What was predicted of its last run, and what came of it."""
    with record.scratch() as folder, ExitStack() as stack:
        command = (sys.executable, str(SERVER), *case.law.split())
        urls = [stack.enter_context(record.serving(command)).url for _ in range(case.servers)]
        row = json.dumps({"prompt": "Sort this."}) + "\n"
        (folder / "rows.jsonl").write_text(row * ROWS)
        rates = [run_for(seconds, flags, urls[:1], folder) for flags in case.seen]
        after = run_for(seconds, case.to, urls, folder)
        prediction = read_timeline(folder / "out.redline" / NAME).runs[-1].prediction
    if prediction is None:
        raise RuntimeError(f"{case.name}: nothing was predicted")
    before = prediction.before_per_s or math.inf
    return Result(
        name=case.name,
        low=prediction.low_per_s / before,
        likely=prediction.likely_per_s / before,
        high=prediction.high_per_s / before,
        measured=after / rates[-1],
        in_proportion=case.factor,
        on_line=case.on_line(rates),
        unknown=prediction.unknown,
    )


def summarize(results: list[Result]) -> dict[str, Any]:
    """Counts, widths, and how far off predictions and proportions are, in the logarithm."""
    known = [one for one in results if not one.unknown]
    widths = sorted(one.width for one in known)

    def off(guess: str) -> float:
        return statistics.fmean(abs(math.log(getattr(one, guess) / one.measured)) for one in known)

    return {
        "predictions": len(results),
        "right": sum(one.is_right for one in results),
        "unknown": len(results) - len(known),
        "without_gain": sum(one.measured < 1.05 for one in results),
        "width_median": round(statistics.median(widths), 3),
        "width_p90": round(widths[math.ceil(0.9 * len(widths)) - 1], 3),
        "mean_error": round(off("likely"), 3),
        "mean_error_in_proportion": round(off("in_proportion"), 3),
        "mean_error_on_line": round(off("on_line"), 3),
    }


def main() -> int:
    """The exit status: 0 if the predictions are good enough."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--results", type=Path, default=record.RESULTS)
    given = parser.parse_args()
    cases = [case for case in CASES if not given.names or case.name in given.names]
    kept = record.Record("predict", {"seconds": given.seconds, "cases": [*map(asdict, cases)]}, {})
    results: list[Result] = []
    for case in cases:
        one = played(case, given.seconds)
        results.append(one)
        said = f"unknown: {one.unknown}" if one.unknown else f"{one.low:.2f} to {one.high:.2f}"
        verdict = "right" if one.is_right else "wrong"
        print(f"{one.name:28} {said:16} measured {one.measured:.2f}  {verdict}", flush=True)
    summary = summarize(results)
    print(json.dumps(summary))
    if not given.names:
        print(f"written: {kept.write(given.results, summary, [*map(asdict, results)])}")
    is_good = (
        summary["right"] >= LEAST_RIGHT
        and summary["unknown"] <= MOST_UNKNOWN
        and summary["width_median"] <= MOST_WIDE_HALF
        and summary["width_p90"] <= MOST_WIDE_NINE
        and summary["mean_error"] < summary["mean_error_in_proportion"]
        and summary["mean_error"] < summary["mean_error_on_line"]
    )
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
