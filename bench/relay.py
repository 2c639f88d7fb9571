"""The cost of forwarding a request of 1 KB, compared with a bare passthrough.

    python bench/relay.py [--rounds 21] [--seconds 3] [--connections 64]
    python bench/relay.py --instructions                                  without a clock

A front takes POST /v1/chat/completions with a body of 1 KB, forwards its bytes over pooled
connections, and passes the answer's bytes back. The upstream gives the same answer of 1 KB with its
usage each time. The fronts take turns in each round: a bare passthrough (a Protocol and httptools
on each side), redline's server, retry and backend without limits, and the same within limits of
requests and tokens that never bind. All run on uvloop, each in a process of its own, and wrk sends
the requests. Figures are CPU seconds of the front alone per 1,000 requests, and the ratio to the
bare passthrough of the same round. Ratios vary by a third between rounds, so many rounds are needed
for a stable median; they take about 4 minutes in all. Exits with status 1 if the median ratio
within limits is above 3.

With --instructions, callgrind counts the machine instructions of each front, as the difference
between two fixed numbers of requests: per request, and per event of a stream whose events arrive
one by one. It takes about four minutes and writes no record.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import callgrind
import record
from relay_processes import EVENTS, FRONTS, LIMITS

MOST_RATIO = 3.0
BARE, JUDGED = "bare", "limited"
BODY_BYTES = 1024
# Of how many requests, over how many connections; the first of each number is taken off.
WHOLE, STREAMED = (1_000, 3_000, 16), (4, 24, 1)
PROCESSES = Path(__file__).with_name("relay_processes.py")


class Measured(NamedTuple):
    """One run of wrk against one front."""

    front: str
    requests: int
    cpu_s: float

    @property
    def cpu_s_per_1000(self) -> float:
        return 1000 * self.cpu_s / self.requests


def command(role: str, upstream: str = "") -> tuple[str, ...]:
    return (sys.executable, str(PROCESSES), role, upstream)


def asked() -> str:
    """A body of BODY_BYTES."""
    message = {"role": "user", "content": ""}
    size = len(json.dumps({"model": "m", "messages": [message]}))
    message["content"] = "Please sort this ticket. ".ljust(BODY_BYTES - size, "x")
    return json.dumps({"model": "m", "messages": [message]})


def write_script(folder: Path) -> Path:
    """A script for wrk that asks with such a body."""
    path = folder / "ask.lua"
    path.write_text(
        f'wrk.method = "POST"\nwrk.body = {json.dumps(asked())}\n'
        'wrk.headers["Content-Type"] = "application/json"\n'
    )
    return path


def ask(url: str, script: Path, seconds: int, connections: int) -> int:
    """How many requests wrk has had answered. Raises RuntimeError for any answer but a 200."""
    flags = ["-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", "30s", "-s", str(script)]
    words = ["wrk", *flags, f"{url}/chat/completions"]
    shown = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    found = re.search(r"(\d+) requests in", shown)
    if found is None or "Non-2xx" in shown or "Socket errors" in shown:
        raise RuntimeError(shown)
    return int(found[1])


def measure(rounds: int, seconds: int, connections: int) -> list[Measured]:
    """All runs, in turn."""
    found = []
    with record.scratch() as folder, record.serving(command("upstream")) as upstream:
        script = write_script(folder)
        servers = {front: record.Server(command(front, upstream.url)) for front in FRONTS}
        try:
            # The first round warms up, unless there is only one, to see that it works.
            for number in range(-1 if rounds > 1 else 0, rounds):
                # The order changes, so that none is always the first.
                for front in FRONTS[:: 1 if number % 2 else -1]:
                    server = servers[front]
                    before_s = server.cpu_s()
                    length_s = seconds if number >= 0 else 1
                    try:
                        requests = ask(server.url, script, length_s, connections)
                    except RuntimeError as error:
                        raise RuntimeError(f"{front}: {error}") from error
                    if number >= 0:
                        cpu_s = round(server.cpu_s() - before_s, 3)
                        found.append(Measured(front, requests, cpu_s))
        finally:
            for server in servers.values():
                server.close()
    return found


async def ask_exactly(url: str, requests: int, connections: int) -> None:
    """Has that many requests answered. Raises AssertionError for any answer but a 200."""
    host, _, port = url.removeprefix("http://").removesuffix("/v1").partition(":")
    body = asked().encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}"
    left = iter(range(requests))

    async def ask_on() -> None:
        reader, writer = await asyncio.open_connection(host, int(port))
        for _ in left:
            writer.write(b"%b\r\n\r\n%b" % (head.encode(), body))
            answer = await reader.readuntil(b"\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 200 "), answer
            length = re.search(rb"(?i)content-length: (\d+)", answer)
            if length is None:
                await reader.readuntil(b"0\r\n\r\n")
            else:
                await reader.readexactly(int(length[1]))
        writer.close()

    await asyncio.gather(*(ask_on() for _ in range(connections)))


def instructions(front: str, upstream: str, kind: tuple[int, int, int]) -> float:
    """Of one request of this kind."""
    few, many, connections = kind
    found = []
    # What it imports is compiled by now.
    record.Server(command(front, upstream)).close()
    with record.scratch() as folder:
        path = folder / "callgrind.out"
        for requests in (few, many):
            server = record.Server((*callgrind.under(path), *command(front, upstream)))
            try:
                asyncio.run(ask_exactly(server.url, requests, connections))
            finally:
                server.close()
            found.append(callgrind.counts(path).total())
    return (found[1] - found[0]) / (many - few)


def count_instructions() -> None:
    """Prints those of each front."""
    for suffix, kind, unit, of in (
        ("", WHOLE, "request", 1),
        ("-streamed", STREAMED, "event of a stream", EVENTS),
    ):
        with record.serving(command(f"upstream{suffix}")) as upstream:
            bare = 0.0
            for front in FRONTS:
                own = instructions(f"{front}{suffix}", upstream.url, kind) / of
                bare = bare or own
                times = f"{own / bare:.2f} times the bare passthrough"
                print(f"{front:8} {own:,.0f} instructions per {unit}, {times}", flush=True)


def summarize(runs: list[Measured]) -> dict[str, Any]:
    """Medians and extremes; a ratio is that to the bare front of the same round."""
    each = {front: [run for run in runs if run.front == front] for front in FRONTS}
    summary: dict[str, Any] = {}
    for front, own in each.items():
        ratios = [
            run.cpu_s_per_1000 / bare.cpu_s_per_1000
            for run, bare in zip(own, each[BARE], strict=True)
        ]
        summary[front] = {
            "cpu_s_per_1000": round(statistics.median(run.cpu_s_per_1000 for run in own), 4),
            "ratio": round(statistics.median(ratios), 2),
            "ratio_min": round(min(ratios), 2),
            "ratio_max": round(max(ratios), 2),
        }
    return summary


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--seconds", type=int, default=3)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--results", type=Path, default=record.RESULTS)
    parser.add_argument("--instructions", action="store_true", help="counted by callgrind")
    given = parser.parse_args()
    if given.instructions:
        if not callgrind.is_installed():
            print(callgrind.INSTALL, file=sys.stderr)
            return 2
        count_instructions()
        return 0
    if shutil.which("wrk") is None:
        print("wrk is not installed: apt-get install wrk", file=sys.stderr)
        return 2
    settings = {
        "rounds": given.rounds,
        "seconds": given.seconds,
        "connections": given.connections,
        "body_bytes": BODY_BYTES,
        "most_ratio": MOST_RATIO,
        "limits": [str(rate) for rate in (LIMITS.requests, LIMITS.tokens)],
    }
    result = record.Record("relay", settings)
    result.versions.update(record.own_versions("httptools", "uvloop", "msgspec"))
    runs = measure(given.rounds, given.seconds, given.connections)
    summary = summarize(runs)
    for front, one in summary.items():
        print(
            f"{front:8} {one['cpu_s_per_1000']:.4f} CPU s per 1,000 requests, {one['ratio']:.2f} "
            f"times the bare passthrough ({one['ratio_min']:.2f} to {one['ratio_max']:.2f})"
        )
    path = result.write(given.results, summary, [run._asdict() for run in runs])
    print(f"written: {path}")
    return int(summary[JUDGED]["ratio"] > MOST_RATIO)


if __name__ == "__main__":
    raise SystemExit(main())
