"""Whether real servers confirm the order of strategies that bench/route.py finds in virtual time.

    python bench/route_real.py [--scenarios even,bursts] [--seeds 1,2,3] [--calls 300]

Runs the six named scenarios of bench/route.py, with four servers of one slot. Each strategy has a
fleet of its own: processes of `redline sim`, whose time per token depends on their speed, so that a
call is the same work on a real server as on a simulated one. All strategies get the same calls at
the same times, once in virtual time and once, simultaneously, on their fleets. A call is UNIT_S of
work on average. With late binding, an endpoint has a concurrency of 1; otherwise it has no bound.

The rank correlation (Spearman) of the mean latencies is given for each scenario. Two strategies
differ if, with every seed, their mean latencies in virtual time differ by more than LEAST: some
choose at random between equal servers. The bar: in every scenario, each pair that differs is in the
same order on the real servers. It takes about 8 minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from itertools import permutations
from pathlib import Path
from typing import Any

import record
import uvloop
from replay import ranks
from route import (
    NAMED,
    SCENARIOS,
    Arrival,
    Scenario,
    arrivals,
    pool_of,
    quantiles,
    send_all,
    servers_of,
)

import redline
from redline.calls import Endpoint, Request
from redline.limits import Limits
from redline.testing import virtual_run
from support.sim_process import SimProcess

SLOTS = 1
CALLS = 300
SEEDS = (1, 2, 3)
UNIT_S = 0.2
# In UNIT_S of work. The simulated provider repeats at most 250 tokens of a prompt.
TOKENS = 20
LEAST = 0.1
# Of four servers instead of eight.
SPEEDS = {
    "one slow": (0.25, 1.0, 1.0, 1.0),
    "half slow": (0.5, 0.5, 1.0, 1.0),
    "one failing fast": (0.0, 1.0, 1.0, 1.0),
}
EVEN = (1.0,) * 4
# The strategy, and whether it binds late.
CONTENDERS = {
    f"{name}{', late' * is_late}": (name, is_late)
    for name in ("p2c", "round_robin", "weighted_score")
    for is_late in (True, False)
}
Latencies = Mapping[str, Sequence[float]]


def scenario_of(name: str) -> Scenario:
    """That of bench/route.py, with four servers."""
    found = SCENARIOS[name]
    return Scenario(SPEEDS.get(name, EVEN), found.work_s, found.arrivals)


def calls_of(scenario: Scenario, calls: int, seed: int) -> list[Arrival]:
    """In seconds, with work of whole tokens."""
    return [
        Arrival(one.at_s * UNIT_S, max(1, round(one.work_s * TOKENS)) * UNIT_S / TOKENS)
        for one in arrivals(scenario, SLOTS, calls, seed)
    ]


def in_virtual_time(scenario: Scenario, coming: Sequence[Arrival], seed: int) -> Latencies:
    """The latencies by contender."""

    def through(name: str, *, is_late: bool) -> list[float]:
        async def main() -> list[float]:
            bound = SLOTS if is_late else 0
            servers = servers_of(scenario, SLOTS, bound=bound, middle_s=0.0)
            return await send_all(pool_of(servers, name, seed), coming)

        return virtual_run(main())

    return {who: through(name, is_late=is_late) for who, (name, is_late) in CONTENDERS.items()}


def asked(work_s: float) -> Request:
    """A call whose answer has as many tokens as it is work."""
    tokens = round(work_s * TOKENS / UNIT_S)
    body = {"messages": [{"role": "user", "content": "word " * tokens}], "max_tokens": tokens}
    return Request(body={"model": "m", **body})


def server_of(speed: float) -> SimProcess:
    flags = ["--concurrency", str(SLOTS)]
    if not speed:
        return SimProcess(*flags, "--faults", "500=1")
    return SimProcess(*flags, "--per-token", str(UNIT_S / TOKENS / speed))


def on_servers(scenario: Scenario, coming: Sequence[Arrival]) -> Latencies:
    """The same, on real servers, each contender on its own."""

    async def through(urls: Sequence[str], name: str, *, is_late: bool) -> list[float]:
        limits = Limits(concurrency=SLOTS if is_late else None)
        endpoints = [
            Endpoint(base_url=url, name=f"s{number}", limits=limits, proxy="")
            for number, url in enumerate(urls)
        ]
        pool = redline.Pool(endpoints, balance=name)
        try:
            return await send_all(pool, coming, asked)
        finally:
            await pool.aclose()

    async def main(fleets: Sequence[Sequence[str]]) -> Latencies:
        running = [
            through(urls, name, is_late=is_late)
            for urls, (name, is_late) in zip(fleets, CONTENDERS.values(), strict=True)
        ]
        return dict(zip(CONTENDERS, await asyncio.gather(*running), strict=True))

    with ExitStack() as stack:
        fleets = [
            [stack.enter_context(server_of(speed)).base_url for speed in scenario.speeds]
            for _ in CONTENDERS
        ]
        return uvloop.run(main(fleets))


def figures(latencies_s: Sequence[float]) -> dict[str, float]:
    """In units of the mean work of a call, as in bench/route.py."""
    p50_s, p99_s = quantiles(latencies_s)
    found = {"mean_s": statistics.mean(latencies_s), "p50_s": p50_s, "p99_s": p99_s}
    return {name: round(value / UNIT_S, 3) for name, value in found.items()}


def means(runs: Sequence[Mapping[str, Any]], where: str) -> dict[str, dict[str, float]]:
    """The figures of each contender, means over the runs."""
    return {
        who: {
            key: round(statistics.mean(run[where][who][key] for run in runs), 3)
            for key in ("mean_s", "p50_s", "p99_s")
        }
        for who in CONTENDERS
    }


def judged(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Both orders of the contenders in a scenario, and how far they agree."""
    virtual, real = (means(runs, where) for where in ("virtual", "real"))
    both = ([row["mean_s"] for row in each.values()] for each in (virtual, real))
    pairs = [
        (better, worse)
        for better, worse in permutations(CONTENDERS, 2)
        if all(
            run["virtual"][better]["mean_s"] < (1 - LEAST) * run["virtual"][worse]["mean_s"]
            for run in runs
        )
    ]
    return {
        "rows": {who: {"virtual": virtual[who], "real": real[who]} for who in CONTENDERS},
        "rank_correlation": round(statistics.correlation(*map(ranks, both)), 3),
        "differing": pairs,
        "wrong": [pair for pair in pairs if real[pair[0]]["mean_s"] >= real[pair[1]]["mean_s"]],
    }


def printed(name: str, found: Mapping[str, Any]) -> None:
    print(f"\n{name:24} virtual: mean   p50    p99     real: mean   p50    p99")
    for who, row in found["rows"].items():
        virtual, real = (
            "  ".join(f"{value:5.2f}" for value in row[where].values())
            for where in ("virtual", "real")
        )
        print(f"  {who:28} {virtual}          {real}")
    pairs, wrong = len(found["differing"]), len(found["wrong"])
    print(
        f"  {pairs} pairs differ, {wrong} in another order on real servers; rank correlation "
        f"{found['rank_correlation']:.2f}",
        flush=True,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--scenarios", default=",".join([*SCENARIOS][:NAMED]))
    parser.add_argument("--seeds", default=",".join(map(str, SEEDS)))
    parser.add_argument("--calls", type=int, default=CALLS)
    parser.add_argument("--results", type=Path, default=record.RESULTS)
    given = parser.parse_args()
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            del os.environ[name]
    seeds = [int(word) for word in given.seeds.split(",")]
    settings = {
        "servers": len(EVEN),
        "slots": SLOTS,
        "calls": given.calls,
        "unit_s": UNIT_S,
        "tokens": TOKENS,
        "least": LEAST,
        "speeds": SPEEDS,
    }
    made = record.Record("route_real", settings, {"arrivals": seeds})
    made.versions.update(record.own_versions("httptools", "uvloop", "msgspec"))
    runs, summary = list[dict[str, Any]](), dict[str, Any]()
    for name in given.scenarios.split(","):
        scenario = scenario_of(name)
        for seed in seeds:
            coming = calls_of(scenario, given.calls, seed)
            found = {
                "virtual": in_virtual_time(scenario, coming, seed),
                "real": on_servers(scenario, coming),
            }
            figured = {
                where: {who: figures(values) for who, values in each.items()}
                for where, each in found.items()
            }
            runs.append({"scenario": name, "seed": seed, **figured})
        summary[name] = judged([run for run in runs if run["scenario"] == name])
        printed(name, summary[name])
    print(f"written: {made.write(given.results, summary, runs)}")
    return int(any(one["wrong"] for one in summary.values()))


if __name__ == "__main__":
    sys.exit(main())
