"""The part of docs/benchmarks.md on fleets: made of one result file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from report_table import Result, source, table

# With prompts, prices, tokens and limits that are equal, these go by the load alone.
_SHOWN = {
    "p2c, late": "`p2c`",
    "room, late": "least loaded",
    "round_robin, late": "`round_robin`",
    "weighted_score, late": "`weighted_score`",
    "normalized_score, late": "`normalized_score`",
    "oracle": "oracle",
    "p2c": "`p2c`, early",
    "weighted_score": "`weighted_score`, early",
}


def route(result: Result) -> str:
    """p50 and p99 by scenario and strategy, and what stale figures do."""
    scenarios = result["summary"]["scenarios"]
    rows = [
        [title, *(_pair(found[who]) for who in _SHOWN), _over(found, "over_best")]
        for title, found in scenarios.items()
    ]
    head = ["p50 / p99, s", *_SHOWN.values(), "`p2c` over the lowest"]
    most = max(max(found["p2c, late"]["over_best"].values()) for found in scenarios.values())
    most_all = max(max(found["p2c, late"]["over_all"].values()) for found in scenarios.values())
    verdict = "kept" if result["summary"]["is_kept"] else "not kept"
    bar = (
        f"The bar is {verdict}: p50 and p99 of the default are at most {most:.3f} times the lowest "
        f"of all strategies with late binding and of the oracle, and {most_all:.3f} times the "
        "lowest of all."
    )
    stale = ", ".join(f"`{who}` {_pair(row)}" for who, row in result["summary"]["stale"].items())
    old = f"Without late binding, by figures that are stale (p50 / p99, s): {stale}."
    return "\n\n".join([table(head, rows), bar, old, source(result)])


def _pair(row: Mapping[str, Any]) -> str:
    return f"{row['p50_s']:.2f} / {row['p99_s']:.2f}"


def _over(found: Mapping[str, Any], key: str) -> str:
    own = found["p2c, late"][key]
    return f"{own['p50_s']:.2f} / {own['p99_s']:.2f}"
