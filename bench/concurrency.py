"""Adaptive concurrency in simulation: redline's knee search, AIMD, gradient and Vegas.

    python bench/concurrency.py [--seeds 5] [--servers PART;...] [--clients knee,aimd,...]

Every server is simulated event by event in virtual time. A client, which never runs out of rows,
keeps as many calls in flight as its limit allows. With each seed, all clients run against the same
server in turn. They are compared with the best fixed concurrency, which a sweep finds, and with the
knee: the lowest fixed concurrency with 98 % of the best throughput. Figures are measured in the
second half of a run.

The bar for redline, as a mean over the seeds and on every server that is not in `HARDER`: at least
95 % of the best throughput, a latency of at most 1.5 times that at the knee, less than 1 % refused,
and a limit whose coefficient of variation is below 15 % while the server does not change. The
servers in `HARDER` are shown as well, but have no bar. Exits with status 1 if the bar is missed.
"""

from __future__ import annotations

import argparse
import heapq
import math
import random
import statistics
import sys
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any, Protocol

import record

from redline.limits.discover import AdaptiveConcurrency

MOST = 1000
MEAN_TOKENS = 200
# A refusal is quick, and the slot is used again at once: no Retry-After slows the storm.
REFUSE_S = 0.03
LEVELS = (
    *(1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 28, 32, 36, 40, 48, 56, 64, 72, 80, 88, 96),
    *(100, 112, 128, 144, 160, 176, 192, 208, 224, 240, 256, 288, 320, 400, 512, 700, MOST),
)
MEANS = (
    *("work", "work_whole_run", "latency", "refused", "swing", "limit_mean"),
    *("reached_s", "recovered_s"),
)
BAR = {"work": 0.95, "latency": 1.5, "refused": 0.01, "swing": 0.15}


@dataclass(slots=True)
class Call:
    """One call on the wire; in_flight includes itself."""

    written_s: float
    in_flight: int
    tokens: int
    prompt_tokens: int
    noise: float


class Server(Protocol):
    def submit(self, call: Call, now_s: float) -> None: ...

    def next_s(self) -> float:
        """When `take` has something to do next; inf for never."""

    def take(self, now_s: float) -> list[tuple[Call, bool]]:
        """The calls that ended by now, and whether they were refused."""


class Pool:
    """`workers` that serve one call at a time, first come, first served; 25 ms a token."""

    token_s = 0.025

    def __init__(self, workers: int, changes: Sequence[tuple[float, int]] = ()) -> None:
        self.workers = workers
        self._changes = deque(changes)
        self._queue: deque[Call] = deque()
        self._busy: list[tuple[float, int, Call]] = []
        self._count = 0

    def submit(self, call: Call, now_s: float) -> None:
        self._queue.append(call)
        self._fill(now_s)

    def next_s(self) -> float:
        end_s = self._busy[0][0] if self._busy else math.inf
        return min(end_s, self._changes[0][0]) if self._changes else end_s

    def take(self, now_s: float) -> list[tuple[Call, bool]]:
        while self._changes and self._changes[0][0] <= now_s:
            self.workers = self._changes.popleft()[1]
        done = []
        while self._busy and self._busy[0][0] <= now_s:
            done.append((heapq.heappop(self._busy)[2], False))
        self._fill(now_s)
        return done

    def _fill(self, now_s: float) -> None:
        while self._queue and len(self._busy) < self.workers:
            call = self._queue.popleft()
            self._count += 1
            end_s = now_s + call.tokens * self.token_s * call.noise
            heapq.heappush(self._busy, (end_s, self._count, call))


class Spells(Pool):
    """Never queues; in spells of 15 s in the mean, what is written takes half as long again."""

    def __init__(self, seed: int) -> None:
        super().__init__(10**9)
        self._random = random.Random(seed)
        self._until_s = 0.0
        self._is_slow = True

    def submit(self, call: Call, now_s: float) -> None:
        while now_s >= self._until_s:
            self._until_s += self._random.expovariate(1 / 15)
            self._is_slow = not self._is_slow
        call.noise *= 1.5 if self._is_slow else 1.0
        super().submit(call, now_s)


class Batch:
    """Continuous batching as in vLLM: each step makes one token for every sequence of the batch.

    A step takes 20 ms up to `knee` sequences and `slope_s` more for each further one; `most` fit,
    the rest queue. 20 us a prompt token hold up the whole batch. `thrash`: from 128 sequences on
    each adds so much more of the step's time, as when the KV cache is preempted and recomputed.
    """

    flat_s = 0.02
    prefill_s = 2e-5
    thrash_from = 128

    def __init__(self, knee: int, slope_s: float, most: int = 256, thrash: float = 0.0) -> None:
        self.knee, self.slope_s, self.most, self.thrash = knee, slope_s, most, thrash
        # The clock counts steps, so that a sequence ends at a count known when it begins.
        self._steps = 0.0
        self._at_s = 0.0
        self._stalled_s = 0.0
        self._active: list[tuple[float, int, Call]] = []
        self._queue: deque[Call] = deque()
        self._count = 0

    def submit(self, call: Call, now_s: float) -> None:
        self._advance(now_s)
        self._queue.append(call)
        self._fill()

    def next_s(self) -> float:
        if not self._active:
            return math.inf
        steps = max(0.0, self._active[0][0] - self._steps)
        return self._at_s + self._stalled_s + steps * self._step_s()

    def take(self, now_s: float) -> list[tuple[Call, bool]]:
        self._advance(now_s)
        done = []
        while self._active and self._active[0][0] <= self._steps + 1e-6:
            done.append((heapq.heappop(self._active)[2], False))
        self._fill()
        return done

    def _step_s(self) -> float:
        size = len(self._active)
        step_s = self.flat_s + max(0, size - self.knee) * self.slope_s
        over = max(0, size - self.thrash_from) / self.thrash_from
        return step_s * (1 + self.thrash * over)

    def _advance(self, now_s: float) -> None:
        passed_s = now_s - self._at_s
        self._at_s = now_s
        stalled_s = min(passed_s, self._stalled_s)
        self._stalled_s -= stalled_s
        if self._active:
            self._steps += (passed_s - stalled_s) / self._step_s()

    def _fill(self) -> None:
        while self._queue and len(self._active) < self.most:
            call = self._queue.popleft()
            self._count += 1
            self._stalled_s += call.prompt_tokens * self.prefill_s
            heapq.heappush(self._active, (self._steps + call.tokens, self._count, call))


class Refusing:
    """A server behind a gate that answers 503 while `most` calls are inside."""

    def __init__(self, inner: Server, most: int) -> None:
        self._inner = inner
        self._most = most
        self._inside = 0
        self._refused: deque[tuple[float, Call]] = deque()

    def submit(self, call: Call, now_s: float) -> None:
        if self._inside >= self._most:
            self._refused.append((now_s + REFUSE_S, call))
        else:
            self._inside += 1
            self._inner.submit(call, now_s)

    def next_s(self) -> float:
        refused_s = self._refused[0][0] if self._refused else math.inf
        return min(refused_s, self._inner.next_s())

    def take(self, now_s: float) -> list[tuple[Call, bool]]:
        done = self._inner.take(now_s) if self._inner.next_s() <= now_s else []
        self._inside -= len(done)
        while self._refused and self._refused[0][0] <= now_s:
            done.append((self._refused.popleft()[1], True))
        return done


@dataclass(frozen=True)
class Scenario:
    """A server and what is asked of it.

    spread: sigma of the lognormal output length. noise: sigma of a lognormal factor of the
    latency. is_sized: the client is told the output tokens. changed_s: when the server becomes
    faster again or for the first time; recovery counts from there. still_s: in which part of the
    run it stays as it is, where that is not the second half.
    """

    make: Callable[[int], Server]
    duration_s: int = 600
    spread: float = 0.8
    noise: float = 0.0
    is_sized: bool = True
    most_level: int = MOST
    changed_s: int = 0
    still_s: tuple[int, int] | None = None


SCENARIOS: dict[str, Scenario] = {
    "batch of 256": Scenario(lambda _: Batch(64, 1e-4)),
    "batch, full at 96": Scenario(lambda _: Batch(96, 0.02 / 96, 512)),
    "batch, soft": Scenario(lambda _: Batch(0, 2e-4)),
    "batch, long tail": Scenario(lambda _: Batch(64, 1e-4), spread=1.2),
    "batch, thrashing": Scenario(lambda _: Batch(64, 5e-5, 512, thrash=0.8)),
    "pool of 4": Scenario(lambda _: Pool(4), duration_s=1200),
    "pool of 32": Scenario(lambda _: Pool(32)),
    "pool of 256": Scenario(lambda _: Pool(256)),
    "pool of 32, sizes unknown": Scenario(lambda _: Pool(32), is_sized=False),
    "503 above 100": Scenario(lambda _: Refusing(Batch(64, 1e-4), 100), most_level=100),
    "503 above 8": Scenario(lambda _: Refusing(Pool(64), 8), duration_s=1200, most_level=8),
    "halved from 450 to 600 s": Scenario(
        lambda _: Pool(128, [(450, 64), (600, 128)]),
        duration_s=900,
        changed_s=600,
        still_s=(225, 450),
    ),
    "doubled at 60 s": Scenario(lambda _: Pool(64, [(60, 128)]), changed_s=60),
    "noise, no queue": Scenario(lambda _: Pool(10**9), noise=0.8, is_sized=False),
    "slow spells, no queue": Scenario(Spells, noise=0.8, is_sized=False),
}
HARDER = ("slow spells, no queue",)


class Control(Protocol):
    limit: int

    def ended(
        self, *, now_s: float, latency_s: float, in_flight: int, is_overload: bool, size: int = 0
    ) -> None: ...


class Fixed:
    """The same concurrency throughout."""

    def __init__(self, limit: int) -> None:
        self.limit = limit

    def ended(self, **_: Any) -> None:
        return


class Peer:
    """What the peers share: windows, and one reaction to refusals a round trip.

    As in Netflix/concurrency-limits, a window lasts at least 1 s and 10 answers (WindowedLimit).
    Its latency is seconds per token where tokens are known, which is fairer to all of them.
    """

    first = 8

    def __init__(self) -> None:
        self.limit = self.first
        self._exact = float(self.first)
        self._cut_s = -math.inf
        self._window = (0.0, 0, 0.0, 0, 0)

    def ended(
        self, *, now_s: float, latency_s: float, in_flight: int, is_overload: bool, size: int = 0
    ) -> None:
        if is_overload:
            if now_s - latency_s >= self._cut_s:
                self._cut_s = now_s
                self._set(self._exact * 0.9)
            return
        began_s, answers, sum_s, work, used = self._window
        answers, sum_s = answers + 1, sum_s + latency_s
        work, used = work + (size or 1), used + in_flight
        if answers < 10 or now_s - began_s < 1.0:
            self._window = (began_s, answers, sum_s, work, used)
            return
        self._window = (now_s, 0, 0.0, 0, 0)
        if used / answers * 2 >= self._exact:
            self._set(self.next_limit(sum_s / work, answers))

    def next_limit(self, latency_s: float, answers: int) -> float:
        raise NotImplementedError

    def _set(self, limit: float) -> None:
        self._exact = min(max(limit, 1.0), float(MOST))
        self.limit = int(self._exact)


class Aimd(Peer):
    """One more for each answer; after the first refusal, one more for each life of a slot.

    The first is AIMDLimit as it comes, the second TCP's congestion avoidance (RFC 5681): going on
    with the first, half of all calls would be refused.
    """

    def next_limit(self, latency_s: float, answers: int) -> float:
        has_refused = self._cut_s > -math.inf
        return self._exact + (answers / self._exact if has_refused else answers)


class Gradient(Peer):
    """Gradient2Limit: the limit times long / short latency in [0.5, 1], plus room for a queue.

    Smoothing 0.2, tolerance 1.5 and a long mean over 600 windows are its defaults; the room is
    the root of the limit, as in its predecessor, since 4 would take the whole run to grow.
    """

    def __init__(self) -> None:
        super().__init__()
        self._long_s = 0.0
        self._windows = 0

    def next_limit(self, latency_s: float, answers: int) -> float:
        self._windows += 1
        share = 1 / self._windows if self._windows <= 10 else 2 / 601
        self._long_s += share * (latency_s - self._long_s)
        if self._long_s > 2 * latency_s:
            self._long_s *= 0.9
        gradient = min(1.0, max(0.5, 1.5 * self._long_s / latency_s))
        aim = self._exact * gradient + math.sqrt(self._exact)
        return 0.8 * self._exact + 0.2 * aim


class Vegas(Peer):
    """VegasLimit: limit * (1 - least / latency) calls queue; 3 to 6 * log10(limit) are wanted.

    The least latency is forgotten every 30 * limit answers, as there.
    """

    def __init__(self) -> None:
        super().__init__()
        self._least_s = math.inf
        self._answers = 0

    def next_limit(self, latency_s: float, answers: int) -> float:
        self._answers += answers
        if self._answers >= 30 * self._exact:
            self._answers, self._least_s = 0, math.inf
        if latency_s < self._least_s:
            self._least_s = latency_s
            # The library returns here; without growth a steady server would never be tried.
        queue = self._exact * (1 - self._least_s / latency_s)
        unit = max(1.0, math.log10(self._exact))
        if queue <= unit:
            return self._exact + 6 * unit
        if queue < 3 * unit:
            return self._exact + unit
        return self._exact - unit if queue > 6 * unit else self._exact


CLIENTS: dict[str, Callable[[], Control]] = {
    "knee": lambda: AdaptiveConcurrency(most=MOST),
    "aimd": Aimd,
    "gradient": Gradient,
    "vegas": Vegas,
}


@dataclass
class Trace:
    """What happened: answers as (time, latency, tokens), refusals, and the limit each second."""

    answers: list[tuple[float, float, int]] = field(default_factory=list)
    refused_s: list[float] = field(default_factory=list)
    limits: list[int] = field(default_factory=list)

    def work(self, from_s: float, to_s: float) -> float:
        """Tokens per second."""
        return sum(answer[2] for answer in self._between(from_s, to_s)) / (to_s - from_s)

    def latency_s(self, from_s: float, to_s: float) -> float:
        """Seconds of an answer of mean length."""
        inside = self._between(from_s, to_s)
        tokens = sum(answer[2] for answer in inside)
        return sum(a[1] for a in inside) / tokens * MEAN_TOKENS if tokens else math.inf

    def _between(self, from_s: float, to_s: float) -> list[tuple[float, float, int]]:
        begin = bisect_left(self.answers, from_s, key=itemgetter(0))
        return self.answers[begin : bisect_left(self.answers, to_s, key=itemgetter(0))]


def simulate(scenario: Scenario, control: Control, seed: int) -> Trace:
    """A whole run in virtual time."""
    server, trace = scenario.make(seed), Trace()
    rows = random.Random(seed)
    mean = math.log(MEAN_TOKENS) - scenario.spread**2 / 2
    now_s, in_flight = 0.0, 0
    while True:
        while in_flight < control.limit:
            in_flight += 1
            tokens = max(1, round(rows.lognormvariate(mean, scenario.spread)))
            prompt_tokens = 100 if rows.random() < 0.8 else 2000
            noise = rows.lognormvariate(-(scenario.noise**2) / 2, scenario.noise)
            server.submit(Call(now_s, in_flight, tokens, prompt_tokens, noise), now_s)
        now_s = server.next_s()
        while len(trace.limits) <= min(now_s, scenario.duration_s):
            trace.limits.append(control.limit)
        if now_s > scenario.duration_s:
            return trace
        for call, is_overload in server.take(now_s):
            in_flight -= 1
            latency_s = now_s - call.written_s
            if is_overload:
                trace.refused_s.append(now_s)
            else:
                trace.answers.append((now_s, latency_s, call.tokens))
            control.ended(
                now_s=now_s,
                latency_s=latency_s,
                in_flight=call.in_flight,
                is_overload=is_overload,
                size=call.tokens if scenario.is_sized else 0,
            )


def best_and_knee(scenario: Scenario) -> tuple[int, int]:
    """The fixed concurrency that does the most work, and the least that does 98 % of it."""
    half_s = scenario.duration_s / 2
    works = {}
    for level in LEVELS:
        if level <= scenario.most_level:
            works[level] = simulate(scenario, Fixed(level), 0).work(half_s, scenario.duration_s)
    best = max(works, key=works.__getitem__)
    return best, min(level for level in works if works[level] >= 0.98 * works[best])


def reached_s(trace: Trace, best: Trace, from_s: int, to_s: int) -> int:
    """Seconds from `from_s` until 20 s bring 90 % of the best work."""
    for start_s in range(from_s, to_s - 20, 5):
        if trace.work(start_s, start_s + 20) >= 0.9 * best.work(start_s, start_s + 20):
            return start_s - from_s
    return to_s - from_s


def judge(scenario: Scenario, trace: Trace, best: Trace, knee: Trace) -> dict[str, float]:
    """One run's figures; work and latency are ratios."""
    end_s = scenario.duration_s
    half_s = end_s // 2
    refused = sum(at_s >= half_s for at_s in trace.refused_s)
    answered = sum(answer[0] >= half_s for answer in trace.answers)
    begin_s, until_s = scenario.still_s or (half_s, end_s)
    limits = trace.limits[begin_s:until_s]
    return {
        "work": round(trace.work(half_s, end_s) / best.work(half_s, end_s), 4),
        "work_whole_run": round(trace.work(0, end_s) / best.work(0, end_s), 4),
        "latency": round(trace.latency_s(half_s, end_s) / knee.latency_s(half_s, end_s), 3),
        "refused": round(refused / max(1, refused + answered), 5),
        "swing": round(statistics.pstdev(limits) / statistics.fmean(limits), 4),
        "limit_mean": round(statistics.fmean(limits), 1),
        "reached_s": reached_s(trace, best, 0, end_s),
        "recovered_s": reached_s(trace, best, scenario.changed_s, end_s),
    }


def is_kept(figures: Mapping[str, float]) -> bool:
    """The bar at the top of this file."""
    return (
        figures["work"] >= BAR["work"]
        and figures["latency"] <= BAR["latency"]
        and figures["refused"] < BAR["refused"]
        and figures["swing"] < BAR["swing"]
    )


def summarize(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Means and the worst run, by server and client."""
    summary: dict[str, Any] = {}
    for run in runs:
        summary.setdefault(run["server"], {})[run["client"]] = {}
    for server, clients in summary.items():
        for client in clients:
            own = [r for r in runs if (r["server"], r["client"]) == (server, client)]
            figures = {key: round(statistics.fmean(run[key] for run in own), 4) for key in MEANS}
            figures["work_worst"] = min(run["work"] for run in own)
            figures["latency_worst"] = max(run["latency"] for run in own)
            figures["swing_worst"] = max(run["swing"] for run in own)
            figures["best"], figures["knee"] = own[0]["best"], own[0]["knee"]
            clients[client] = {**figures, "is_kept": is_kept(figures)}
    judged = {name: own for name, own in summary.items() if name not in HARDER}
    return {
        "servers": summary,
        "kept": {
            client: sum(own[client]["is_kept"] for own in judged.values() if client in own)
            for client in CLIENTS
        },
        "of": len(judged),
        "is_kept": all(own.get("knee", {}).get("is_kept", True) for own in judged.values()),
    }


def show(summary: Mapping[str, Any]) -> str:
    """The summary for a terminal."""
    lines = [
        f"{'server':26} {'client':9} {'work':>6} {'worst':>6} {'latency':>8} {'worst':>6} "
        f"{'refused':>8} {'swing':>6} {'limit':>6} {'knee':>5} {'90% at':>7} {'again':>6}"
    ]
    for server, clients in summary["servers"].items():
        for client, f in clients.items():
            lines.append(
                f"{server:26} {client:9} {f['work']:6.3f} {f['work_worst']:6.3f} "
                f"{f['latency']:8.2f} {f['latency_worst']:6.2f} {f['refused']:8.2%} "
                f"{f['swing']:6.1%} {f['limit_mean']:6.0f} {f['knee']:5} {f['reached_s']:6.0f}s "
                f"{f['recovered_s']:5.0f}s {'' if f['is_kept'] else 'x'}"
            )
    lines += [f"{client}: {kept} of {summary['of']}" for client, kept in summary["kept"].items()]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--servers", default="")
    parser.add_argument("--clients", default=",".join(CLIENTS))
    parser.add_argument("--results", type=Path, default=record.RESULTS)
    args = parser.parse_args()
    names = [name for name in SCENARIOS if any(w in name for w in args.servers.split(";"))]
    clients = args.clients.split(",")
    # The constants were tuned on the seeds below 20.
    seeds = list(range(101, 101 + args.seeds))
    settings = {
        "seeds": args.seeds,
        "most": MOST,
        "first": Peer.first,
        "mean_tokens": MEAN_TOKENS,
        "durations_s": {name: SCENARIOS[name].duration_s for name in names},
        "bar": BAR,
        "knee_share": 0.98,
    }
    result = record.Record("concurrency", settings, {"rows": seeds})
    runs: list[dict[str, Any]] = []
    for name in names:
        scenario = SCENARIOS[name]
        best, knee = best_and_knee(scenario)
        for number, seed in enumerate(seeds):
            at_best = simulate(scenario, Fixed(best), seed)
            at_knee = simulate(scenario, Fixed(knee), seed)
            turn = number % len(clients)
            for client in clients[turn:] + clients[:turn]:
                trace = simulate(scenario, CLIENTS[client](), seed)
                figures = judge(scenario, trace, at_best, at_knee)
                run = {"server": name, "client": client, "seed": seed, "best": best, "knee": knee}
                runs.append({**run, **figures})
        print(f"{name}: best at {best}, knee at {knee}", flush=True)
    runs.sort(key=lambda run: clients.index(run["client"]))
    summary = summarize(runs)
    path = result.write(args.results, summary, runs)
    print(show(summary), f"written: {path}", sep="\n")
    return 0 if summary["is_kept"] else 1


if __name__ == "__main__":
    sys.exit(main())
