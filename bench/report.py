"""docs/benchmarks.md, its figures taken from bench/results/*.json.

    python bench/report.py            writes the figures into the page
    python bench/report.py --check    says whether the page and the files agree

What stands between `<!-- figures: NAME -->` and `<!-- end -->` is made here; the text around it is
written by hand and may only name numbers that are settings of a benchmark.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import report_engine
import report_limits
import report_observe
import report_path
import report_route
from report_table import Result, source, table

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
PAGE = ROOT / "docs" / "benchmarks.md"
NAMES = (
    "article",
    "run",
    "memory",
    "limits",
    "tokens",
    "search",
    "concurrency",
    "waiters",
    "route",
    "failures",
    "scaling",
    "binds",
    "predict",
    "recorder",
    "transports",
    "server",
    "relay",
    "instructions",
    "versions",
    "profile",
    "journal",
    "scale",
    "connections",
    "soak",
    "engine",
)

_BLOCK = re.compile(r"(<!-- figures: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
# 429 is the name of a status, and no figure.
_NAMES_OF_STATUSES = {429.0}
# Measured by others: the text says by whom.
_FROM_ELSEWHERE = {0.32, 1.45, 1.19}
_CODE = re.compile(r"```.*?```|`[^`]*`", re.DOTALL)

_CLIENTS = {
    "redline": "redline",
    "threads": "threads + requests, retry",
    "gather": "asyncio.gather, retry",
    "bucket": "tutorial token bucket, retry",
    "openai": "openai SDK, as it comes",
    "openai-aiohttp": "openai SDK on aiohttp",
    "flexllm": "flexllm",
    "async-batch-llm": "async-batch-llm",
}

_TRANSPORTS = {
    "direct": "redline's own connections",
    "aiohttp": "redline over aiohttp, removed since",
    "bare": "aiohttp as it comes",
    "pyreqwest": "pyreqwest",
}


def load(folder: Path = RESULTS) -> dict[str, Result]:
    """The result files that are there, by name."""
    paths = {name: folder / f"{name}.json" for name in NAMES}
    return {name: json.loads(path.read_text()) for name, path in paths.items() if path.exists()}


def load_campaigns(folder: Path = RESULTS) -> dict[str, Result]:
    """The records of campaigns that are there, by name."""
    paths = {name: folder / f"{name}.json" for name in report_path.CAMPAIGNS}
    return {name: json.loads(path.read_text()) for name, path in paths.items() if path.exists()}


def blocks(results: Mapping[str, Result]) -> dict[str, str]:
    """The generated parts of the page, by name."""
    makers = {
        "article": _article,
        "run": _run,
        "memory": _memory,
        "limits": report_limits.limits,
        "tokens": report_limits.tokens,
        "search": report_limits.search,
        "concurrency": report_limits.concurrency,
        "waiters": report_limits.waiters,
        "route": report_route.route,
        "failures": report_route.failures,
        "scaling": report_route.scaling,
        "binds": report_observe.binds,
        "predict": report_observe.predict,
        "recorder": report_observe.recorder,
        "transports": _transports,
        "server": report_path.server,
        "relay": report_path.relay,
        "instructions": report_path.instructions,
        "versions": report_path.versions,
        "profile": report_path.profile,
        "journal": report_path.journal,
        "scale": report_path.scale,
        "connections": report_path.connections,
        "soak": report_path.soak,
        "engine": report_engine.engine,
    }
    made = {name: make(results[name]) for name, make in makers.items() if name in results}
    made["losses"] = _losses(results)
    made["campaigns"] = report_path.campaigns(load_campaigns())
    return made


def filled(page: str, results: Mapping[str, Result]) -> str:
    """The page with its generated parts as the results make them.

    Raises KeyError for a part that no result file is there for.
    """
    made = blocks(results)
    return _BLOCK.sub(lambda match: f"{match[1]}\n{made[match[2]]}\n\n{match[3]}", page)


def strange_numbers(page: str, results: Mapping[str, Result]) -> list[str]:
    """Numbers of the hand-written text that are no setting of any benchmark."""
    text = _CODE.sub("", _BLOCK.sub("", page))
    settings = {number for result in results.values() for number in _numbers(result["settings"])}
    known = settings | _NAMES_OF_STATUSES | _FROM_ELSEWHERE
    return [word for word in _NUMBER.findall(text) if float(word.replace(",", "")) not in known]


def _numbers(value: object) -> Iterator[float]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _numbers(key)
            yield from _numbers(item)
    elif isinstance(value, list):
        for item in value:
            yield from _numbers(item)
    elif isinstance(value, str):
        yield from (float(word.replace(",", "")) for word in _NUMBER.findall(value))
    elif isinstance(value, (int, float)):
        yield float(value)


def _article(result: Result) -> str:
    summary = result["summary"]
    rows = []
    for kind in ("redline", "bucket", "gather", "threads"):
        if kind in summary:
            s = summary[kind]
            spread = f"{s['end_s_min']:.2f} to {s['end_s_max']:.2f}"
            rows.append(
                [
                    _CLIENTS[kind],
                    f"{s['end_s_median']:.2f}",
                    spread,
                    f"{s['over_fastest_s_median']:.2f}",
                    f"{s['rejected_median']:g}",
                    str(s["rejected_total"]),
                    f"{s['startup_s_median']:.2f}",
                ]
            )
    head = ["client", "seconds, median", "min to max", "above the fastest possible"]
    head += ["429s a run, median", "429s in all", "start-up, s"]
    bar = summary["bar"]
    verdict = "kept" if bar["is_kept"] else "not kept"
    text = (
        f"The bar is {verdict}: {bar['rejected_total']} x 429 in {summary['redline']['runs']} "
        f"runs of redline, which ended {bar['late_s_median']:.3f} s (median) and at most "
        f"{bar['late_s_max']:.3f} s after `max over i of floor(i/2) (1 s + guard) + latency_i`, "
        f"with a guard of {bar['guard_s']:g} s; {bar['allowed_s']:g} s are allowed."
    )
    return f"{table(head, rows)}\n\n{text}\n\n{source(result)}"


def _run(result: Result) -> str:
    head = ["client", "CPU s per 1,000 calls", "min to max", "rows/s", "min to max"]
    head += ["times redline's CPU", "peak memory, MB", "server busy"]
    parts = []
    for load_name, clients in result["summary"].items():
        rows = [
            [
                _CLIENTS[kind],
                f"{row['cpu_s_per_1000']:.3f}",
                f"{row['cpu_s_per_1000_min']:.3f} to {row['cpu_s_per_1000_max']:.3f}",
                f"{row['rows_per_s']:,}",
                f"{row['rows_per_s_min']:,} to {row['rows_per_s_max']:,}",
                f"{row['cpu_to_redline']:.1f}",
                f"{row['peak_rss_mb']:,}",
                f"{row['server_busy']:.0%}",
            ]
            for kind, row in clients.items()
        ]
        parts.append(f"**{load_name}**\n\n{table(head, rows)}")
        parts += _failed_runs(load_name, result["raw"])
    return "\n\n".join([*parts, source(result)])


def _failed_runs(load_name: str, raw: list[Mapping[str, Any]]) -> list[str]:
    """A sentence for each client of which some runs failed under this load."""
    told = []
    for kind in dict.fromkeys(run["client"] for run in raw if "failed" in run):
        runs = [run for run in raw if (run["load"], run["client"]) == (load_name, kind)]
        failed = [run["failed"] for run in runs if "failed" in run]
        if failed:
            reason = failed[-1].strip().rsplit("\n", 1)[-1]
            told.append(
                f"{_CLIENTS[kind]} failed in {len(failed)} of {len(runs)} runs, and lost what it "
                f"had done: `{reason}`"
            )
    return told


def _transports(result: Result) -> str:
    head = ["client", "CPU s per 1,000 calls", "min to max", "calls/s", "peak memory, MB"]
    parts = []
    for load_name, clients in result["summary"].items():
        rows = [
            [
                _TRANSPORTS[kind],
                f"{row['cpu_s_per_1000']:.3f}",
                f"{row['cpu_s_per_1000_min']:.3f} to {row['cpu_s_per_1000_max']:.3f}",
                f"{row['calls_per_s']:,}",
                f"{row['peak_rss_mb']:.0f}",
            ]
            for kind, row in clients.items()
        ]
        parts.append(f"**{load_name}**\n\n{table(head, rows)}")
    return "\n\n".join([*parts, source(result)])


def _memory(result: Result) -> str:
    summary = result["summary"]
    shares = list(summary["rss_mb"])
    head = ["rows done", *shares]
    row = ["resident, MB", *(f"{value:.1f}" for value in summary["rss_mb"].values())]
    curve = "\n".join(["```", *summary["plot"], "```"])
    verdict = "flat" if summary["is_flat"] else "not flat"
    text = (
        f"It is {verdict}: from 20 % of the rows on it grows by at most "
        f"{summary['growth_mb']:.1f} MB, which is {summary['growth_share']:.1%} or "
        f"{summary['growth_bytes_per_row']} bytes a row; "
        f"{summary['allowed_mb']:.1f} MB are allowed."
    )
    return f"{curve}\n\n{table(head, [row])}\n\n{text}\n\n{source(result)}"


# summary key, words, whether less is better
_JUDGED = (
    ("end_s_median", "seconds from first send to last answer", True),
    ("rejected_median", "429s a run", True),
    ("startup_s_median", "seconds of start-up", True),
    ("cpu_s_per_1000", "CPU seconds per 1,000 calls", True),
    ("rows_per_s", "rows a second", False),
    ("peak_rss_mb", "MB of peak memory", True),
)


def _losses(results: Mapping[str, Result]) -> str:
    """Every median that is worse for redline than for a peer, as a list."""
    groups: list[tuple[str, Mapping[str, Any]]] = []
    if "article" in results:
        groups.append(("the articles' comparison", results["article"]["summary"]))
    if "run" in results:
        groups += results["run"]["summary"].items()
    lines = []
    for group, clients in groups:
        own = clients.get("redline", {})
        for kind, peer in clients.items():
            for key, words, is_less_better in _JUDGED:
                if kind not in _CLIENTS or key not in own or key not in peer:
                    continue
                mine, theirs = own[key], peer[key]
                if mine != theirs and (mine > theirs) == is_less_better:
                    lines.append(
                        f"- {group}: {mine:,} {words}, against {theirs:,} of {_CLIENTS[kind]}"
                    )
    if "limits" in results:
        lines += report_limits.slower(results["limits"])
    return "\n".join(lines) or "In none of the medians above."


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    results, page = load(), PAGE.read_text()
    made = filled(page, results)
    if args.check:
        is_same = made == page
        print("the page and the files agree" if is_same else "run `python bench/report.py`")
        return 0 if is_same else 1
    PAGE.write_text(made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
