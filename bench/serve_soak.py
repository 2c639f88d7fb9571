"""Does a gateway leak? Memory, blocks, open files and tasks of `redline serve`, each second.

    python bench/serve_soak.py [--minutes 30] [--load 0.5] [--keys 1000]

The gateway is in front of a simulated provider, and receives chats with different prompts from
1,000 tenants, a fifth of them streamed; 5 % of the clients disconnect before their answer. Half
load is half of the calls that the gateway can answer with a core of its own. The CPU time of a call
is measured first, so that neither the clients nor the provider limit the load. After a warm-up, a
line is fitted to each figure over time by least squares. The bars for the slopes, each with three
standard errors added:
  memory       2 MB per hour: a gateway that runs for a month grows by at most 1.5 GB.
  blocks       20,000 per hour: Python's allocations, of about 100 bytes each.
  descriptors  20 per hour, and the same for tasks: one that is lost every 3 minutes is found.
At the end, no call of any class or tenant may be in flight or waiting. Exits with status 1 if
anything leaks, or if the gateway was busy for less than LEAST_BUSY of the time at half load.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import gc
import hashlib
import json
import math
import os
import random
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, Self
from urllib.parse import urlsplit

import msgspec
import record

sys.path.insert(0, str(record.ROOT / "tests"))

from redline.calls import Endpoint
from redline.job import new_event_loop
from redline.serve.gateway import GatewaySettings, gateway_of
from redline.serve.keys import Key
from support.serve_gauges import cpu_s, descriptors, held, memory_mb

CANCELLED = 0.05
STREAMED = 0.2
LATENCY = "0.002-0.01"
# More than half load keeps in flight, also where the machine is busy.
CONNECTIONS = 128
# Of the time that half load would be, if each call took the gateway as long as in the first look.
LEAST_BUSY = 0.4
# Of the time, before which connections are made, caches fill and every tenant has asked.
WARM_UP = 0.25
STANDARD_ERRORS = 3
# Of an hour.
BARS = {"memory_mb": 2.0, "blocks": 20_000.0, "descriptors": 20.0, "tasks": 20.0}
Sample = dict[str, float]


class Plan(NamedTuple):
    """One soak. load: the part of what the gateway can do. seed: of prompts, tenants and leavers.

    per_s: calls a second; 0 for those of `load`. is_exact: samples have `allocated_kb`, too: what
    the process has allocated, without garbage.
    """

    lasts_s: float = 1800.0
    keys: int = 1000
    load: float = 0.5
    seed: int = 1
    every_s: float = 1.0
    warm_up_s: float = 10.0
    per_s: float = 0.0
    connections: int = CONNECTIONS
    is_exact: bool = False


# The gateway, in a process of its own.


class _MallInfo(ctypes.Structure):
    """See mallinfo(3)."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


def allocated_kb() -> float | None:
    """What malloc has handed out; all of Python's objects, too, with PYTHONMALLOC=malloc.

    None where the C library does not tell: glibc does since 2.33.
    """
    ask = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if ask is None:
        return None
    ask.restype = _MallInfo
    found = ask()
    return float(found.uordblks + found.hblkhd) / 1024


def serve(folder: Path, url: str, *, is_exact: bool) -> None:
    """Serves as `redline serve` does; each line on stdin asks for what only it can tell."""

    async def main() -> None:
        settings = GatewaySettings(
            endpoints=(Endpoint(base_url=url),),
            port=0,
            state=folder / "state",
            keys=folder / "keys.jsonl",
        )
        async with gateway_of(settings) as served:
            print(served.gateway.base_url, flush=True)
            while asked := await asyncio.to_thread(sys.stdin.readline):
                if asked == "collected\n" or is_exact:
                    gc.collect()
                found: dict[str, Any] = {
                    "blocks": sys.getallocatedblocks(),
                    "tasks": len(asyncio.all_tasks()),
                }
                if is_exact:
                    found["allocated_kb"] = allocated_kb()
                if asked == "collected\n":
                    # To walk them again for each sample would take long.
                    gc.freeze()
                if asked == "held\n":
                    found = held(msgspec.to_builtins(served.gateway.watch.snapshot()))
                print(json.dumps(found), flush=True)

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(main())


class Served:
    """That process, while it is entered."""

    def __init__(self, folder: Path, url: str, *, is_exact: bool = False) -> None:
        self._words = [sys.executable, __file__, "--serve", url, str(folder)]
        # Its connections to the endpoint stay open for the next calls.
        self._endpoint_port = urlsplit(url).port or 0
        self._env = dict(os.environ)
        if is_exact:
            self._words.append("--exact")
            # Without caches, whose free memory counts as allocated.
            self._env |= {"PYTHONMALLOC": "malloc", "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0"}

    def __enter__(self) -> Self:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            self._words, env=self._env, stdin=pipe, stdout=pipe, text=True
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        self.url = self._stdout.readline().strip()
        self.port = urlsplit(self.url).port
        return self

    def __exit__(self, *_: object) -> None:
        self._stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._stdout.close()

    def look(self, what: str = "sample") -> dict[str, float]:
        """A sample; `collected`: without garbage. `held`: what is in flight or waits."""
        self._stdin.write(f"{what}\n")
        self._stdin.flush()
        found: dict[str, float] = json.loads(self._stdout.readline())
        if what == "held":
            return found
        # From outside: /proc/net/tcp takes megabytes to read, which would be the gateway's.
        pid = self._process.pid
        return {
            **{"memory_mb": round(memory_mb(pid), 3), "cpu_s": cpu_s(pid)},
            **{"descriptors": descriptors(pid, self._endpoint_port), **found},
        }


# Its clients.


class Clients:
    """Clients at a pace, each with a connection. answers, left: calls answered, and left."""

    def __init__(self, port: int | None, secrets: Sequence[str], plan: Plan) -> None:
        self._port = port
        self._secrets = secrets
        self._count = plan.connections
        self._random = random.Random(plan.seed)
        self._number = 0
        self.answers = self.left = 0

    @property
    def calls(self) -> int:
        return self.answers + self.left

    async def run(self, lasts_s: float, per_s: float = math.inf) -> None:
        """Asks until the time is over, at most so many times a second."""
        ends_s = time.monotonic() + lasts_s
        await asyncio.gather(
            *(self._client(ends_s, per_s / self._count) for _ in range(self._count))
        )

    async def _client(self, ends_s: float, per_s: float) -> None:
        writer: asyncio.StreamWriter | None = None
        next_s = time.monotonic() + (self._random.random() / per_s if per_s < math.inf else 0.0)
        while max(next_s, time.monotonic()) < ends_s:
            await asyncio.sleep(max(0.0, next_s - time.monotonic()))
            next_s = max(next_s + 1 / per_s, time.monotonic() - 1)
            if writer is None:
                reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
            is_stream = self._random.random() < STREAMED
            writer.write(self._request(is_stream))
            if self._random.random() < CANCELLED:
                await asyncio.sleep(self._random.uniform(0, 0.03))
                writer.transport.abort()
                writer = None
                self.left += 1
                continue
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200"), head
            if is_stream:
                await reader.readuntil(b"data: [DONE]\n\n\r\n0\r\n\r\n")
            else:
                size = re.search(rb"content-length: (\d+)", head)
                assert size is not None
                await reader.readexactly(int(size[1]))
            self.answers += 1
        if writer is not None:
            writer.close()

    def _request(self, is_stream: bool) -> bytes:
        self._number += 1
        prompt = f"{self._number} {'the quick brown fox ' * self._random.randrange(1, 40)}"
        asked = {"model": "m", "messages": [{"role": "user", "content": prompt}]}
        body = json.dumps({**asked, "stream": is_stream, "max_tokens": 16}).encode()
        secret = self._secrets[self._number % len(self._secrets)]
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {secret}\r\n"
        )
        return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


def write_keys(path: Path, count: int) -> list[str]:
    """Keys of as many tenants, and what their clients send."""
    secrets, lines = [], []
    for number in range(count):
        secret = f"rl-{number:043}"
        secrets.append(secret)
        digest = hashlib.sha256(secret.encode()).hexdigest()
        key = Key(
            id=f"k-{number:08x}",
            tenant=f"tenant-{number}",
            sha256=digest,
            starts=secret[:7],
            created=datetime.now(UTC),
        )
        lines.append(msgspec.json.encode(key) + b"\n")
    path.write_bytes(b"".join(lines))
    path.chmod(0o600)
    return secrets


def soak(folder: Path, sim_url: str, plan: Plan) -> dict[str, Any]:
    """Samples, calls, and what is held in the end."""
    secrets = write_keys(folder / "keys.jsonl", plan.keys)
    with Served(folder, sim_url, is_exact=plan.is_exact) as served:
        clients = Clients(served.port, secrets, plan)
        # Every tenant has asked, and what is compiled, connected and learned has been, by then.
        while clients.calls < plan.keys:
            asyncio.run(clients.run(plan.warm_up_s / 2))
        per_s = plan.per_s or plan.load * _ceiling(served, clients, plan.warm_up_s / 2)
        samples: list[Sample] = []

        async def look(begun_s: float) -> None:
            while True:
                await asyncio.sleep(plan.every_s)
                sample = await asyncio.to_thread(served.look)
                samples.append({"at_s": round(time.monotonic() - begun_s, 3), **sample})

        async def main() -> None:
            looking = asyncio.create_task(look(time.monotonic()))
            await clients.run(plan.lasts_s, per_s)
            looking.cancel()
            await asyncio.wait([looking])

        before, called = served.look("collected"), clients.calls
        asyncio.run(main())
        calls, cpu = clients.calls - called, served.look()["cpu_s"] - before["cpu_s"]
        ends_s = time.monotonic() + 30
        while (left := served.look("held")) and time.monotonic() < ends_s:
            time.sleep(0.1)
        after = served.look("collected")
    return {
        **{"answers": clients.answers, "left": clients.left, "held": left},
        **{"per_s": round(calls / plan.lasts_s, 1), "asked_per_s": round(per_s, 1)},
        **{"busy": round(cpu / plan.lasts_s, 3)},
        **{"before": before, "after": after, "samples": samples},
    }


def _ceiling(served: Served, clients: Clients, lasts_s: float) -> float:
    """Calls a second that take the gateway the whole of a core."""
    called, before = clients.calls, served.look()["cpu_s"]
    asyncio.run(clients.run(lasts_s))
    return (clients.calls - called) / (served.look()["cpu_s"] - before)


# What the samples say.


def upper_bound(samples: Sequence[Sample], figure: str) -> float:
    """Of the slope in an hour: three standard errors above that by least squares."""
    hours = [sample["at_s"] / 3600 for sample in samples]
    values = [sample[figure] for sample in samples]
    slope, begin = statistics.linear_regression(hours, values)
    squares = sum((y - begin - slope * x) ** 2 for x, y in zip(hours, values, strict=True))
    spread = sum((x - statistics.fmean(hours)) ** 2 for x in hours)
    return slope + STANDARD_ERRORS * math.sqrt(squares / (len(samples) - 2) / spread)


def judge(samples: Sequence[Sample]) -> dict[str, dict[str, float | bool]]:
    """Of each figure: its range, the bound of its slope in an hour, and whether it leaks."""
    after_s = WARM_UP * samples[-1]["at_s"]
    warm = [sample for sample in samples if sample["at_s"] >= after_s]
    found: dict[str, dict[str, float | bool]] = {}
    for figure, bar in BARS.items():
        bound = upper_bound(warm, figure)
        values = [sample[figure] for sample in warm]
        found[figure] = {
            **{"first": values[0], "last": values[-1], "most": max(values)},
            **{"an_hour_at_most": round(bound, 3), "allowed": bar, "is_leak": bound > bar},
        }
    return found


def _pace(found: dict[str, Any]) -> str:
    per_s = f"{found['per_s']:,} calls a second of {found['asked_per_s']:,} that are half load"
    return f"{per_s}, the gateway busy for {found['busy']:.0%} of the time"


def parts() -> Iterator[tuple[str, int, Callable[[Path], dict[str, Any]]]]:
    """Name, seed and work of the one part of the campaign: 30 minutes."""

    def work(folder: Path) -> dict[str, Any]:
        plan = Plan()
        with record.serving(record.sim("--latency", LATENCY)) as sim:
            found = soak(folder, sim.url, plan)
        judged = judge(found.pop("samples"))
        found |= {"settings": plan._asdict(), "figures": judged}
        for figure, of in judged.items():
            print(f"  {figure:12} {of['first']} to {of['last']}, {of['an_hour_at_most']} an hour")
        leaks = [figure for figure, of in judged.items() if of["is_leak"]]
        assert not leaks, f"{', '.join(leaks)}: {found}"
        assert not found["held"], f"held in the end: {found}"
        print(f"  {_pace(found)}")
        assert found["busy"] >= LEAST_BUSY, f"that is no half load: {found}"
        return found

    yield "half load", 1, work


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--keys", type=int, default=1000)
    parser.add_argument("--load", type=float, default=0.5)
    parser.add_argument("--serve", nargs=2, metavar=("URL", "FOLDER"), help=argparse.SUPPRESS)
    parser.add_argument("--exact", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(Path(args.serve[1]), args.serve[0], is_exact=args.exact)
        return 0
    plan = Plan(lasts_s=60 * args.minutes, keys=args.keys, load=args.load)
    with record.scratch() as folder, record.serving(record.sim("--latency", LATENCY)) as sim:
        found = soak(folder, sim.url, plan)
    judged = judge(found["samples"])
    for figure, of in judged.items():
        verdict = "LEAK" if of["is_leak"] else "flat"
        print(
            f"{figure:12} {of['first']:9.1f} to {of['last']:9.1f}, at most "
            f"{of['an_hour_at_most']:+9.2f} an hour ({of['allowed']:g} allowed): {verdict}"
        )
    print(f"{found['answers']:,} answers, {found['left']:,} left; held in the end: {found['held']}")
    print(_pace(found))
    is_flat = not found["held"] and not any(of["is_leak"] for of in judged.values())
    return 0 if is_flat and found["busy"] >= LEAST_BUSY * args.load / 0.5 else 1


if __name__ == "__main__":
    sys.exit(main())
