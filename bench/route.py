"""How long calls take in a pool: every strategy against an oracle, in virtual time.

    python bench/route.py [--scenarios even,bursts] [--seeds 1,2] [--calls 1000] [--parts FOLDER]

The pool is redline's own; its servers are simulated (tests/support/fleet.py), each with a number
of slots, a queue in order of arrival, and a speed. Calls arrive at random (Poisson), on average at
0.8 of the capacity of the working servers. A call is 1 s of work on average, exponentially
distributed unless the scenario says otherwise. Latencies are from the arrival to the answer, and
include retries. Each strategy gets the same calls twice: with servers that get at most as many
calls as they have slots (late binding, as in redline), and with servers that get all calls at once.

The oracle knows the work of every call and the speed of every server, and chooses the server with
the shortest remaining work, in seconds. The bar: p50 and p99 of the default, p2c with late binding,
are at most 1.1 times the lowest of the oracle and of all strategies with late binding. They are
also compared with the lowest of all, including those without late binding, and so are the means:
without late binding, calls overtake others, which lowers a median but not the mean.

The other parts have servers of their own:

prefixes: calls whose prompts begin alike in groups, at servers with a prefix cache that holds some
of the groups: PREFIXES, in a closed loop.

stale: the worst case of the fixed score: queues and GPU use scraped every few seconds, no late
binding, short and long calls. The bar: the medians of the fixed score and of two random choices by
calls in flight differ by at most WITHIN from BEFORE_S, which was measured before redline had a
pool. The durations of those calls are not known; with STALE, both medians agree.

closed: a job on four servers whose capacities are 1, 1, 1/2 and 1/4. The bar: it takes at most 1.03
times as long as the servers need if each is always full, plus the longest call.

--parts: saves the runs of each scenario in this folder, and resumes from them. Exits with status 1
if a bar is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import heapq
import json
import math
import random
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import record

sys.path.insert(0, str(record.ROOT / "tests"))

from redline.calls import Backend, Call, Request, Retry
from redline.errors import CallError, ServerFailed
from redline.route import STRATEGIES, Asked, Figures, Pool, Seat, Strategy, strategy_of
from redline.testing import virtual_run
from support.fleet import CachingServer, LoopClock, ModelServer

LOAD = 0.8
SERVERS = 8
SLOTS = (1, 4)
CALLS = 2000
# The medians of four differ by 5 % from those of four others.
SEEDS = tuple(range(1, 9))
DEFAULT = "p2c"
TWO_CHOICES = "two choices"
# Servers of one slot; 20 % of the calls are long.
STALE = {"short_s": 1.0, "long_s": 7.0, "long_share": 0.2, "scrape_s": 2.0}
STALE_CALLS = 16_000
# Medians at a load of 0.8 of 8 servers.
BEFORE_S = {"weighted_score": 7.5, TWO_CHOICES: 2.3}
WITHIN = 0.1
CLOSED = {"rows": 20_000, "at_once": 64, "bar": 1.03}
CLOSED_SPEEDS = (1.0, 1.0, 0.5, 0.25)
CLOSED_SLOTS = (1, 4, 16)
# Servers of four slots. A call is `work_s` of work, and `prefill_s` for each of the 7 prefixes of
# its prompt that is not cached; a server keeps `kept` prefixes.
PREFIXES = {"groups": 64, "kept": 100, "prefill_s": 0.1, "work_s": 0.5, "at_once": 128}
# The scenarios that were stated before the strategies were measured; the others came later.
NAMED = 6
# The default's p50 and p99 over the lowest.
BAR = 1.1
ORACLE = "oracle"
FIGURES = ("mean_s", "p50_s", "p99_s")
CLOCK = LoopClock()
HTTP_500 = ServerFailed("HTTP 500", status=500)

Draw = Callable[[random.Random], float]
# The speed of a server, or the arrivals over their mean, by time and the length of the run.
Curve = Callable[[float, float], float]


def usual(draw: random.Random) -> float:
    return draw.expovariate(1.0)


def short_and_long(draw: random.Random) -> float:
    """20 % of the calls take six times as long as the others."""
    return 3.0 if draw.random() < 0.2 else 0.5


def heavy_tailed(draw: random.Random) -> float:
    """Log-normal, with a standard deviation of twice the mean."""
    sigma = math.sqrt(math.log(5))
    return draw.lognormvariate(-sigma * sigma / 2, sigma)


def in_bursts(at_s: float, run_s: float) -> float:
    """Twice the mean for 20 s of every 60 s."""
    return 2.0 if at_s % 60 < 20 else 0.5


def in_a_day(at_s: float, run_s: float) -> float:
    """Two days: half the mean at night, and 1.2 times what the servers can do at noon."""
    return 1 - 0.5 * math.cos(4 * math.pi * at_s / run_s)


@dataclass(frozen=True)
class Scenario:
    """What a fleet is like, and what it is asked.

    speeds: of the servers; 0 for one that fails every call at once. arrivals: their rate over the
    mean. slows: the number of servers that drop to a quarter of their speed in mid-run.
    """

    speeds: tuple[float, ...] = (1.0,) * SERVERS
    work_s: Draw = usual
    arrivals: Curve = lambda at_s, run_s: 1.0
    slows: int = 0

    def per_s(self, slots: int) -> float:
        """Calls in a second, on average."""
        return LOAD * slots * (sum(self.speeds) - 0.375 * self.slows)


SCENARIOS = {
    "even": Scenario(),
    "one slow": Scenario((0.25, *(1.0,) * 7)),
    "half slow": Scenario((0.5,) * 4 + (1.0,) * 4),
    "bursts": Scenario(arrivals=in_bursts),
    "long and short": Scenario(work_s=short_and_long),
    "one failing fast": Scenario((0.0, *(1.0,) * 7)),
    "heavy tails": Scenario(work_s=heavy_tailed),
    "two servers": Scenario((1.0, 0.5)),
    "50 servers": Scenario((0.5,) * 10 + (1.0,) * 40),
    "slow from the middle": Scenario(slows=1),
    "day and night": Scenario(arrivals=in_a_day),
    "mixed": Scenario((0.25, 0.5, 0.5, 1.0, 1.0, 1.0, 2.0, 4.0), work_s=short_and_long),
}


@dataclass(frozen=True)
class Arrival:
    """A call: when it comes, and the seconds of work that it is."""

    at_s: float
    work_s: float


def arrivals(scenario: Scenario, slots: int, calls: int, seed: int) -> list[Arrival]:
    """A Poisson process whose rate follows the scenario's curve, by thinning."""
    draw = random.Random(seed)
    per_s = scenario.per_s(slots)
    run_s, most = calls / per_s, 2.0
    found, at_s = list[Arrival](), 0.0
    while len(found) < calls:
        at_s += draw.expovariate(per_s * most)
        if draw.random() * most < scenario.arrivals(at_s, run_s):
            found.append(Arrival(at_s, scenario.work_s(draw)))
    return found


class Server(ModelServer):
    """A model server that may become slow in mid-run."""

    def __init__(self, name: str, speed: float, slots: int, bound: int, slow_from_s: float) -> None:
        def fails(now_s: float, number: int) -> CallError | None:
            return None if speed else HTTP_500

        super().__init__(name, speed=speed, slots=slots, bound=bound, fails=fails, fails_in_s=0.01)
        self.slow_from_s = slow_from_s

    async def _take_slot(self) -> None:
        await super()._take_slot()
        if asyncio.get_running_loop().time() >= self.slow_from_s:
            self.speed, self.slow_from_s = self.speed / 4, math.inf


def servers_of(scenario: Scenario, slots: int, *, bound: int, middle_s: float) -> list[Server]:
    """The scenario's servers; bound: calls that each is given at once, 0 for any number."""
    return [
        Server(f"s{n}", speed, slots, bound, middle_s if n < scenario.slows else math.inf)
        for n, speed in enumerate(scenario.speeds)
    ]


class TwoChoices(Strategy):
    """Of two endpoints drawn at random, the one with fewer calls of this pool."""

    looks_at = 2

    def choose(self, among: Sequence[Figures], asked: Asked, now_s: float) -> Figures:
        return min(among, key=lambda one: one.in_flight)


def strategy_named(name: str, draw: random.Random) -> Strategy:
    return TwoChoices() if name == TWO_CHOICES else strategy_of(name, draw)


def pool_of(servers: Sequence[ModelServer], strategy: str, seed: int) -> Pool:
    def seat(server: ModelServer) -> Seat:
        return Seat(name=server.name, make=lambda on_room: server)

    # Another seed than the pool's: what the two draw must have nothing to do with each other.
    draw = random.Random(1_000 + seed)
    chosen_by = strategy_named(strategy, draw)
    return Pool([seat(one) for one in servers], chosen_by, seed=seed, clock=CLOCK)


def simulated(work_s: float) -> Request:
    """A call of this much work for a simulated server."""
    return Request(body={"work": work_s})


async def send_all(
    pool: Backend, calls: Sequence[Arrival], ask: Callable[[float], Request] = simulated
) -> list[float]:
    """The latencies of the calls through the pool. ask: makes the request of an amount of work."""
    loop = asyncio.get_running_loop()
    backend, begun_s, latencies_s = Retry(pool, clock=CLOCK, seed=1), loop.time(), list[float]()

    async def send(call: Arrival) -> None:
        sent_s = loop.time()
        outcome = await backend.send(ask(call.work_s), Call())
        assert outcome.is_success, outcome
        latencies_s.append(loop.time() - sent_s)

    async with asyncio.TaskGroup() as group:
        for call in calls:
            await asyncio.sleep(begun_s + call.at_s - loop.time())
            group.create_task(send(call))
    return latencies_s


def through_pool(
    scenario: Scenario, strategy: str, *, slots: int, is_late: bool, calls: int, seed: int
) -> list[float]:
    """Latencies of the scenario's calls by a strategy, with late binding or without."""

    async def main() -> list[float]:
        coming = arrivals(scenario, slots, calls, seed)
        middle_s = asyncio.get_running_loop().time() + coming[calls // 2].at_s
        bound = slots if is_late else 0
        servers = servers_of(scenario, slots, bound=bound, middle_s=middle_s)
        return await send_all(pool_of(servers, strategy, seed), coming)

    return virtual_run(main())


def by_oracle(scenario: Scenario, *, slots: int, calls: int, seed: int) -> list[float]:
    """Latencies of the same calls when each joins the shortest remaining work.

    It is the sum over the calls of a server of what is left of each, in seconds at its speed; of
    equal servers, a random one.
    """
    draw = random.Random(seed)
    coming = arrivals(scenario, slots, calls, seed)
    middle_s, latencies_s = coming[calls // 2].at_s, list[float]()
    speeds = [speed for speed in scenario.speeds if speed]
    spans: list[list[tuple[float, float]]] = [[] for _ in speeds]
    free_s = [[0.0] * slots for _ in speeds]
    for call in coming:
        now_s = call.at_s
        for n, found in enumerate(spans):
            spans[n] = [span for span in found if span[1] > now_s]
        left_s = [sum(end - max(now_s, begin) for begin, end in found) for found in spans]
        chosen = min(range(len(speeds)), key=lambda n: (left_s[n], draw.random()))
        begin_s = max(now_s, heapq.heappop(free_s[chosen]))
        is_slow = chosen < scenario.slows and begin_s >= middle_s
        end_s = begin_s + call.work_s / speeds[chosen] * (4 if is_slow else 1)
        heapq.heappush(free_s[chosen], end_s)
        spans[chosen].append((begin_s, end_s))
        latencies_s.append(end_s - now_s)
    return latencies_s


def quantiles(latencies_s: Sequence[float]) -> tuple[float, float]:
    """Median and 99th percentile."""
    found = statistics.quantiles(latencies_s, n=100)
    return found[49], found[98]


def measured(name: str, slots: int, calls: int, seeds: Sequence[int]) -> list[dict[str, Any]]:
    """The runs of a scenario: the oracle, and every strategy with late binding and without."""
    scenario, runs = SCENARIOS[name], list[dict[str, Any]]()

    def note(who: str, seed: int, latencies_s: list[float], *, is_late: bool) -> None:
        p50_s, p99_s = (round(found, 4) for found in quantiles(latencies_s))
        run = {"scenario": name, "slots": slots, "strategy": who, "late": is_late, "seed": seed}
        mean_s = round(statistics.mean(latencies_s), 4)
        runs.append({**run, "mean_s": mean_s, "p50_s": p50_s, "p99_s": p99_s})

    for seed in seeds:
        note(ORACLE, seed, by_oracle(scenario, slots=slots, calls=calls, seed=seed), is_late=False)
        for who in STRATEGIES:
            for is_late in (True, False):
                latencies_s = through_pool(
                    scenario, who, slots=slots, is_late=is_late, calls=calls, seed=seed
                )
                note(who, seed, latencies_s, is_late=is_late)
    return runs


def over(own: dict[str, Any], rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """p50 and p99 over the lowest of these rows."""
    return {key: round(own[key] / min(row[key] for row in rows), 3) for key in ("p50_s", "p99_s")}


def summary_of(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Figures by strategy and binding, means over the seeds, and the default's over the lowest.

    One part for each scenario and number of slots.
    """
    found: dict[str, Any] = {}
    for run in runs:
        title = f"{run['scenario']}, {run['slots']} slot{'s' * (run['slots'] > 1)}"
        who = run["strategy"] + (", late" if run["late"] else "")
        part = found.setdefault(title, {}).setdefault(who, {key: [] for key in FIGURES})
        for key in FIGURES:
            part[key].append(run[key])
    for rows in found.values():
        for row in rows.values():
            row.update({key: round(statistics.mean(values), 3) for key, values in row.items()})
        own = rows[f"{DEFAULT}, late"]
        bound = [row for who, row in rows.items() if who.endswith(", late") or who == ORACLE]
        own["over_best"] = over(own, bound)
        own["over_all"] = over(own, list(rows.values()))
        least_s = min(row["mean_s"] for row in rows.values())
        own["mean_over_all"] = round(own["mean_s"] / least_s, 3)
    return found


def prefixes(strategy: str, seed: int) -> tuple[float, float]:
    """Seconds for the calls of PREFIXES, and the share of their prefixes that were cached."""

    async def main() -> tuple[float, float]:
        servers = [
            CachingServer(
                f"s{n}",
                prefill_s=PREFIXES["prefill_s"],
                kept=int(PREFIXES["kept"]),
                slots=4,
                bound=4,
            )
            for n in range(SERVERS)
        ]
        pool, draw, begun_s = pool_of(servers, strategy, seed), random.Random(seed), CLOCK.now_s()
        texts = ["".join(draw.choices("abcdefgh ", k=2000)) for _ in range(int(PREFIXES["groups"]))]
        prompts = iter([f"{draw.choice(texts)}{number}" for number in range(CALLS)])

        async def work() -> None:
            for prompt in prompts:
                body = {"model": "m", "prompt": prompt, "work": PREFIXES["work_s"]}
                assert (await pool.send(Request(body=body), Call())).is_success

        await asyncio.gather(*(work() for _ in range(int(PREFIXES["at_once"]))))
        hits, misses = (sum(getattr(one, name) for one in servers) for name in ("hits", "misses"))
        return CLOCK.now_s() - begun_s, hits / (hits + misses)

    return virtual_run(main())


def stale(strategy: str, seed: int) -> tuple[float, float]:
    """p50 and p99 without late binding, when what servers say is up to STALE["scrape_s"] old.

    p2c goes by its own calls alone, as it does for servers that say nothing.
    """

    async def main() -> list[float]:
        draw = random.Random(seed)
        short_s, long_s, share = STALE["short_s"], STALE["long_s"], STALE["long_share"]
        per_s = LOAD * SERVERS / (share * long_s + (1 - share) * short_s)
        coming, at_s = list[Arrival](), 0.0
        for _ in range(STALE_CALLS):
            at_s += draw.expovariate(per_s)
            coming.append(Arrival(at_s, long_s if draw.random() < share else short_s))
        servers = servers_of(Scenario(), 1, bound=0, middle_s=math.inf)
        pool = pool_of(servers, strategy, seed)

        async def scrape() -> None:
            while True:
                for server, member in zip(servers, pool.members, strict=True):
                    member.queued = max(0, server.in_flight - server.slots)
                    member.gpu = float(server.in_flight > 0)
                    member.seen_s = CLOCK.now_s()
                await asyncio.sleep(STALE["scrape_s"])

        scraping = asyncio.create_task(scrape()) if strategy != DEFAULT else None
        try:
            return await send_all(pool, coming)
        finally:
            if scraping is not None:
                scraping.cancel()

    return quantiles(virtual_run(main()))


def closed_loop(slots: int, seed: int) -> dict[str, float]:
    """How long the rows take, what they need if no slot is ever free, and the longest call."""
    rows, at_once = int(CLOSED["rows"]), int(CLOSED["at_once"])

    async def main() -> dict[str, float]:
        servers = servers_of(Scenario(CLOSED_SPEEDS), slots, bound=slots, middle_s=math.inf)
        pool, draw, begun_s = pool_of(servers, DEFAULT, seed), random.Random(seed), CLOCK.now_s()
        works_s = [usual(draw) for _ in range(rows)]
        left, longest_s = iter(works_s), 0.0

        async def work() -> None:
            nonlocal longest_s
            for work_s in left:
                outcome = await pool.send(Request(body={"work": work_s}), Call())
                assert outcome.is_success, outcome
                longest_s = max(longest_s, outcome.latency_s)

        await asyncio.gather(*(work() for _ in range(at_once)))
        took_s, ideal_s = CLOCK.now_s() - begun_s, sum(works_s) / (slots * sum(CLOSED_SPEEDS))
        return {"took_s": took_s, "ideal_s": ideal_s, "longest_s": longest_s}

    return {key: round(value, 3) for key, value in virtual_run(main()).items()}


def printed(summary: dict[str, Any]) -> bool:
    """Prints the table; whether the bar is kept in each scenario."""
    is_kept = True
    for title, rows in summary.items():
        print(f"\n{title:42} p50, s   p99, s")
        for who, row in rows.items():
            print(f"  {who:40} {row['p50_s']:6.2f}   {row['p99_s']:6.2f}")
        own = rows[f"{DEFAULT}, late"]
        is_within = max(own["over_best"].values()) <= BAR
        is_kept = is_kept and is_within
        for key, words in (("over_best", "late ones and the oracle"), ("over_all", "all")):
            p50, p99 = own[key].values()
            print(f"  {DEFAULT}, late, over the lowest of {words}: {p50:.3f}, {p99:.3f}")
        print(f"  its mean over the lowest of all: {own['mean_over_all']:.3f}")
        print(f"  {'within' if is_within else 'NOT within'} the bar")
    return is_kept


def prefixes_of(seeds: Sequence[int]) -> dict[str, dict[str, float]]:
    """Prints and returns the seconds and the cached share of each, means over the seeds."""
    print(f"\nprompts that begin alike: {PREFIXES}\n{'':42}   s   cached")
    found = {}
    for who in (DEFAULT, "prefix"):
        pairs = zip(*(prefixes(who, seed) for seed in seeds), strict=True)
        took_s, cached = (round(statistics.mean(values), 3) for values in pairs)
        found[who] = {"took_s": took_s, "cached": cached}
        print(f"  {who:40} {took_s:6.1f}   {cached:.3f}")
    return found


def stale_of(seeds: Sequence[int]) -> dict[str, dict[str, float]]:
    """Prints and returns p50 and p99 with stale figures, means over the seeds."""
    print(f"\nnot bound late, stale figures: {STALE}")
    found = {}
    for who in (DEFAULT, TWO_CHOICES, "weighted_score", "normalized_score"):
        pairs = zip(*(stale(who, seed) for seed in seeds), strict=True)
        p50_s, p99_s = (round(statistics.mean(values), 3) for values in pairs)
        found[who] = {"p50_s": p50_s, "p99_s": p99_s}
        print(f"  {who:40} {p50_s:6.2f}   {p99_s:6.2f}")
    for who, p50_s in BEFORE_S.items():
        print(f"  p50 of {who} over that of before: {found[who]['p50_s'] / p50_s:.3f}")
    print(f"  {'reproduced' if reproduces(found) else 'NOT reproduced'} within {WITHIN:.0%}")
    return found


def reproduces(found: dict[str, dict[str, float]]) -> bool:
    """The medians with stale figures are those of before."""
    return all(abs(found[who]["p50_s"] / p50_s - 1) <= WITHIN for who, p50_s in BEFORE_S.items())


def closed_of(seeds: Sequence[int]) -> dict[str, dict[str, Any]]:
    """Prints and returns the runs of the closed loop by slots, and their longest over the bar."""
    print(f"\nclosed loop: {CLOSED}, servers of speeds {CLOSED_SPEEDS}")
    found = {}
    for slots in CLOSED_SLOTS:
        title = f"{slots} slot{'s' * (slots > 1)}"
        runs = [closed_loop(slots, seed) for seed in seeds]
        of_bar = max(
            run["took_s"] / (CLOSED["bar"] * run["ideal_s"] + run["longest_s"]) for run in runs
        )
        found[title] = {"runs": runs, "of_bar": round(of_bar, 3)}
        print(f"  {title:40} {of_bar:.3f} of the bar")
    return found


def uses_all(found: dict[str, dict[str, Any]]) -> bool:
    """Each closed loop is within its bar."""
    return all(row["of_bar"] <= 1 for row in found.values())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--scenarios", default=",".join(SCENARIOS))
    parser.add_argument("--seeds", default=",".join(map(str, SEEDS)))
    parser.add_argument("--calls", type=int, default=CALLS)
    parser.add_argument("--parts", type=Path)
    parser.add_argument("--out", type=Path, default=record.RESULTS)
    args = parser.parse_args()
    seeds = [int(word) for word in args.seeds.split(",")]
    settings = {
        "load": LOAD,
        "servers": SERVERS,
        "slots": SLOTS,
        "calls": args.calls,
        "work_s": 1,
        "bar": BAR,
        "named": NAMED,
        "prefixes": PREFIXES,
        "stale": {**STALE, "calls": STALE_CALLS, "before_s": BEFORE_S, "within": WITHIN},
        "closed": {**CLOSED, "speeds": CLOSED_SPEEDS, "slots": CLOSED_SLOTS},
    }
    versions = record.own_versions("msgspec")
    made = record.Record("route", settings, seeds={"seeds": seeds}, versions=versions)
    runs = list[dict[str, Any]]()
    for name in args.scenarios.split(","):
        for slots in SLOTS:
            kept = args.parts / f"{name}-{slots}.json" if args.parts else None
            if kept is not None and kept.exists():
                runs += json.loads(kept.read_text())
                continue
            found = measured(name, slots, args.calls, seeds)
            runs += found
            if kept is not None:
                kept.parent.mkdir(parents=True, exist_ok=True)
                kept.write_text(json.dumps(found))
    summary: dict[str, Any] = {"scenarios": summary_of(runs)}
    is_kept = printed(summary["scenarios"])
    summary["prefixes"] = prefixes_of(seeds)
    summary["stale"] = stale_of(seeds)
    summary["closed"] = closed_of(seeds)
    is_kept = is_kept and reproduces(summary["stale"]) and uses_all(summary["closed"])
    summary["is_kept"] = is_kept
    if set(args.scenarios.split(",")) == set(SCENARIOS):
        print(made.write(args.out, summary, runs))
    return 0 if is_kept else 1


if __name__ == "__main__":
    sys.exit(main())
