"""How close redline and four other limiters come to a server's limit, and how often they exceed it.

    python bench/limits.py [--quick] [--repeats 3] [--rates 20/1s] [--seeds 1,2,3]

For each kind of server (tests/support/opponent_server.py: slowapi with fixed and moving windows,
the `limits` package's sliding-window counter, a token bucket), each jitter before its limiter and
each limiter, gives the makespan divided by the optimum, and the number of 429s. Both come from the
server: its count, and its timestamps from the first call that arrived to the last one that it
admitted. The optimum is the earliest end of a client that never sends more than N in any W:
floor((M - 1) / N) W.

Redline's last send has a bar, which depends on the jitter. A busy machine adds jitter of its own;
the timestamps of both sides show the real jitter. `in_bar` counts the runs within the bar for the
requested jitter, `in_real_bar` those within the bar for the real jitter. Exits with status 1 if a
server rejected a call of redline, or if a run of redline ended after the bar for its real jitter.

All limiters are used by the same client (bench/peers/limit_clients.py), which makes all calls at
once and repeats those that were rejected. The limiters take turns. The runs of one limiter against
the four kinds of server are simultaneous, each in a process of its own. They start a quarter of a
window and a quarter of a send interval apart, so that neither bursts nor sends coincide.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import record

sys.path.insert(0, str(record.ROOT / "tests"))

from redline.limits import Rate, parse_rate
from support.opponents import KINDS, Opponent, Setting, judged, opponent

CLIENTS = Path(__file__).resolve().parent / "peers" / "limit_clients.py"
PEERS = ("tutorial", "aiolimiter", "pyrate", "throttled")
# The profile that states the server's own algorithm.
MATCHING = "redline-matching"
LIMITERS = (*PEERS, "redline-any", MATCHING)
# Windows that a run lasts. One call more than whole windows hold, so that both of the formulas of
# the last send say the same.
WINDOWS, QUICK_WINDOWS = {1.0: 10, 6.0: 3}, {1.0: 3, 6.0: 1}
OTHER_WINDOWS = 2


@dataclass(frozen=True)
class Table:
    """One table: a rate, the jitter before the limiter and the latency behind it."""

    rate: Rate
    jitter_s: float
    latency_s: tuple[float, float]
    calls: int

    @property
    def title(self) -> str:
        shortest, longest = (f"{1000 * latency_s:g}" for latency_s in self.latency_s)
        latency = shortest if shortest == longest else f"{shortest}-{longest}"
        return (
            f"{self.rate}, {self.calls} calls, jitter 0-{1000 * self.jitter_s:g} ms, "
            f"latency {latency} ms"
        )


class Client:
    """A client process that waits for its start."""

    def __init__(self, python: str, kind: str, server: Opponent, run: str, calls: int) -> None:
        rate = server.setting.rate
        self.server, self.run = server, run
        words = [server.base_url, self.run, calls, rate.count, rate.window_s]
        self._command = [python, str(CLIENTS), kind, *map(str, words)]
        self._process = subprocess.Popen(
            self._command,
            env=record.clean_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def wait_ready(self) -> None:
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "ready\n":
            raise RuntimeError(f"`{shlex.join(self._command)}` did not start")

    def start(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def finish(self) -> dict[str, Any]:
        """The figures of its run, judged by the server."""
        shown, _ = self._process.communicate(timeout=record.LONGEST_S)
        if self._process.returncode != 0:
            raise RuntimeError(f"`{shlex.join(self._command)}` failed")
        said = json.loads(shown)
        sends = [(number, at_s) for number, at_s in said["sends"]]
        trial = judged(self.server, self.run, sends, said["guard_s"])
        figures = {**asdict(trial), "cpu_s": said["cpu_s"], "real_jitter_s": trial.jitter_s}
        figures["delay_s"] = [round(delay_s, 5) for delay_s in trial.delay_s]
        return {
            name: round(value, 5) if isinstance(value, float) else value
            for name, value in figures.items()
        }

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


def client_of(limiter: str, kind: str) -> str:
    """The client's kind: the limiter, with the profile that belongs to the server."""
    return f"redline-{kind}" if limiter == MATCHING else limiter


def measure(
    limiter: str, python: str, servers: Sequence[Opponent], table: Table, seed: int
) -> list[dict[str, Any]]:
    """One run against each server, all at the same time; the figures of each."""
    with ExitStack() as stack:
        clients = []
        for server in servers:
            run = server.begin(table.jitter_s, seed)
            kind = client_of(limiter, server.setting.kind)
            clients.append(Client(python, kind, server, run, table.calls))
            stack.callback(clients[-1].kill)
        for client in clients:
            client.wait_ready()
        # Neither their bursts nor their single sends meet.
        apart_s = (table.rate.window_s + table.rate.window_s / table.rate.count) / len(clients)
        for client in clients:
            client.start()
            time.sleep(apart_s)
        return [client.finish() for client in clients]


def run_limiter(
    limiter: str, python: str, servers: Sequence[Opponent], table: Table, seed: int
) -> list[dict[str, Any]]:
    """The figures of one limiter against every server, and for redline whether they suffice."""
    runs = []
    found = measure(limiter, python, servers, table, seed)
    for server, figures in zip(servers, found, strict=True):
        setting = server.setting
        run = {
            "table": table.title,
            "seed": seed,
            "limiter": limiter,
            "server": setting.kind,
            "ratio": round(figures["makespan_s"] / setting.optimum_s(table.calls), 4),
            **figures,
        }
        if limiter.startswith("redline"):
            profile = client_of(limiter, setting.kind).removeprefix("redline-")
            real_s = max(table.jitter_s, figures["real_jitter_s"])
            bar_s = setting.bar_s(profile, table.calls, table.jitter_s)
            real_bar_s = setting.bar_s(profile, table.calls, real_s)
            run |= {"bar_s": round(bar_s, 4), "real_bar_s": round(real_bar_s, 4)}
            run["is_in_bar"] = run["last_send_s"] <= bar_s
            run["is_in_real_bar"] = run["last_send_s"] <= real_bar_s
        runs.append(run)
    return runs


def run_round(
    table: Table, limiters: Sequence[str], pythons: Mapping[str, str], seed: int
) -> list[dict[str, Any]]:
    """The figures of every limiter against every server."""
    runs: list[dict[str, Any]] = []
    with ExitStack() as stack:
        settings = [Setting(kind, table.rate, table.latency_s, seed) for kind in KINDS]
        servers = [stack.enter_context(opponent(s, life_s=record.LONGEST_S)) for s in settings]
        for limiter in limiters:
            found = run_limiter(limiter, pythons[limiter], servers, table, seed)
            cells = [f"{run['server']} {run['ratio']:.3f} / {run['rejected']}" for run in found]
            print(f"{table.title}, seed {seed}: {limiter:16} {'  '.join(cells)}", flush=True)
            runs += found
    return runs


def summarize(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """By table, limiter and server: median ratio, and 429s of each run and in all.

    Of redline also the runs within the bar of the last send.
    """
    summary: dict[str, Any] = {}
    for run in runs:
        rows = summary.setdefault(run["table"], {}).setdefault(run["limiter"], {})
        rows.setdefault(run["server"], []).append(run)
    for rows in summary.values():
        for servers in rows.values():
            for kind, own in servers.items():
                servers[kind] = {
                    "runs": len(own),
                    "ratio": round(statistics.median(run["ratio"] for run in own), 3),
                    "ratio_max": round(max(run["ratio"] for run in own), 3),
                    "rejected": statistics.median(run["rejected"] for run in own),
                    "rejected_in_all": sum(run["rejected"] for run in own),
                    "in_bar": sum(run.get("is_in_bar", False) for run in own),
                    "in_real_bar": sum(run.get("is_in_real_bar", False) for run in own),
                }
    return summary


def has_passed(runs: Sequence[dict[str, Any]]) -> bool:
    """No run of redline's was rejected once, and each ended within the bar of its real jitter."""
    own = [run for run in runs if run["limiter"].startswith("redline")]
    return all(run["rejected"] == 0 and run["is_in_real_bar"] for run in own)


def show(summary: dict[str, Any]) -> str:
    """The tables for a terminal."""
    lines = []
    for title, rows in summary.items():
        lines.append(f"\n{title}: makespan over optimum / 429s (medians)")
        lines.append(f"{'limiter':18}" + "".join(f"{kind:>16}" for kind in KINDS))
        for limiter, servers in rows.items():
            cells = [
                f"{servers[kind]['ratio']:.2f} / {servers[kind]['rejected']:g}" for kind in KINDS
            ]
            lines.append(f"{limiter:18}" + "".join(f"{cell:>16}" for cell in cells))
    return "\n".join(lines)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one round, fewer windows")
    parser.add_argument("--repeats", type=int, help="rounds, with seeds 1, 2, ...; 3")
    parser.add_argument("--seeds", help="of the jitter, one round for each: 1,2,3")
    parser.add_argument("--rates", default="20/1s,60/6s")
    parser.add_argument("--jitters-ms", default="0,50")
    parser.add_argument("--latency-ms", default="10", help="behind the limiter: 10, or 200-1000")
    parser.add_argument("--limiters", default=",".join(LIMITERS))
    parser.add_argument("--results", type=Path, default=record.RESULTS)
    args = parser.parse_args()
    repeats = args.repeats or (1 if args.quick else 3)
    args.seeds = [int(seed) for seed in (args.seeds or "").split(",") if seed]
    args.seeds = args.seeds or list(range(1, repeats + 1))
    args.limiters = args.limiters.split(",")
    return args


def tables(args: argparse.Namespace) -> list[Table]:
    shortest, _, longest = args.latency_ms.partition("-")
    latency_s = (float(shortest) / 1000, float(longest or shortest) / 1000)
    windows = QUICK_WINDOWS if args.quick else WINDOWS
    rates = [parse_rate(text) for text in args.rates.split(",")]
    return [
        Table(
            rate,
            float(jitter_ms) / 1000,
            latency_s,
            windows.get(rate.window_s, OTHER_WINDOWS) * rate.count + 1,
        )
        for rate in rates
        for jitter_ms in args.jitters_ms.split(",")
    ]


def main() -> int:
    args = parse()
    made = tables(args)
    settings = {
        "tables": [table.title for table in made],
        "servers": list(KINDS),
        "limiters": args.limiters,
        "at_once": len(KINDS),
        "rounds": len(args.seeds),
    }
    result = record.Record("limits", settings, {"jitter": args.seeds})
    pythons = dict.fromkeys(args.limiters, sys.executable)
    peers = [name for name in args.limiters if name in PEERS]
    if peers:
        packages = ("aiohttp", "aiolimiter", "pyrate-limiter", "throttled-py")
        python = record.peer_python("limits", *packages)
        pythons |= dict.fromkeys(peers, str(python))
        found = record.peer_versions(python, *packages)
        result.versions.update({f"peer {name}": version for name, version in found.items()})
    result.versions.update(
        record.own_versions("aiohttp", "uvloop", "slowapi", "limits", "fastapi", "uvicorn")
    )
    print(f"command: {shlex.join(['python', *sys.argv])}")
    runs: list[dict[str, Any]] = []
    for table in made:
        for number, seed in enumerate(args.seeds):
            turn = number % len(args.limiters)
            order = args.limiters[turn:] + args.limiters[:turn]
            runs += run_round(table, order, pythons, seed)
    summary = {"tables": summarize(runs), "has_passed": has_passed(runs)}
    path = result.write(args.results, summary, runs)
    print(show(summary["tables"]), f"written: {path}", sep="\n")
    return 0 if summary["has_passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
