"""What every part of docs/benchmarks.md is made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Result = Mapping[str, Any]


def table(head: list[str], rows: list[list[str]]) -> str:
    """A table in Markdown, its numbers to the right."""
    rule = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [head, rule, *rows])


def source(result: Result) -> str:
    """Where and on what the figures were taken."""
    versions = result["versions"]
    others = {
        name: found
        for name, found in versions.items()
        if name not in ("python", "redline", "platform", "cpus")
    }
    state = " with uncommitted changes" if result["src_differs_from_commit"] else ""
    return (
        f"Measured {result['measured_at'][:10]} at commit {result['commit'][:12]}{state}, in "
        f"{result['duration_s']:,.0f} s: Python {versions['python']}, {versions['cpus']} CPUs, "
        f"{versions['platform']}; " + ", ".join(f"{k} {v}" for k, v in others.items()) + "."
    )
