"""100,000 callers wait for one limiter that grants 20,000 per second: CPU time, rate and wake-ups.

    python bench/waiters.py [--waiters 100000] [--repeats 3] [--loops uvloop asyncio]

CPU time is the process's own, from the first task to the end of the last one. It is compared with a
bare baseline on the same loop: the same number of tasks and futures, set in order at the same pace.
Python's garbage collector scans all tasks repeatedly; `redline` makes it run less often
(cli/app.py), and so do the runs here. Those marked "default gc" leave it as Python sets it.
Wake-ups are the futures' results that the limiter sets, and its timers that fire; with one for each
grant and one for each tick, no task is woken in vain. They are counted in a run of their own.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import record
import uvloop

from redline.limits import Limiter, Limits, Rate

sys.path.insert(0, str(record.ROOT / "tests"))

from support.counted_loop import Counts, counting

LOOPS: dict[str, type[asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.SelectorEventLoop,
    "uvloop": uvloop.Loop,
}
PER_S = 20_000
WINDOW_S = 60.0
TICK_S = 0.001
# What it takes to start a task, and some more.
START_S = 2e-5
MAX_CPU_S = 2.0
# As the command `redline` sets it.
GC_THRESHOLD = (50_000, 20, 100)
DEFAULT_GC = gc.get_threshold()

Figures = dict[str, float]


async def limited(waiters: int) -> Figures:
    """Callers that each wait for a grant and write at once; most come before the first grant."""
    loop = asyncio.get_running_loop()
    limiter = Limiter(Limits(requests=Rate(round(PER_S * WINDOW_S), WINDOW_S)))
    limiter.park(loop.time() + waiters * START_S)
    stamps: list[float] = []

    async def caller() -> None:
        grant = await limiter.acquire()
        now_s = loop.time()
        grant.sent(now_s)
        stamps.append(now_s)

    return await measured(caller, waiters, stamps)


async def bare(waiters: int) -> Figures:
    """The same tasks without a limiter: one future each, set in order at the same pace."""
    loop = asyncio.get_running_loop()
    waiting: deque[asyncio.Future[None]] = deque()
    stamps: list[float] = []
    begun_s = 0.0

    async def caller() -> None:
        future = loop.create_future()
        waiting.append(future)
        if len(waiting) == waiters:
            nonlocal begun_s
            begun_s = loop.time()
            tick(0)
        await future
        stamps.append(loop.time())

    def tick(woken: int) -> None:
        due = min(waiters, int((loop.time() - begun_s) * PER_S) + 1)
        for _ in range(woken, due):
            waiting.popleft().set_result(None)
        if due < waiters:
            loop.call_later(TICK_S, tick, due)

    return await measured(caller, waiters, stamps)


async def measured(
    caller: Callable[[], Coroutine[Any, Any, None]], waiters: int, stamps: list[float]
) -> Figures:
    """CPU seconds of `waiters` callers, and the rate of what they sent."""
    gc.collect()
    begun_s = time.process_time()
    async with asyncio.TaskGroup() as group:
        for _ in range(waiters):
            group.create_task(caller())
    cpu_s = time.process_time() - begun_s
    return {"cpu_s": cpu_s, "per_s": (waiters - 1) / (stamps[-1] - stamps[0])}


def one_run(
    name: str, kind: str, waiters: int, *, is_counted: bool = False, is_default_gc: bool = False
) -> dict[str, Any]:
    """The figures of one run on a loop of its own."""
    gc.set_threshold(*(DEFAULT_GC if is_default_gc else GC_THRESHOLD))
    counts = Counts()
    base = LOOPS[name]
    work = limited if kind == "limited" else bare
    factory = (lambda: counting(base, counts)) if is_counted else base
    with asyncio.Runner(loop_factory=factory) as runner:
        figures: dict[str, Any] = runner.run(work(waiters))
    if is_counted:
        figures |= {"results": counts.results, "timers": counts.timers}
    shown = f"{name}, default gc" if is_default_gc else name
    return {"loop": shown, "kind": kind, "waiters": waiters, "is_counted": is_counted, **figures}


def summarize(runs: list[dict[str, Any]], name: str) -> dict[str, Any]:
    """The median CPU times and rates of one loop, and the wake-ups of its counted run."""

    def median(kind: str, figure: str) -> float:
        found = [
            run[figure]
            for run in runs
            if (run["loop"], run["kind"], run["is_counted"]) == (name, kind, False)
        ]
        return float(statistics.median(found))

    (counted,) = [run for run in runs if run["loop"] == name and run["is_counted"]]
    cpu_s, bare_cpu_s = median("limited", "cpu_s"), median("bare", "cpu_s")
    return {
        "cpu_s": round(cpu_s, 3),
        "bare_cpu_s": round(bare_cpu_s, 3),
        "ratio": round(cpu_s / bare_cpu_s, 2),
        "us_per_grant": round((cpu_s - bare_cpu_s) / counted["waiters"] * 1e6, 2),
        "per_s": round(median("limited", "per_s")),
        "bare_per_s": round(median("bare", "per_s")),
        "results": counted["results"],
        "timers": counted["timers"],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--waiters", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--loops", nargs="+", choices=sorted(LOOPS), default=sorted(LOOPS))
    parser.add_argument("--results", type=Path, default=record.RESULTS)
    args = parser.parse_args()
    settings = {
        "waiters": args.waiters,
        "per_s": PER_S,
        "window_s": WINDOW_S,
        "repeats": args.repeats,
        "profile": "any",
        "max_cpu_s": MAX_CPU_S,
        "gc_threshold": GC_THRESHOLD,
    }
    result = record.Record("waiters", settings)
    result.versions.update(record.own_versions("uvloop"))
    runs = []
    gc.freeze()
    for name in args.loops:
        for is_default in (False, True):
            for _ in range(args.repeats):
                runs.append(one_run(name, "bare", args.waiters, is_default_gc=is_default))
                runs.append(one_run(name, "limited", args.waiters, is_default_gc=is_default))
            again = one_run(
                name, "limited", args.waiters, is_counted=True, is_default_gc=is_default
            )
            runs.append(again)
    summary = {name: summarize(runs, name) for name in dict.fromkeys(run["loop"] for run in runs)}
    path = result.write(args.results, summary, runs)
    for name, row in summary.items():
        bare = f"{row['ratio']:.2f} of {row['bare_cpu_s']:.2f} bare"
        print(
            f"{name:20} {row['cpu_s']:6.2f} CPU s ({bare}, {row['us_per_grant']:.1f} us a grant)  "
            f"{row['per_s']:,}/s of {PER_S:,} (bare {row['bare_per_s']:,})  "
            f"{row['results']:,} results, {row['timers']:,} timers"
        )
    print(f"written: {path}")
    # The bar is for redline as its own command runs it: on uvloop, with its own gc settings.
    return 0 if summary.get("uvloop", {"cpu_s": 0.0})["cpu_s"] <= MAX_CPU_S else 1


if __name__ == "__main__":
    sys.exit(main())
