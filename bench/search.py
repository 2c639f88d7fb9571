"""How well `--rate auto` uses a limit that no header states, in virtual time.

    python bench/search.py [--seeds 1 2 3] [--minutes 20] [--latency 0.05 0.3] [--jitter 0.05]

A client that always has calls to send searches for the limit of a server whose replies only accept
or reject. Each call reaches the server's limiter after a delay of up to --jitter, and its reply
arrives after a time drawn from --latency. Such slow replies prove nothing about the delay, so the
limiter keeps its initial guard; with even sending, the rate cannot exceed N / (W + jitter). In the
second half of the run, at least 95 % of what the server could have admitted must be admitted, and
at most 0.1 % of the calls may be refused. A bucket may admit more than 100 %, from its saved
tokens. Exits with status 1 if a bar is missed.

A limit with fewer than 3,000 calls in half of a run cannot be judged: one refusal is too much.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import math
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import record

from redline.limits.discover import RateSearch
from redline.limits.rule import PRIOR_S, Rate, Window, parse_rate
from redline.sim import FixedWindow, MovingWindow, SlidingCounter, TokenBucket

SERVERS: dict[str, Callable[[Rate], Any]] = {
    "fixed": FixedWindow,
    "moving": MovingWindow,
    "bucket": TokenBucket,
    "counter": SlidingCounter,
}
LEAST_USED, MOST_REJECTED = 0.95, 0.001
# Float noise of sums of waits.
_SLACK_S = 1e-6


class Unlimited:
    """A server that admits everything."""

    def wait_s(self, amount: int, now_s: float) -> float:
        return 0.0

    def take(self, amount: int, now_s: float) -> None:
        return


@dataclass
class Case:
    """One run. Times are seconds.

    server: when calls reach it. changes: (time, the server from then on). latency_s: least and
    most. is_wanted: whether the caller has a call to send at a time. is_told: refusals say when to
    come back, and the caller waits for it.
    """

    server: Any
    seed: int = 1
    lasts_s: float = 600.0
    jitter_s: float = 0.05
    guard_s: float = PRIOR_S
    latency_s: tuple[float, float] = (0.05, 0.3)
    slots: int = 1000
    changes: Sequence[tuple[float, Any]] = ()
    is_wanted: Callable[[float], bool] = lambda now_s: True
    is_told: bool = False


@dataclass
class Seen:
    """What the server made of a run: (arrival, refused) in order; when the rate was found."""

    calls: list[tuple[float, bool]] = field(default_factory=list)
    found_s: float | None = None

    def between(self, from_s: float, to_s: float) -> tuple[int, int]:
        """Calls that were admitted and refused in [from_s, to_s)."""
        part = [refused for at_s, refused in self.calls if from_s <= at_s < to_s]
        return part.count(False), part.count(True)

    def share(self, rate: Rate, from_s: float, to_s: float) -> tuple[float, float]:
        """Admitted over what `rate` allows, and refused over all, in [from_s, to_s)."""
        admitted, refused = self.between(from_s, to_s)
        allowed = (to_s - from_s) * rate.count / rate.window_s
        return admitted / allowed, refused / max(1, admitted + refused)


class Driver:
    """A client that keeps the rates of `search`, and the server, in virtual time."""

    def __init__(self, case: Case, search: Any) -> None:
        self.case = case
        self.search = search
        self.seen = Seen()
        self._random = random.Random(case.seed)
        # Servers that count by the clock's own windows are met at any phase.
        self._phase_s = self._random.uniform(0, 100)
        self._server = case.server
        self._numbers = itertools.count()
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._in_flight = 0
        self._rates: tuple[Rate, ...] = ()
        self._windows: list[Window] = []
        self._last_s: float | None = None
        self._parked_s = -math.inf
        for at_s, server in case.changes:
            self._at(at_s, lambda now_s, server=server: self._replace(server))

    def run(self) -> Seen:
        """The whole case."""
        now_s = 0.0
        self._follow()
        while now_s < self.case.lasts_s:
            wait_s = self._wait_s(now_s)
            if wait_s <= 0:
                self._send(now_s)
                # A server without a limit is asked by a client whose calls take time, too.
                now_s += 0.0 if self._windows else 1e-4
                continue
            now_s = min(now_s + wait_s, self._events[0][0] if self._events else math.inf)
            while self._events and self._events[0][0] <= now_s:
                at_s, _, event = heapq.heappop(self._events)
                event(at_s)
        return self.seen

    def _at(self, when_s: float, event: Callable[[float], None]) -> None:
        heapq.heappush(self._events, (when_s, next(self._numbers), event))

    def _replace(self, server: Any) -> None:
        self._server = server

    def _wait_s(self, now_s: float) -> float:
        if self._in_flight >= self.case.slots:
            return math.inf
        if not self.case.is_wanted(now_s):
            return 0.1
        wait_s = max((window.wait_s(1, now_s) for window in self._windows), default=0.0)
        return max(wait_s, self._parked_s - now_s)

    def _send(self, sent_s: float) -> None:
        for window in self._windows:
            window.sent(window.book(1, sent_s), sent_s)
        self.search.sent(sent_s)
        self._last_s = sent_s
        self._in_flight += 1
        latency_s = self._random.uniform(*self.case.latency_s)
        late_s = self._random.uniform(0, self.case.jitter_s)

        def arrive(now_s: float) -> None:
            at_s = now_s + self._phase_s
            wait_s = self._server.wait_s(1, at_s)
            is_limited = wait_s > _SLACK_S
            if not is_limited:
                self._server.take(1, at_s)
            self.seen.calls.append((now_s, is_limited))
            back_s = max(now_s, sent_s + latency_s)
            told_s = wait_s if is_limited and self.case.is_told else None
            self._at(back_s, lambda when_s: self._hear(when_s, sent_s, is_limited, told_s))

        self._at(sent_s + late_s, arrive)

    def _hear(self, now_s: float, sent_s: float, is_limited: bool, told_s: float | None) -> None:
        self._in_flight -= 1
        if told_s is not None:
            self._parked_s = max(self._parked_s, now_s + told_s)
        if self.search.answered(now_s, sent_s, is_limited, told_s):
            self._follow()
        if self.seen.found_s is None and self.search.found is not None:
            self.seen.found_s = now_s

    def _follow(self) -> None:
        """Takes over the rates of the search. The pace goes on from the last send."""
        rates = self.search.rates()
        if rates == self._rates:
            return
        self._rates = rates
        self._windows = []
        for rate in rates:
            window = Window(rate, guard_s=self.case.guard_s)
            if self._last_s is not None:
                window.recall([(self._last_s, 1)], self._last_s)
            self._windows.append(window)


@dataclass(frozen=True)
class Row:
    """One line of the table. found_s: None where the search has not ended."""

    server: str
    rate: str
    seed: int
    used: float
    rejected: float
    rejections: int
    found_s: float | None
    found: str
    has_passed: bool


def judge(server: str, rate: Rate, seed: int, given: argparse.Namespace) -> Row:
    """The figures of one case."""
    search = RateSearch()
    case = Case(
        SERVERS[server](rate),
        seed,
        60 * given.minutes,
        jitter_s=given.jitter,
        latency_s=tuple(given.latency),
    )
    seen = Driver(case, search).run()
    used, rejected = seen.share(rate, case.lasts_s / 2, case.lasts_s)
    return Row(
        server,
        str(rate),
        seed,
        round(used, 4),
        round(rejected, 5),
        seen.between(0, math.inf)[1],
        None if seen.found_s is None else round(seen.found_s, 1),
        str(search.found or "-"),
        used >= LEAST_USED and rejected <= MOST_REJECTED,
    )


def summarize(rows: Sequence[Row]) -> dict[str, Any]:
    """By server and limit: the least used, the most rejected, and when the slowest was found."""
    lines = []
    for server, rate in dict.fromkeys((row.server, row.rate) for row in rows):
        own = [row for row in rows if (row.server, row.rate) == (server, rate)]
        found_s = [row.found_s for row in own if row.found_s is not None]
        lines.append(
            {
                "server": server,
                "rate": rate,
                "runs": len(own),
                "used_min": min(row.used for row in own),
                "rejected_max": max(row.rejected for row in own),
                "found_s_max": max(found_s) if len(found_s) == len(own) else None,
                "passed": sum(row.has_passed for row in own),
            }
        )
    return {"lines": lines, "has_passed": all(row.has_passed for row in rows)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--servers", nargs="+", choices=SERVERS, default=[*SERVERS][:3])
    parser.add_argument("--rates", nargs="+", default=["20/1s", "600/60s"])
    parser.add_argument("--latency", type=float, nargs=2, default=(0.05, 0.3), metavar="S")
    parser.add_argument("--jitter", type=float, default=0.05, metavar="S")
    parser.add_argument("--results", type=Path, default=record.RESULTS)
    given = parser.parse_args()
    settings = {
        "minutes": given.minutes,
        "latency_s": list(given.latency),
        "jitter_s": given.jitter,
        "guard_s": PRIOR_S,
        "bar": {"used": LEAST_USED, "rejected": MOST_REJECTED},
    }
    result = record.Record("search", settings, {"verdicts": given.seeds})
    print("server   rate        seed    used  rejected  in all  per N  found after")
    rows = []
    for server, text, seed in itertools.product(given.servers, given.rates, given.seeds):
        rate = parse_rate(text)
        row = judge(server, rate, seed, given)
        rows.append(row)
        after = "never" if row.found_s is None else f"{row.found_s:7.1f} s  {row.found}"
        print(
            f"{row.server:8} {row.rate:11} {seed:4} {row.used:7.2%} {row.rejected:9.3%} "
            f"{row.rejections:7} {row.rejections / rate.count:6.2f}  {after}"
            f"{'' if row.has_passed else '  MISSED'}",
            flush=True,
        )
    summary = summarize(rows)
    path = result.write(given.results, summary, [asdict(row) for row in rows])
    print(f"written: {path}")
    return 0 if summary["has_passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
