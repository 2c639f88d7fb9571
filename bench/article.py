"""The comparison of the articles: four clients of `GET /chat`, 2 per second, 2 to 5 s per answer.

    python bench/article.py [--runs 10] [--calls 20] [--clients redline,threads,gather,bucket]

Each round gives every client the same calls against the same server. The server draws its latencies
from the round's seed, in the order of arrival; the order of the clients rotates by one per round.
The time is from the first send to the last answer. For redline, it is an upper bound, calculated
from the records of both sides: an answer arrived no later than its request reached the server plus
the latency that redline measured, and the first send was no earlier than its arrival minus the
whole round trip.

The bar for redline with --profile fixed: no 429, and an end within 0.2 s of
`max over i of floor(i/2) (1 s + guard) + latency_i`, by the server's timestamps. Exits with
status 1 if redline misses the bar.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import sys
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import record

CLIENTS = ("redline", "threads", "gather", "bucket")
HERE = Path(__file__).resolve().parent
RATE, WINDOW_S = 2, 1.0
ALLOWED_S = 0.2
# What the bar allows for the network: a client may add as much to a window.
GUARD_S = 0.05
# The server's window of the client before must be over.
PAUSE_S = 1.5


def ask(url: str, *, is_post: bool = False) -> Any:
    """The JSON that the server's side path answers."""
    method = "POST" if is_post else "GET"
    with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=10) as reply:
        return json.loads(reply.read())


def bar_s(latencies_s: Sequence[float], guard_s: float) -> float:
    """The earliest end at this rate, from the first send; latencies in order of arrival."""
    span_s = WINDOW_S + guard_s
    return max(i // RATE * span_s + latency for i, latency in enumerate(latencies_s))


def redline_command(url: str) -> list[str]:
    """The command under test."""
    flags = shlex.split("--method GET --url /chat --rps 2 --profile fixed -o answers.jsonl")
    return [*record.REDLINE, "run", "prompts.jsonl", "--base-url", url, *flags]


def run_redline(url: str, folder: Path) -> tuple[record.Finished, dict[str, Any]]:
    """The process, and its times by the server's stamps and redline's own latencies."""
    process = record.run_client(redline_command(url), folder, on_terminal=True)
    stamps = ask(f"{url}/bench/stamps")["answered"]
    arrivals_s = [stamp["arrival_s"] for stamp in stamps]
    last_answer_s = first_send_s = 0.0
    for line in (folder / "answers.jsonl").read_text().splitlines():
        result = json.loads(line)
        number = int(result["output"].removeprefix("answer "))
        last_answer_s = max(last_answer_s, arrivals_s[number] + result["latency_s"])
        if number == 0:
            way_s = result["latency_s"] - stamps[0]["latency_s"]
            first_send_s = arrivals_s[0] - way_s
    return process, {"first_send_s": first_send_s, "last_answer_s": last_answer_s}


def run_peer(command: Sequence[str], folder: Path) -> tuple[record.Finished, dict[str, Any]]:
    """The process, and its times by its own stamps."""
    process = record.run_client(command, folder)
    times: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    return process, times


def measure(kind: str, python: Path | None, url: str, calls: int, seed: int) -> dict[str, Any]:
    """One client's run: its times, its 429s, and the server's stamps."""
    ask(f"{url}/bench/begin?seed={seed}", is_post=True)
    with record.scratch() as folder:
        if kind == "redline":
            record.write_rows(folder / "prompts.jsonl", calls, 100)
            process, times = run_redline(url, folder)
        else:
            assert python is not None
            script = str(HERE / "peers" / "article_clients.py")
            command = [str(python), script, kind, f"{url}/chat", str(calls), str(seed)]
            process, times = run_peer(command, folder)
    seen = ask(f"{url}/bench/stamps")
    stamps = seen["answered"]
    if len(stamps) != calls:
        raise RuntimeError(f"{kind}: {len(stamps)} of {calls} calls were answered")
    latencies_s = [stamp["latency_s"] for stamp in stamps]
    end_s = times["last_answer_s"] - times["first_send_s"]
    guard_s = GUARD_S
    return {
        "client": kind,
        "seed": seed,
        "end_s": round(end_s, 4),
        "rejected": len(seen["refused_s"]),
        "fastest_possible_s": round(bar_s(latencies_s, 0.0), 4),
        "bar_s": round(bar_s(latencies_s, guard_s), 4),
        "startup_s": round(times["first_send_s"] - process.started_s, 4),
        "shutdown_s": round(process.ended_s - times["last_answer_s"], 4),
        "latencies_s": [round(value, 4) for value in latencies_s],
        "arrivals_s": [round(stamp["arrival_s"] - stamps[0]["arrival_s"], 4) for stamp in stamps],
    }


def summarize(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Medians and extremes by client, and redline's bar."""
    summary: dict[str, Any] = {}
    for kind in dict.fromkeys(run["client"] for run in runs):
        own = [run for run in runs if run["client"] == kind]
        ends_s = [run["end_s"] for run in own]
        rejected = [run["rejected"] for run in own]
        summary[kind] = {
            "runs": len(own),
            "end_s_median": round(statistics.median(ends_s), 2),
            "end_s_min": round(min(ends_s), 2),
            "end_s_max": round(max(ends_s), 2),
            "over_fastest_s_median": round(
                statistics.median(run["end_s"] - run["fastest_possible_s"] for run in own), 2
            ),
            "rejected_median": statistics.median(rejected),
            "rejected_total": sum(rejected),
            "startup_s_median": round(statistics.median(run["startup_s"] for run in own), 2),
        }
    own = [run for run in runs if run["client"] == "redline"]
    if own:
        late_s = [run["end_s"] - run["bar_s"] for run in own]
        summary["bar"] = {
            "guard_s": GUARD_S,
            "allowed_s": ALLOWED_S,
            "late_s_median": round(statistics.median(late_s), 3),
            "late_s_max": round(max(late_s), 3),
            "rejected_total": sum(run["rejected"] for run in own),
            "is_kept": max(late_s) <= ALLOWED_S and not any(run["rejected"] for run in own),
        }
    return summary


def show(summary: dict[str, Any]) -> str:
    """The summary for a terminal."""
    lines = [f"{'client':10} {'seconds':>8} {'min':>7} {'max':>7} {'429s':>6} {'start-up':>9}"]
    for kind in CLIENTS:
        if kind in summary:
            s = summary[kind]
            lines.append(
                f"{kind:10} {s['end_s_median']:8.2f} {s['end_s_min']:7.2f} {s['end_s_max']:7.2f} "
                f"{s['rejected_median']:6g} {s['startup_s_median']:8.2f}s"
            )
    if "bar" in summary:
        bar = summary["bar"]
        verdict = "kept" if bar["is_kept"] else "MISSED"
        lines.append(
            f"redline's bar {verdict}: {bar['rejected_total']} x 429; the end is at most "
            f"{bar['late_s_max']:.3f} s after the bar (allowed {bar['allowed_s']:g} s)"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--calls", type=int, default=20)
    parser.add_argument("--clients", default=",".join(CLIENTS))
    parser.add_argument("--results", type=Path, default=record.RESULTS)
    args = parser.parse_args()
    kinds = args.clients.split(",")
    settings = {
        "runs": args.runs,
        "calls": args.calls,
        "limit": "2/second",
        "latency_s": [2, 5],
        "threads": 8,
        "command": " ".join(["redline", *redline_command("URL")[3:]]),
    }
    result = record.Record(
        "article",
        settings,
        {"latencies": list(range(args.runs)), "back_off": list(range(args.runs))},
    )
    python = None
    if set(kinds) - {"redline"}:
        python = record.peer_python("article", "requests", "aiohttp")
        result.versions.update(record.peer_versions(python, "requests", "aiohttp"))
    result.versions.update(record.own_versions("fastapi", "slowapi", "limits", "uvicorn"))
    runs: list[dict[str, Any]] = []
    with record.serving([sys.executable, "-P", str(HERE / "article_server.py")]) as server:
        for number in range(args.runs):
            turn = number % len(kinds)
            for kind in kinds[turn:] + kinds[:turn]:
                run = measure(kind, python, server.url, args.calls, number)
                runs.append(run)
                print(
                    f"run {number + 1:2} {kind:8} {run['end_s']:6.2f} s, {run['rejected']} x 429, "
                    f"bar {run['bar_s']:.2f} s",
                    flush=True,
                )
                time.sleep(PAUSE_S)
    summary = summarize(runs)
    path = result.write(args.results, summary, runs)
    print(show(summary), f"written: {path}", sep="\n")
    return 0 if summary.get("bar", {}).get("is_kept", True) else 1


if __name__ == "__main__":
    sys.exit(main())
