"""Servers with real limiters in processes of their own, and redline's calls against them."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redline.calls import Call, Endpoint, HttpBackend, Request
from redline.limits import Limits, Rate

SERVER = Path(__file__).with_name("opponent_server.py")
# The profile that states each server's own algorithm has the server's name.
KINDS = ("fixed", "moving", "counter", "bucket")
# The allowance: 5 ms above the jitter in the guard, then 1 % and 20 ms in all.
SPARE_GUARD_S, SHARE, ALLOWANCE_S = 0.005, 0.01, 0.02
_BURSTS = ("fixed", "moving", "bucket")
Sends = list[tuple[int, float]]  # the call's number, and the time of the write


@dataclass(frozen=True)
class Setting:
    """What a server is: its kind, its limit, and the latency behind it."""

    kind: str
    rate: Rate
    latency_s: tuple[float, float] = (0.01, 0.01)
    seed: int = 1

    def optimum_s(self, calls: int) -> float:
        """The earliest end of `calls` that never has more than the count in any window, in s.

        A bucket allows more than that at first, so that a client made for it may be earlier.
        """
        return (calls - 1) // self.rate.count * self.rate.window_s

    def bar_s(self, profile: str, calls: int, jitter_s: float) -> float:
        """The latest that the last of `calls` may be sent after the first one, in seconds."""
        span_s = self.rate.window_s + jitter_s + SPARE_GUARD_S
        if profile in _BURSTS:
            last_s = (calls - 1) // self.rate.count * span_s
        else:
            last_s = (calls - 1) * span_s / self.rate.count
        return last_s * (1 + SHARE) + ALLOWANCE_S

    def command(self, life_s: int) -> list[str]:
        """The server's command line; it ends by itself after life_s."""
        words: dict[str, Any] = {
            "count": self.rate.count,
            "window-s": int(self.rate.window_s),
            "seed": self.seed,
            "life-s": life_s,
        }
        flags = [word for name, value in words.items() for word in (f"--{name}", str(value))]
        latencies_ms = [str(1000 * latency_s) for latency_s in self.latency_s]
        return [sys.executable, str(SERVER), self.kind, *flags, "--latency-ms", *latencies_ms]


class Opponent:
    """A running server."""

    def __init__(self, setting: Setting, base_url: str) -> None:
        self.setting = setting
        self.base_url = base_url
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def begin(self, jitter_s: float, seed: int) -> str:
        """A run's name, under which its limiter has seen nothing."""
        name: str = self._get(f"/begin?jitter_ms={1000 * jitter_s}&seed={seed}")
        return name

    def stats(self, run: str) -> dict[str, list[tuple[int, float, float]]]:
        """`admitted` and `rejected`: the call's number, its entry to the limiter and the answer."""
        found: dict[str, list[tuple[int, float, float]]] = self._get(f"/stats?run={run}")
        return found

    def warm_up(self) -> None:
        """A server's first requests are slow, which no guard need cover."""
        for number in range(5):
            self._get(f"/chat?run={self.begin(0.0, number)}&n=0")

    def _get(self, path: str) -> Any:
        with self._opener.open(self.base_url.removesuffix("/v1") + path, timeout=20) as reply:
            return json.load(reply)


@contextmanager
def opponent(setting: Setting, *, life_s: int = 600) -> Iterator[Opponent]:
    """A server that runs inside the block, or for life_s at most."""
    process = subprocess.Popen(setting.command(life_s), stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        base_url = process.stdout.readline().strip()
        assert base_url.startswith("http://127.0.0.1:"), f"no URL from {setting}"
        server = Opponent(setting, base_url)
        server.warm_up()
        yield server
    finally:
        process.terminate()
        process.wait(timeout=20)
        if process.stdout is not None:
            process.stdout.close()


@dataclass(frozen=True)
class Trial:
    """What came of a run of calls; times in seconds.

    last_send_s: from the first write to the last, by the client's stamps. makespan_s: from the
    first entry to the server's limiter to the last admitted one, by the server's. delay_s: the
    shortest time from a write to its entry and the longest one to the limiter's answer, between
    which it has looked at its clock: the jitter that there may have been. guard_s: at the end, None
    if nothing states it.
    """

    admitted: int
    rejected: int
    last_send_s: float
    makespan_s: float
    delay_s: tuple[float, float]
    guard_s: float | None

    @property
    def jitter_s(self) -> float:
        """By how much the delays differed."""
        return self.delay_s[1] - self.delay_s[0]


def judged(server: Opponent, run: str, sends: Sends, guard_s: float | None = None) -> Trial:
    """The trial that these writes were, by the server's own count."""
    stats = server.stats(run)
    entries = [*stats["admitted"], *stats["rejected"]]
    # A call's writes follow each other, so that sorting pairs each with its entry.
    pairs = zip(sorted(sends), sorted(map(tuple, entries)), strict=True)
    spans_s = [(entry_s - at_s, left_s - at_s) for (_, at_s), (_, entry_s, left_s) in pairs]
    return Trial(
        len(stats["admitted"]),
        len(stats["rejected"]),
        max(at_s for _, at_s in sends) - min(at_s for _, at_s in sends),
        max(at_s for _, at_s, _ in stats["admitted"]) - min(at_s for _, at_s, _ in entries),
        (min(entry_s for entry_s, _ in spans_s), max(left_s for _, left_s in spans_s)),
        guard_s,
    )


class _Stamping(HttpBackend):
    """Keeps the number and the stamp of every write."""

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint)
        self.sends: Sends = []

    def wrote(self, attempt: Any, sent_s: float) -> None:
        super().wrote(attempt, sent_s)
        self.sends.append((int(attempt.request.url.rpartition("=")[2]), sent_s))


async def send_all(
    base_url: str, run: str, limits: Limits, calls: int, *, is_repeated: bool = False
) -> tuple[Sends, float]:
    """Every write of `calls` begun at once through redline's own client, and its last guard.

    is_repeated: a call that was answered 429 is made again at once, until it is admitted.
    """
    endpoint = Endpoint(base_url=base_url, limits=limits, proxy="")
    backend = _Stamping(endpoint)

    async def call(number: int) -> None:
        request = Request(method="GET", url=f"/chat?run={run}&n={number}")
        outcome = await backend.send(request, Call())
        while is_repeated and outcome.status != "succeeded":
            outcome = await backend.send(request, Call())

    try:
        await asyncio.gather(*map(call, range(calls)))
        return backend.sends, backend.limiter.guard_s
    finally:
        await backend.aclose()


async def try_redline(
    server: Opponent,
    profile: str,
    calls: int,
    *,
    jitter_s: float = 0.0,
    seed: int = 1,
    stated: Rate | None = None,
) -> Trial:
    """`calls` through redline, each tried once. stated: the limit, where not the server's own."""
    run = await asyncio.to_thread(server.begin, jitter_s, seed)
    limits = Limits(requests=stated or server.setting.rate, profile=profile)
    sends, guard_s = await send_all(server.base_url, run, limits, calls)
    return await asyncio.to_thread(judged, server, run, sends, guard_s)
