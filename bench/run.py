"""The cost of a call for its client: `redline run`, the usual script and two peers, one server.

    python bench/run.py [--rounds 3] [--rows 20000] [--clients redline,openai,...]

Measures CPU seconds (user and system, of the whole client process, including its start) per 1,000
calls, and rows per second of wall time, with the same rows of 1 KB, at two loads:

  64 in flight, immediate answers     the cost of the client itself
  1,000 in flight, 200 ms per answer  the cost of waiting for many answers

redline keeps to a limit that never binds, writes its journal with fsync and draws its progress on a
terminal. The usual script is the newest openai SDK in an environment of its own: AsyncOpenAI, a
semaphore and gather, once as installed, and once with the aiohttp transport that its README
recommends for concurrency. It has no limit, no checkpoint and no progress. It waits 600 s in each
phase, because with its default of 5 s for a connection it fails at 1,000 in flight. flexllm and
async-batch-llm do redline's job with the same limit, a checkpoint that they do not sync, and their
progress.

Each load has a `redline sim` of its own as the server. Its CPU use is given with the figures, since
a server that is always busy would limit the results. Before each peer, redline runs OWN_RUNS times:
its runs take seconds, a peer's take minutes. The spread of a ratio is that of each peer's run to
the median of these runs. Exits with status 1 if the openai SDK, as installed, takes less than LEAST
times redline's CPU, by the medians.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import record

CLIENTS = ("redline", "openai", "openai-aiohttp", "flexllm", "async-batch-llm")
# The scripts of the peers that do the whole job, and what installs them.
SCRIPTS = {"flexllm": "flexllm_script.py", "async-batch-llm": "async_batch_llm_script.py"}
PEER_PACKAGES = {
    "openai": ("openai[aiohttp]", ("openai", "httpx2", "aiohttp")),
    "flexllm": ("flexllm", ("flexllm", "aiohttp")),
    "async-batch-llm": ("async-batch-llm[openai,progress]", ("async-batch-llm", "openai")),
}
# A limit that never binds: it costs what a limit costs.
PER_S = 100_000
HERE = Path(__file__).resolve().parent
# name: in flight, the server's latency in seconds.
LOADS = {"64 in flight, 0 ms": (64, 0.0), "1,000 in flight, 200 ms": (1000, 0.2)}
PROMPT_BYTES = 1024
# Runs of redline before each run of a peer.
OWN_RUNS = 5
# CPU of the openai SDK over redline's, by load.
LEAST = {"64 in flight, 0 ms": 28, "1,000 in flight, 200 ms": 55}


def command(kind: str, python: Path | None, url: str, in_flight: int) -> list[str]:
    """The client's command line, in a folder that holds rows.jsonl."""
    if kind == "redline":
        flags = (
            f"--model sim --base-url {url} -c {in_flight} -o out.jsonl --requests {60 * PER_S}/60s"
        )
        return [*record.REDLINE, "run", "rows.jsonl", *flags.split()]
    if kind in SCRIPTS:
        script = str(HERE / "peers" / SCRIPTS[kind])
        return [str(python), script, "rows.jsonl", "out.jsonl", url, str(in_flight), str(PER_S)]
    transport = "aiohttp" if kind == "openai-aiohttp" else "httpx"
    script = str(HERE / "peers" / "usual_script.py")
    return [str(python), script, "rows.jsonl", "out.jsonl", url, str(in_flight), transport]


def measure(
    kind: str, python: Path | None, server: record.Server, in_flight: int, rows: int
) -> dict[str, Any]:
    """One client's run over `rows` rows, every one of which must have its result."""
    with record.scratch() as folder:
        record.write_rows(folder / "rows.jsonl", rows, PROMPT_BYTES)
        before_s = server.cpu_s()
        words = command(kind, python, server.url, in_flight)
        process = record.run_client(words, folder, on_terminal=kind == "redline")
        server_s = server.cpu_s() - before_s
        # A peer's checkpoint may begin with a line of its own.
        with open(folder / "out.jsonl", "rb") as file:
            written = sum(b"You said: " in line for line in file)
    if written != rows:
        raise RuntimeError(f"{kind}: {written} of {rows} results were written")
    return {
        "client": kind,
        "rows": rows,
        "cpu_s": round(process.cpu_s, 3),
        "wall_s": round(process.wall_s, 3),
        "peak_rss_mb": round(process.peak_rss_mb, 1),
        "server_busy": round(server_s / process.wall_s, 3),
    }


def in_turn(kinds: Sequence[str], number: int) -> list[str]:
    """Which client runs when in this round: before each peer redline, several times."""
    peers = [kind for kind in kinds if kind != "redline"]
    turn = number % max(1, len(peers))
    own = OWN_RUNS * [kind for kind in kinds if kind == "redline"]
    return [each for peer in peers[turn:] + peers[:turn] for each in (*own, peer)] or own


def summarize(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Medians and extremes by load and client, and ratios to redline's medians."""
    summary: dict[str, Any] = {}
    for load in dict.fromkeys(run["load"] for run in runs):
        rows = summary[load] = {}
        for kind in dict.fromkeys(run["client"] for run in runs):
            every = [run for run in runs if (run["load"], run["client"]) == (load, kind)]
            own = [run for run in every if "failed" not in run]
            if not own:
                continue
            cpu_s = [1000 * run["cpu_s"] / run["rows"] for run in own]
            per_s = [run["rows"] / run["wall_s"] for run in own]
            rows[kind] = {
                "rounds": len(own),
                "failed_rounds": len(every) - len(own),
                "cpu_s_per_1000": round(statistics.median(cpu_s), 3),
                "cpu_s_per_1000_min": round(min(cpu_s), 3),
                "cpu_s_per_1000_max": round(max(cpu_s), 3),
                "rows_per_s": round(statistics.median(per_s)),
                "rows_per_s_min": round(min(per_s)),
                "rows_per_s_max": round(max(per_s)),
                "peak_rss_mb": round(statistics.median(run["peak_rss_mb"] for run in own)),
                "server_busy": round(statistics.median(run["server_busy"] for run in own), 2),
            }
        base = rows.get("redline")
        for row in rows.values():
            if base is not None:
                row["cpu_to_redline"] = round(row["cpu_s_per_1000"] / base["cpu_s_per_1000"], 1)
                row["rate_to_redline"] = round(row["rows_per_s"] / base["rows_per_s"], 2)
        for kind, row in rows.items():
            if base is not None and kind != "redline":
                ratios = in_pairs([run for run in runs if run["load"] == load], kind)
                row["cpu_to_redline_min"] = round(min(ratios), 1)
                row["cpu_to_redline_max"] = round(max(ratios), 1)
    return summary


def in_pairs(runs: Sequence[dict[str, Any]], kind: str) -> list[float]:
    """The CPU of each of the client's runs over the median of redline's runs before it."""
    ratios, own_s = list[float](), list[float]()
    for run in runs:
        if run["client"] == "redline":
            own_s.append(run["cpu_s"] / run["rows"])
            continue
        if run["client"] == kind and "failed" not in run:
            ratios.append(run["cpu_s"] / run["rows"] / statistics.median(own_s))
        own_s.clear()
    return ratios


def missed(summary: dict[str, Any]) -> list[str]:
    """The bars that are missed, in words."""
    return [
        f"{load}: {kind} takes {row['cpu_to_redline']} times redline's CPU, at least {LEAST[load]}"
        for load, rows in summary.items()
        for kind, row in rows.items()
        if kind == "openai" and "redline" in rows and row["cpu_to_redline"] < LEAST[load]
    ]


def times(row: dict[str, Any]) -> str:
    """A peer's CPU over redline's, with its spread."""
    if "cpu_to_redline_min" not in row:
        return ""
    spread = f"{row['cpu_to_redline_min']} to {row['cpu_to_redline_max']}"
    return f"  {row['cpu_to_redline']} times redline's CPU ({spread})"


def show(summary: dict[str, Any]) -> str:
    """The summary for a terminal."""
    lines = []
    for load, rows in summary.items():
        lines.append(f"\n{load}")
        lines.append(
            f"{'client':16} {'CPU s/1,000':>12} {'rows/s':>8} {'peak MB':>8} {'server':>7}"
        )
        lines += [
            f"{kind:16} {row['cpu_s_per_1000']:12.3f} {row['rows_per_s']:8,} "
            f"{row['peak_rss_mb']:8,} {row['server_busy']:7.0%}{times(row)}"
            for kind, row in rows.items()
        ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--clients", default=",".join(CLIENTS))
    parser.add_argument("--results", type=Path, default=record.RESULTS)
    args = parser.parse_args()
    kinds = args.clients.split(",")
    settings = {
        "rounds": args.rounds,
        "rows": args.rows,
        "prompt_bytes": PROMPT_BYTES,
        "loads": {name: dict(zip(("in_flight", "latency_s"), load, strict=True))
                  for name, load in LOADS.items()},
        "server": f"redline sim of {record.SIM_COMMIT}",
        "limit_per_s": PER_S,
        "least_times": LEAST,
        "max_retries": "each client's default",
        "timeout": "each client's default, but 600 s of the openai SDK for a connection, too",
    }  # fmt: skip
    result = record.Record("run", settings, {"sim": 0})
    pythons: dict[str, Path | None] = {"redline": None}
    for kind in kinds:
        if kind == "redline":
            continue
        name = kind.removesuffix("-aiohttp")
        package, shown = PEER_PACKAGES[name]
        pythons[kind] = python = record.peer_python(name, package)
        peers = record.peer_versions(python, *shown)
        result.versions.update({f"{name}: {part}": found for part, found in peers.items()})
    result.versions.update(record.own_versions("httptools", "uvloop", "msgspec"))
    runs: list[dict[str, Any]] = []
    for load, (in_flight, latency_s) in LOADS.items():
        with record.serving(record.sim("--latency", str(latency_s))) as server:
            for number in range(args.rounds):
                for kind in in_turn(kinds, number):
                    run = {"load": load, "round": number + 1, "client": kind}
                    try:
                        run |= measure(kind, pythons[kind], server, in_flight, args.rows)
                        told = f"{run['cpu_s']:7.2f} CPU s, {run['wall_s']:6.2f} s"
                    except RuntimeError as error:
                        # A script without a checkpoint has lost all its calls; that is a figure.
                        if kind == "redline":
                            raise
                        run["failed"] = told = str(error)[-200:]
                    runs.append(run)
                    print(f"{load}, round {number + 1}: {kind:15} {told}", flush=True)
    summary = summarize(runs)
    path = result.write(args.results, summary, runs)
    print(show(summary), f"written: {path}", *missed(summary), sep="\n")
    return int(bool(missed(summary)))


if __name__ == "__main__":
    sys.exit(main())
