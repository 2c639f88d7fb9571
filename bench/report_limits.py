"""The parts of docs/benchmarks.md that tell of limits: each makes its text of one result file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from report_table import Result, source, table

_LIMITERS = {
    "tutorial": "tutorial token bucket",
    "aiolimiter": "aiolimiter",
    "pyrate": "pyrate-limiter",
    "throttled": "throttled-py",
    "redline-any": "redline, `any`",
    "redline-matching": "redline, the server's own profile",
}
_SERVERS = ("fixed", "moving", "counter", "bucket")


def limits(result: Result) -> str:
    """Makespan over optimum and 429s, by limiter and server, for each rate and jitter."""
    parts = []
    for title, limiters in result["summary"]["tables"].items():
        rows = []
        for name, servers in limiters.items():
            cells = [f"{servers[s]['ratio']:.3f} / {servers[s]['rejected']:g}" for s in _SERVERS]
            rows.append([_LIMITERS[name], *cells])
        parts.append(f"**{title}**\n\n{table(['limiter', *_SERVERS], rows)}")
    runs = [run for run in result["raw"] if run["limiter"].startswith("redline")]
    calm = [run for run in runs if is_calm(run)]
    stirred = [run for run in runs if not is_calm(run)]
    nominal = sum(run["is_in_bar"] for run in runs)
    real = sum(run["is_in_real_bar"] for run in runs)
    max_s = max(run["real_jitter_s"] for run in runs)
    parts.append(
        f"In {len(calm)} of redline's {len(runs)} runs the way to the limiter was as even as it "
        f"was asked to be, but for 5 ms: {_rejected(calm)} calls of theirs were rejected. In the "
        f"other {len(stirred)} the machine added up to {max_s:.2f} s of jitter: "
        f"{_rejected(stirred)} calls. The last send was within its bar in {nominal} runs, and in "
        f"{real} by the jitter that there really was."
    )
    return "\n\n".join([*parts, source(result)])


def is_calm(run: Mapping[str, Any]) -> bool:
    """The machine added no more jitter of its own than the guard has to spare."""
    jitter_s = 0.05 if "jitter 0-50 ms" in run["table"] else 0.0
    return bool(run["real_jitter_s"] <= jitter_s + 0.005)


def _rejected(runs: Sequence[Mapping[str, Any]]) -> int:
    return sum(run["rejected"] for run in runs)


def slower(result: Result) -> list[str]:
    """Where a peer's median makespan is below redline's own with the server's profile, as a list.

    A client that is rejected may come in earlier; its 429s stand beside it.
    """
    lines = []
    for title, limiters in result["summary"]["tables"].items():
        for server in _SERVERS:
            own = limiters["redline-matching"][server]["ratio"]
            earlier = [
                f"{found['ratio']:.3f} / {found['rejected']:g} of {_LIMITERS[name]}"
                for name, servers in limiters.items()
                if not name.startswith("redline") and (found := servers[server])["ratio"] < own
            ]
            if earlier:
                words = ", ".join(earlier)
                lines.append(f"- {title}, {server}: {own:.3f} / 0, against {words}")
    return lines


def tokens(result: Result) -> str:
    """What was used of token limits, and how often servers would have rejected."""
    head = ["limit", "outputs", "profile", "charged", "least used", "after the first window"]
    head += ["rejected when a call comes", "when an answer ends", "of"]
    rows = [
        [
            line["rate"],
            line["traffic"],
            line["profile"],
            line["charge"],
            f"{line['used_min']:.1%}",
            f"{line['used_after_first_min']:.1%}",
            str(line["rejected"]["actual"] + line["rejected"]["reserved"]),
            str(line["rejected"]["answered"]),
            f"{line['judged']:,}",
        ]
        for line in result["summary"]["lines"]
    ]
    return f"{table(head, rows)}\n\n{source(result)}"


def waiters(result: Result) -> str:
    """What it costs to grant many waiters, beside bare futures."""
    head = ["event loop", "CPU s", "bare futures", "us a grant", "grants/s", "futures set"]
    head.append("timers")
    rows = [
        [
            name,
            f"{row['cpu_s']:.2f}",
            f"{row['bare_cpu_s']:.2f}",
            f"{row['us_per_grant']:.1f}",
            f"{row['per_s']:,}",
            f"{row['results']:,}",
            f"{row['timers']:,}",
        ]
        for name, row in result["summary"].items()
    ]
    return f"{table(head, rows)}\n\n{source(result)}"


def search(result: Result) -> str:
    """Limits that no header states: how they were used once found."""
    head = ["server", "limit", "runs", "least used", "most rejected", "found after, at most"]
    head.append("within both bars")
    rows = [
        [
            line["server"],
            line["rate"],
            str(line["runs"]),
            f"{line['used_min']:.2%}",
            f"{line['rejected_max']:.3%}",
            "never" if line["found_s_max"] is None else f"{line['found_s_max']:.0f} s",
            str(line["passed"]),
        ]
        for line in result["summary"]["lines"]
    ]
    return f"{table(head, rows)}\n\n{source(result)}"


def concurrency(result: Result) -> str:
    """Adaptive concurrency: how many servers each rule kept the bar on, and what it reached."""
    summary: Mapping[str, Any] = result["summary"]
    head = ["server", "rule", "work", "latency", "refused", "swing", "90 % after"]
    rows = [
        [
            server,
            client,
            f"{own['work']:.3f}",
            f"{own['latency']:.2f}",
            f"{own['refused']:.2%}",
            f"{own['swing']:.1%}",
            f"{own['reached_s']:.0f} s",
        ]
        for server, clients in summary["servers"].items()
        for client, own in clients.items()
    ]
    kept = ", ".join(f"{client} {count}" for client, count in summary["kept"].items())
    text = f"Servers of {summary['of']} on which each rule kept the bar: {kept}."
    return f"{table(head, rows)}\n\n{text}\n\n{source(result)}"
