"""CPU per call of a pool of endpoints, compared with one endpoint: python bench/pool_cost.py

    python bench/pool_cost.py [--pairs 10]
    python bench/pool_cost.py --opcodes [--top 20]      bytecodes of a row, on a busy machine

All endpoints are one server, each with a key of its own. Each round runs the same rows with one
endpoint, with two and with a hundred, several times in alternating order, at 64 in flight with
immediate answers. The ratio is to the CPU seconds with one endpoint in the same round; the cost of
a run of fewer rows is subtracted, to leave out the start and the connections. Ten pairs take about
14 minutes if the cores are idle. The bound is the upper end of a one-sided 95 % interval for the
mean of the ratio's logarithm. Exits with status 1 if a bound is above its bar.

With --opcodes or --instructions, the cost of a row is counted as in bench/opcodes.py, and the
functions that differ most from one endpoint are listed; there is no bar. Bytecodes show what a pool
does, not how long it takes: C functions that are called with a key count for little, but take
longer than a loop.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import opcodes
import record
from versions import InFlight, Variant, compare, upper_bound, write_rows

# Each of a hundred endpoints is asked a hundred times before what is compared begins.
LOAD = InFlight(64, 0.0, 26_000, 10_000, 7)
# Rows of the two runs in which work is counted. By the end of the first, the latency of each of a
# hundred endpoints is known.
COUNTED = (2_500, 4_000)
# What a number of endpoints may cost, over one.
BARS = {2: 1.04, 100: 1.10}


def configured(folder: Path, url: str) -> None:
    """A redline.toml with an endpoint for each key, in the folder that becomes the current one."""
    lines = list[str]()
    for number in range(max(BARS)):
        os.environ[f"KEY_{number}"] = f"key-{number}"
        lines += [
            f"[endpoints.key-{number}]",
            f'base_url = "{url}"',
            f'api_key_env = "KEY_{number}"',
            "",
        ]
    (folder / "redline.toml").write_text("\n".join(lines), "utf-8")
    os.chdir(folder)


def flags_of(endpoints: int) -> list[str]:
    named = [word for number in range(endpoints) for word in ("--endpoint", f"key-{number}")]
    return ["-c", str(LOAD.count), *named]


def count(counted: opcodes.Counted, top: int) -> None:
    """Prints what a row costs with one endpoint, with two and with a hundred, in work."""
    with (
        tempfile.TemporaryDirectory() as name,
        record.serving(record.sim("--latency", "0")) as server,
    ):
        folder, source = Path(name), record.ROOT / "src"
        configured(folder, server.url)
        for rows in COUNTED:
            write_rows(folder / f"{rows}.jsonl", rows)
        opcodes.compile_all([source])
        one: opcodes.Cost | None = None
        for size in (1, *BARS):
            cost = opcodes.cost(source, folder, flags_of(size), counted, COUNTED)
            one = one or cost
            share = f"{cost.total:,.0f} {counted.__name__}, {cost.total / one.total:.3f} of one"
            print(f"{size} endpoints: {share}", flush=True)
            if cost is not one:
                print("\n".join(opcodes.differences(one, cost, top)), flush=True)
        os.chdir(record.ROOT)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--opcodes", action="store_true", help="count bytecodes")
    parser.add_argument("--instructions", action="store_true", help="count them by callgrind")
    parser.add_argument("--top", type=int, default=20, help="functions to list")
    parser.add_argument("--results", type=Path, default=record.RESULTS)
    given = parser.parse_args()
    if given.opcodes or given.instructions:
        count(opcodes.instructions if given.instructions else opcodes.opcodes, given.top)
        return 0
    settings = {"pairs": given.pairs, "load": LOAD._asdict(), "bars": BARS}
    result = record.Record("pool_cost", settings, {"sim": 0})
    result.versions.update(record.own_versions("httptools", "uvloop", "msgspec"))
    sizes = (1, *BARS)
    variants = [Variant(record.ROOT / "src", flags_of(size)) for size in sizes]
    with (
        tempfile.TemporaryDirectory() as name,
        record.serving(record.sim("--latency", "0")) as server,
    ):
        folder = Path(name)
        configured(folder, server.url)
        rows = [write_rows(folder / f"{count}.jsonl", count) for count in (LOAD.many, LOAD.few)]
        each = compare(variants, rows, LOAD, given.pairs)
        os.chdir(record.ROOT)
    found = dict(zip(sizes, zip(*each, strict=True), strict=True))
    summary = dict[str, Any]()
    for size, bar in BARS.items():
        ratios = [own / one for own, one in zip(found[size], found[1], strict=True)]
        summary[f"{size} endpoints"] = {
            "one_cpu_s_per_1000": round(statistics.median(found[1]), 4),
            "cpu_s_per_1000": round(statistics.median(found[size]), 4),
            "ratio": round(statistics.median(ratios), 3),
            "bound": round(upper_bound(ratios), 3),
            "bar": bar,
        }
    for title, row in summary.items():
        print(
            f"{title}: {row['one_cpu_s_per_1000']:.4f} -> {row['cpu_s_per_1000']:.4f} CPU s per "
            f"1,000 calls, median ratio {row['ratio']:.3f}, upper 95 % bound {row['bound']:.3f} "
            f"({row['bar']:g} allowed)"
        )
    print(f"written: {result.write(given.results, summary, {str(k): v for k, v in found.items()})}")
    return int(any(row["bound"] > row["bar"] for row in summary.values()))


if __name__ == "__main__":
    sys.exit(main())
