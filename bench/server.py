"""The HTTP server of `redline sim` and that of 4294e90, under wrk and with idle connections.

    python bench/server.py [--rounds 5] [--seconds 3] [--connections 64] [--idle 10000]

Both simulated providers answer in turn, each in a process of its own, without latency: whole chat
completions, streams, and GET /healthz, which measures the server alone. The client is wrk, a
package of Debian. Figures are requests per CPU second of the server, so other load affects both
alike. After that, each keeps `idle` connections open that have sent one request. Exits with status
1 if a bar is missed: 2 times the requests of each kind, and 100 MB for all idle connections.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import shutil
import socket
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import memory
import record

LEAST_RATIO = 2.0
MOST_IDLE_MB = 100.0
KINDS = ("before", "own")
_BODY = {"model": "m", "messages": [{"role": "user", "content": "x" * 1000}]}
# What is asked: path and body.
LOADS: dict[str, tuple[str, dict[str, Any] | None]] = {
    "chat": ("/v1/chat/completions", _BODY),
    "stream": ("/v1/chat/completions", {**_BODY, "stream": True}),
    "healthz": ("/healthz", None),
}


class Measured(NamedTuple):
    """One run of wrk."""

    load: str
    kind: str
    requests: int
    wall_s: float
    cpu_s: float

    @property
    def per_cpu_s(self) -> float:
        return self.requests / self.cpu_s


def script(folder: Path, body: dict[str, Any] | None) -> list[str]:
    """wrk's flags for a request with this body."""
    if body is None:
        return []
    path = folder / "ask.lua"
    text = json.dumps(json.dumps(body))
    lines = ('wrk.method = "POST"', f"wrk.body = {text}", 'wrk.headers["X-A"] = "b"')
    path.write_text("\n".join((*lines, 'wrk.headers["Content-Type"] = "application/json"\n')))
    return ["-s", str(path)]


def ask(
    server: record.Server, folder: Path, load: str, kind: str, seconds: int, connections: int
) -> Measured:
    """One run of wrk against a server. Raises RuntimeError for any answer that is no 200."""
    path, body = LOADS[load]
    url = server.url.removesuffix("/v1") + path
    flags = ["-t1", f"-c{connections}", f"-d{seconds}s", *script(folder, body)]
    cpu_s = server.cpu_s()
    done = subprocess.run(["wrk", *flags, url], capture_output=True, text=True, check=True)
    cpu_s = server.cpu_s() - cpu_s
    if "Non-2xx" in done.stdout or "Socket errors" in done.stdout:
        raise RuntimeError(f"{kind}: {done.stdout}")
    found = re.search(r"(\d+) requests in ([\d.]+)s", done.stdout)
    assert found is not None, done.stdout
    return Measured(load, kind, int(found[1]), float(found[2]), cpu_s)


def idle(server: record.Server, count: int) -> dict[str, float]:
    """Resident MiB before and with that many connections, each of which has asked once."""
    host, _, port = server.url.removeprefix("http://").removesuffix("/v1").partition(":")
    before = memory.resident_mb(server.pid)
    held: list[socket.socket] = []
    try:
        for _ in range(count):
            client = socket.create_connection((host, int(port)), timeout=10)
            held.append(client)
            client.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            assert client.recv(4096).startswith(b"HTTP/1.1 200"), "an answer that is no 200"
        during = memory.resident_mb(server.pid)
    finally:
        for client in held:
            client.close()
    assert before is not None
    assert during is not None
    return {"before_mb": round(before, 1), "with_mb": round(during, 1)}


def commands() -> dict[str, tuple[str, ...]]:
    """How each server is started."""
    return {"before": record.sim(), "own": (*record.REDLINE, "sim", "--port", "0")}


def measure(rounds: int, seconds: int, connections: int) -> list[Measured]:
    """All runs, in turn."""
    found = []
    with record.scratch() as folder:
        servers = {kind: record.Server(command) for kind, command in commands().items()}
        try:
            # The first round warms up, unless there is only one, to see that it works.
            for number in range(-1 if rounds > 1 else 0, rounds):
                for load in LOADS:
                    # The order changes, so that neither is always the first.
                    for kind in KINDS[:: 1 if number % 2 else -1]:
                        length_s = seconds if number >= 0 else 1
                        one = ask(servers[kind], folder, load, kind, length_s, connections)
                        if number >= 0:
                            found.append(one)
        finally:
            for server in servers.values():
                server.close()
    return found


def summary(found: list[Measured], held: dict[str, dict[str, float]]) -> dict[str, Any]:
    """Medians; the ratio is that of the pairs."""
    made: dict[str, Any] = {}
    for load in LOADS:
        each = {k: [m for m in found if (m.load, m.kind) == (load, k)] for k in KINDS}
        pairs = zip(each["before"], each["own"], strict=True)
        made[load] = {
            "ratio": round(statistics.median(b.per_cpu_s / a.per_cpu_s for a, b in pairs), 2)
        }
        for kind, runs in each.items():
            median = statistics.median(run.per_cpu_s for run in runs)
            made[load][f"{kind}_per_cpu_s"] = round(median)
            made[load][f"{kind}_us"] = round(1e6 / median, 1)
    return {**made, "idle": held}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=3)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--idle", type=int, default=10_000)
    parser.add_argument("--results", type=Path, default=record.RESULTS)
    options = parser.parse_args()
    if shutil.which("wrk") is None:
        print("wrk is not installed: apt-get install wrk", file=sys.stderr)
        return 2
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))
    settings = {name: str(value) for name, value in vars(options).items() if name != "results"}
    result = record.Record("server", settings)
    result.versions.update(record.own_versions("httptools", "uvloop", "aiohttp"))
    found = measure(options.rounds, options.seconds, options.connections)
    held = {}
    for kind, command in commands().items():
        with record.serving(command) as server:
            held[kind] = idle(server, options.idle)
    made = summary(found, held)
    raw = [one._asdict() for one in found]
    path = result.write(options.results, made, raw)
    for load in LOADS:
        one = made[load]
        print(
            f"{load}: {one['own_per_cpu_s']:,} requests per CPU second ({one['own_us']} us each), "
            f"4294e90 {one['before_per_cpu_s']:,} ({one['before_us']} us): {one['ratio']} times"
        )
    for kind, sizes in held.items():
        print(f"{kind}: {options.idle:,} idle connections take {sizes}")
    print(path)
    taken_mb = held["own"]["with_mb"] - held["own"]["before_mb"]
    least = min(made[load]["ratio"] for load in LOADS)
    return int(least < LEAST_RATIO or taken_mb > MOST_IDLE_MB)


if __name__ == "__main__":
    sys.exit(main())
