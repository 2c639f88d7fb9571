"""The work that a row costs, without the noise of a clock.

    python bench/opcodes.py [COMMIT ...] [--top 20]                  bytecodes and Python frames
    python bench/opcodes.py [COMMIT ...] --instructions [--top 20]   machine instructions

Counts the difference between a run of 1,300 rows and one of 300, in all threads, at 16 in flight,
against the provider of record.SIM_COMMIT, without limits and with a limit that never binds. While
bytecodes are counted, redline's clock is slowed down as much as the run, so that work which depends
on time is done about as often per row as in a normal run; the work of timers is not counted. Counts
vary by 1.5 %, because the number of answers in one iteration of the event loop depends on the
machine. So only this checkout is counted --times times; the median is compared with BARS, and all
counts are in the record.

callgrind counts instructions, which takes about ten seconds per run; they are recorded, too. For
the same reason, redline's clock is slowed down as much, and asyncio's sleeps take as much longer.
The cost of the slower clock is included.

COMMIT: `.` is this checkout, and the default. With several commits, --top lists the functions that
differ most between the first and the last. With --most R, exits with status 1 if the last commit
costs more than R times as much as the first under any load; for 4294e90 the bar is 0.65 of its
instructions.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import callgrind
import record
from versions import LOADS, checked_out, write_rows

FEW, MANY = 300, 1_300
# How many times as long a run takes whose opcodes are counted (15 to 21 were measured).
SLOWER = 20
# The same under callgrind (27 was measured).
SLOWER_IN_CALLGRIND = 25
# What timers do, whatever the number of rows: samples ten times a second, and a look at all
# endpoints of a pool once a second. It would be counted that many times too often.
PERIODIC = ("Sampler._sample_on", "Pool._review")
FLAGS = ["--prompt", "Classify: {{ text }}", "--model", "m", "-q", "-o", "out.jsonl"]
IN_FLIGHT = 16
# Opcodes a row that are allowed, and how often they are counted.
BARS = {"no limits": 1_800, "with --rps": 2_300}
TIMES = 5
# Runs the command line, and counts: argv is the file for the counts, then the command's.
COUNT = (
    f"PERIODIC, SLOWER = {PERIODIC}, {SLOWER}"
    + """
import json, sys, threading, time
from collections import Counter
begun_s, real_s, begun_wall_s = time.monotonic(), time.monotonic, time.time()
def slower_s():
    return begun_s + (real_s() - begun_s) / SLOWER
time.monotonic = slower_s
# Both clocks: one that moves against the other is taken for a clock that was set.
time.time = lambda: begun_wall_s + slower_s() - begun_s
ran, frames = Counter(), Counter()
def within(frame, event, _):
    if event == "opcode":
        ran[frame.f_code] += 1
    return within
def apart(frame, event, _):
    return apart
def entered(frame, event, _):
    caller = frame.f_back
    is_apart = frame.f_code is slower_s.__code__ or frame.f_code.co_qualname in PERIODIC
    if is_apart or (caller is not None and caller.f_trace is apart):
        frame.f_trace_lines = False
        return apart
    frame.f_trace_opcodes, frame.f_trace_lines = True, False
    frames[frame.f_code] += 1
    return within
from redline.cli import main
path, sys.argv = sys.argv[1], ["redline", *sys.argv[2:]]
threading.settrace(entered)
sys.settrace(entered)
try:
    main()
except SystemExit as ended:
    status = ended.code
sys.settrace(None)
threading.settrace(None)
counts = Counter()
for code, count in ran.items():
    counts[code.co_qualname] += count
with open(path, "w") as file:
    json.dump({"frames": sum(frames.values()), "units": counts}, file)
sys.exit(status)
"""
)
# Runs the command line, with the clocks of `redline.clock` and longer sleeps.
IN_SLOW_TIME = f"""
import asyncio, time
sleep, real_s, begun_s = asyncio.sleep, time.monotonic, time.monotonic()
wall_s, begun_wall_s = time.time, time.time()
def slower_s(real_s=real_s, begun_s=begun_s):
    return begun_s + (real_s() - begun_s) / {SLOWER_IN_CALLGRIND}
time.monotonic = slower_s
time.time = lambda: begun_wall_s + slower_s() - begun_s
import redline.clock
time.monotonic, time.time = real_s, wall_s
asyncio.sleep = lambda delay_s, *result: sleep({SLOWER_IN_CALLGRIND} * delay_s, *result)
from redline.cli import main
main()
"""


class Cost(NamedTuple):
    """Of one row. units: opcodes or instructions, by function. frames: 0 if not counted."""

    frames: float
    units: dict[str, float]

    @property
    def total(self) -> float:
        return sum(self.units.values())


Counted = Callable[[Sequence[str], Path, dict[str, str]], Cost]


def opcodes(arguments: Sequence[str], folder: Path, environment: dict[str, str]) -> Cost:
    """Of one run of `redline` with these arguments, in `folder`."""
    path = folder / "counts.json"
    run([sys.executable, "-c", COUNT, str(path), *arguments], folder, environment)
    return Cost(**json.loads(path.read_text()))


def instructions(arguments: Sequence[str], folder: Path, environment: dict[str, str]) -> Cost:
    """Of one run of `redline` with these arguments, in `folder`."""
    path = folder / "callgrind.out"
    command = [*callgrind.under(path), sys.executable, "-c", IN_SLOW_TIME, *arguments]
    run(command, folder, environment)
    return Cost(0, callgrind.counts(path))


def run(command: Sequence[str], folder: Path, environment: dict[str, str]) -> None:
    quiet = subprocess.DEVNULL
    subprocess.run(command, cwd=folder, env=environment, check=True, stdout=quiet, stderr=quiet)


def cost(
    source: Path,
    inputs: Path,
    flags: Sequence[str],
    counted: Counted,
    counts: tuple[int, int] = (FEW, MANY),
) -> Cost:
    """Of a row, by the difference of two runs of so many rows.

    inputs: a folder with the rows, and maybe a redline.toml, which holds for the runs.
    """
    # The same hashes make the same collisions in each run.
    environment = os.environ | {"PYTHONPATH": str(source), "PYTHONHASHSEED": "0"}
    found = []
    for rows in counts:
        with tempfile.TemporaryDirectory() as name:
            if (inputs / "redline.toml").exists():
                shutil.copy(inputs / "redline.toml", name)
            arguments = ["run", str(inputs / f"{rows}.jsonl"), *FLAGS, *flags]
            found.append(counted(arguments, Path(name), environment))
    few, many = found
    rows = counts[1] - counts[0]
    names = {*few.units, *many.units}
    units = {name: (many.units.get(name, 0) - few.units.get(name, 0)) / rows for name in names}
    return Cost((many.frames - few.frames) / rows, units)


def compile_all(sources: Sequence[Path]) -> None:
    """Compiles what a run imports, which the first run of a checkout would do otherwise."""
    for source in sources:
        command = [sys.executable, "-m", "compileall", "-q", str(source)]
        subprocess.run(command, check=True)


def differences(first: Cost, last: Cost, most: int) -> list[str]:
    """The functions whose units differ most."""
    changes = Counter(last.units)
    changes.subtract(first.units)
    names = sorted(changes, key=lambda name: -abs(changes[name]))[:most]
    return [
        f"  {changes[name]:+9,.1f}  {first.units.get(name, 0.0):9,.1f} -> "
        f"{last.units.get(name, 0.0):9,.1f}  {name}"
        for name in names
    ]


def measure(commits: Sequence[str], counted: Counted, top: int) -> dict[str, dict[str, Cost]]:
    """The cost of a row by load and commit, printed as it is found."""
    found = dict[str, dict[str, Cost]]()
    with ExitStack() as stack:
        inputs = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for count in (FEW, MANY):
            write_rows(inputs / f"{count}.jsonl", count)
        sources = [
            record.ROOT / "src"
            if commit == "."
            else stack.enter_context(checked_out(commit, inputs / f"commit-{at}"))
            for at, commit in enumerate(commits)
        ]
        compile_all(sources)
        url = stack.enter_context(record.serving(record.sim("--latency", "0"))).url
        unit = counted.__name__
        for load, flags in LOADS.items():
            costs = found[load] = {}
            for commit, source in zip(commits, sources, strict=True):
                given = [*flags, "-c", str(IN_FLIGHT), "--base-url", url]
                own = costs[commit] = cost(source, inputs, given, counted)
                frames = f" and {own.frames:,.0f} frames" if own.frames else ""
                share = own.total / costs[commits[0]].total
                of_first = f", {share:.3f} of {commits[0]}" if len(costs) > 1 else ""
                print(f"{load}, {commit}: {own.total:,.0f} {unit}{frames}{of_first}", flush=True)
            first = costs[commits[0]] if len(costs) > 1 else Cost(0, {})
            for line in differences(first, costs[commits[-1]], top):
                print(line, flush=True)
    return found


def judged(found: Sequence[dict[str, dict[str, Cost]]]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The medians of these counts of the checkout beside their bars, and each count, by load."""
    summary, raw = dict[str, Any](), dict[str, Any]()
    for load, bar in BARS.items():
        costs = [counts[load]["."] for counts in found]
        totals = [round(cost.total, 1) for cost in costs]
        raw[load] = [
            {"opcodes": total, "frames": round(cost.frames, 1)}
            for total, cost in zip(totals, costs, strict=True)
        ]
        median = statistics.median(totals)
        summary[load] = {
            "opcodes": round(median),
            "opcodes_min": round(min(totals)),
            "opcodes_max": round(max(totals)),
            "frames": round(statistics.median(cost.frames for cost in costs)),
            "bar": bar,
            "is_kept": median <= bar,
        }
    return summary, raw


def judge(top: int, times: int, results: Path) -> int:
    """Counts the opcodes of this checkout, and writes the record; 1 if a bar is missed."""
    settings = {"few": FEW, "many": MANY, "in_flight": IN_FLIGHT, "flags": FLAGS, "loads": LOADS}
    settings |= {"times": times, "bars": BARS}
    result = record.Record("opcodes", settings, {"PYTHONHASHSEED": 0})
    # The functions are listed once.
    found = [measure(["."], opcodes, 0 if number else top) for number in range(times)]
    summary, raw = judged(found)
    for load, one in summary.items():
        print(
            f"{load}: {one['opcodes']:,} opcodes, the median of {times} "
            f"({one['opcodes_min']:,} to {one['opcodes_max']:,}; {one['bar']:,} allowed)"
        )
    print(f"written: {result.write(results, summary, raw)}")
    return int(not all(one["is_kept"] for one in summary.values()))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("commits", nargs="*", default=["."])
    parser.add_argument("--instructions", action="store_true", help="of the machine, by callgrind")
    parser.add_argument("--top", type=int, default=0, help="functions to list")
    parser.add_argument("--most", type=float, help="the share of the first that is allowed")
    parser.add_argument("--times", type=int, default=TIMES, help="counts of the checkout's opcodes")
    parser.add_argument("--results", type=Path, default=record.RESULTS)
    given = parser.parse_args()
    commits = list(dict.fromkeys(given.commits))
    if commits == ["."] and not given.instructions:
        return judge(given.top, given.times, given.results)
    if given.instructions and not callgrind.is_installed():
        print(callgrind.INSTALL, file=sys.stderr)
        return 2
    settings: dict[str, Any] = {"commits": commits, "few": FEW, "many": MANY, "flags": FLAGS}
    result = record.Record("instructions", {**settings, "loads": LOADS}, {"PYTHONHASHSEED": 0})
    found = measure(commits, instructions if given.instructions else opcodes, given.top)
    shares = {
        load: costs[commits[-1]].total / costs[commits[0]].total for load, costs in found.items()
    }
    if given.instructions:
        result.versions.update(callgrind.versions())
        summary = {
            load: {commit: round(cost.total) for commit, cost in costs.items()}
            for load, costs in found.items()
        }
        raw = {
            load: {
                commit: dict(Counter(cost.units).most_common(50)) for commit, cost in costs.items()
            }
            for load, costs in found.items()
        }
        print(f"written: {result.write(given.results, summary, raw)}")
    return int(given.most is not None and max(shares.values()) > given.most)


if __name__ == "__main__":
    raise SystemExit(main())
