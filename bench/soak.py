"""Does a long run leak? Memory, blocks, open files and tasks of `redline.stream`, each second.

    python bench/soak.py [--minutes 10] [--concurrency 32]

An endless input is sent to `redline sim`, where 5 % of the requests meet a fault of any kind, and
the answers are written to a results file, until the minutes are over. After a warm-up, a line is
fitted to each figure over the number of calls by least squares.

Only the set of row keys grows by design; without it, a row could be done twice. It takes 16 to 32
bytes per row, and doubles in size in steps (journal/identity.py), so it takes 16 MiB at a million
rows. Its size is read and subtracted from the memory, and is a separate figure in the record.

A slope counts as a leak if it is above its bar by more than three standard errors, in the second
half as well, because some objects are created once, in steps; and if the growth exceeds the normal
variation of the figure: 4 MB, 10,000 blocks, and as many descriptors or tasks as there are
connections, which close and open with the faults. The bars:
  memory       8 MB per million calls: the smallest object that Python can keep for each call takes
               16 bytes, and 8 more for its reference.
  blocks       50,000 per million calls: one allocation of Python per fault. Memory also includes
               the heap of the C library, which becomes stable after about 200,000 calls.
  descriptors  20 per million calls: a process with the usual limit of 1,024 lasts for 50 million.
  tasks        20 per million calls: at some kB each, these would be 0.1 MB.
Exits with status 1 if there is a leak.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import record

import redline
from redline.job import new_event_loop
from redline.journal import KeySet

FAULTS = 0.05
EVERY_S = 1.0
LATENCY = "0.002-0.02"
# Of the time, before which connections are made and caches fill.
WARM_UP = 0.25
STANDARD_ERRORS = 3
PROMPT = "the quick brown fox jumps over the lazy dog " * 12


# In a million calls.
BARS = {"memory_mb": 8, "blocks": 50_000, "descriptors": 20, "tasks": 20}
NOISE = {"memory_mb": 4, "blocks": 10_000}
Sample = dict[str, float]


def endless(ends_s: float) -> Iterator[dict[str, Any]]:
    """Rows, no two alike, until the monotonic time `ends_s`."""
    number = 0
    while time.monotonic() < ends_s:
        number += 1
        yield {"custom_id": f"row-{number}", "prompt": f"{number} {PROMPT}"}


class Sampler:
    """Looks at this process every `every_s`. calls: how many have come to an end, so far."""

    def __init__(self, every_s: float) -> None:
        self.calls = 0
        self.samples: list[Sample] = []
        self._every_s = every_s
        self._begun_s = time.monotonic()

    async def run(self, ends_s: float) -> None:
        """Samples until the monotonic time `ends_s`, or until it is cancelled."""
        while time.monotonic() + self._every_s < ends_s:
            await asyncio.sleep(self._every_s)
            held_mb = keys_mb()
            self.samples.append(
                {
                    "calls": self.calls,
                    "memory_mb": round(resident_mb() - held_mb, 3),
                    "keys_mb": round(held_mb, 3),
                    "blocks": sys.getallocatedblocks(),
                    "descriptors": len(os.listdir("/proc/self/fd")),
                    "tasks": len(asyncio.all_tasks()),
                    "at_s": round(time.monotonic() - self._begun_s, 2),
                }
            )


def resident_mb() -> float:
    """What of this process is in memory, in MiB (proc(5), statm)."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def keys_mb() -> float:
    """What the sets of row keys of this process take, in MiB."""
    sets = [thing for thing in gc.get_objects() if type(thing) is KeySet]
    return sum(len(keys._slots) * keys._slots.itemsize for keys in sets) / 2**20


async def soak(
    url: str, output: Path, timing: tuple[float, float], concurrency: int
) -> list[Sample]:
    """The samples of a run. timing: seconds it lasts, and from one sample to the next."""
    lasts_s, every_s = timing
    ends_s = time.monotonic() + lasts_s
    sampler = Sampler(every_s)
    sampling = asyncio.create_task(sampler.run(ends_s))
    run = redline.stream(
        endless(ends_s),
        endpoint=url,
        model="sim",
        concurrency=concurrency,
        # A request that stalls is one of the faults.
        timeout_s=1.0,
        output=output,
    )
    try:
        async for _ in run:
            sampler.calls += 1
    finally:
        sampling.cancel()
    return sampler.samples


def line_through(samples: Sequence[Sample], figure: str) -> tuple[float, float]:
    """Slope per million calls, by least squares, and its standard error; at least three samples."""
    calls = [sample["calls"] / 1e6 for sample in samples]
    values = [sample[figure] for sample in samples]
    slope, begin = statistics.linear_regression(calls, values)
    squares = sum((y - begin - slope * x) ** 2 for x, y in zip(calls, values, strict=True))
    spread = sum((x - statistics.fmean(calls)) ** 2 for x in calls)
    return slope, math.sqrt(squares / (len(samples) - 2) / spread)


def judge(samples: Sequence[Sample], concurrency: int) -> dict[str, Any]:
    """Each figure's slope, and whether it says leak."""
    after_s = WARM_UP * samples[-1]["at_s"]
    warm = [sample for sample in samples if sample["at_s"] >= after_s]
    calls = warm[-1]["calls"] - warm[0]["calls"]
    found: dict[str, Any] = {"samples": len(warm), "calls": calls}
    for figure, bar in BARS.items():
        slope, error = line_through(warm, figure)
        late, late_error = line_through(warm[len(warm) // 2 :], figure)
        surely = min(slope - STANDARD_ERRORS * error, late - STANDARD_ERRORS * late_error)
        noise = NOISE.get(figure, concurrency)
        found[figure] = {
            "first": warm[0][figure],
            "last": warm[-1][figure],
            "most": max(sample[figure] for sample in warm),
            "per_million_calls": round(slope, 3),
            "standard_error": round(error, 3),
            "in_the_later_half": round(late, 3),
            "allowed": bar,
            "is_leak": surely > bar and slope * calls / 1e6 > noise,
        }
    found["keys_mb"] = warm[-1]["keys_mb"]
    found["is_flat"] = not any(found[figure]["is_leak"] for figure in BARS)
    return found


def child(url: str, lasts_s: float, folder: Path, concurrency: int) -> None:
    """The run in this process; its samples go to stdout."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        run = soak(url, folder / "out.jsonl", (lasts_s, EVERY_S), concurrency)
        json.dump(runner.run(run), sys.stdout)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--results", type=Path, default=record.RESULTS)
    parser.add_argument("--child", nargs=2, metavar=("URL", "FOLDER"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(args.child[0], 60 * args.minutes, Path(args.child[1]), args.concurrency)
        return 0
    settings = {
        "minutes": args.minutes,
        "concurrency": args.concurrency,
        "faults": FAULTS,
        "latency_s": LATENCY,
        "warm_up": WARM_UP,
        "bars_per_million_calls": BARS,
    }
    result = record.Record("soak", settings, {"sim": 0})
    result.versions.update(record.own_versions("httptools", "uvloop", "msgspec"))
    server_flags = ("--faults", str(FAULTS), "--latency", LATENCY)
    with record.scratch() as folder, record.serving(record.sim(*server_flags)) as server:
        words = [__file__, "--minutes", str(args.minutes), "--concurrency", str(args.concurrency)]
        command = [sys.executable, *words, "--child", server.url, str(folder)]
        finished = record.run_client(command, folder)
    samples = json.loads(finished.stdout)
    summary = {**judge(samples, args.concurrency), "cpu_s": round(finished.cpu_s, 1)}
    summary["calls_per_s"] = round(samples[-1]["calls"] / samples[-1]["at_s"])
    path = result.write(args.results, summary, samples)
    for figure in BARS:
        of = summary[figure]
        verdict = "LEAK" if of["is_leak"] else "flat"
        print(
            f"{figure:12} {of['first']:9.1f} to {of['last']:9.1f}, {of['per_million_calls']:+9.2f} "
            f"± {of['standard_error']:.2f} in a million calls ({of['allowed']} allowed): {verdict}"
        )
    print(f"row keys     {summary['keys_mb']:9.1f} MB at the end, by design and not counted above")
    print(f"{summary['calls']:,} calls after the warm-up, {summary['calls_per_s']:,}/s")
    print(f"written: {path}")
    return 0 if summary["is_flat"] else 1


if __name__ == "__main__":
    sys.exit(main())
