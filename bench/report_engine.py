"""The part of docs/benchmarks.md on the local engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from report_table import Result, source, table

_DRAFTED = ("drafts, batch", "gain", "95 % bound", "gain, CPU", "bound, CPU", "drafted a token")
_DRAFTED += ("accepted", "pairs")


def engine(result: Result) -> str:
    """Tokens a second, ratios with their bars, speculation, and a decode step."""
    summary, settings = result["summary"], result["settings"]
    rates = [[name, f"{per_s:,.1f}"] for name, per_s in summary["per_s"].items()]
    ratios = [
        [
            name,
            f"{ratio:.2f}",
            f"{summary['ratios_cpu'][name]:.2f}",
            f"{settings['bars'][name]['bar']:g}",
            f"{settings['bars'][name]['goal']:g}",
            _verdict(summary["kept"][name]),
        ]
        for name, ratio in summary["ratios"].items()
    ]
    parts = [
        table(["contender", "tokens/s"], rates),
        table(["ratio", "of seconds", "of CPU seconds", "bar", "goal", ""], ratios),
        table(
            [*_DRAFTED, f"bound at least {settings['least_bound']:g}"],
            [_speculation(name, found, summary) for name, found in summary["speculation"].items()],
        ),
        _step(
            summary["decode_step"], settings["most_step"], is_kept=summary["kept"]["decode step"]
        ),
    ]
    return "\n\n".join([*parts, f"{source(result)} Processor: {settings['processor']}."])


def _verdict(is_kept: bool) -> str:
    return "kept" if is_kept else "**missed**"


def _speculation(name: str, found: Mapping[str, Any], summary: Mapping[str, Any]) -> list[str]:
    kept = summary["kept"].get(name)
    return [
        name,
        f"{found['gain']:.2f}",
        f"{found['lower_bound']:.3f}",
        f"{found['gain_cpu']:.2f}",
        f"{found['lower_bound_cpu']:.3f}",
        f"{found['drafted_a_token']:.2f}",
        "" if found["acceptance"] is None else f"{found['acceptance']:.2f}",
        str(found["pairs"]),
        "" if kept is None else _verdict(kept),
    ]


def _step(step: Mapping[str, Any], most: float, *, is_kept: bool) -> str:
    return (
        f"A decode step of 32 rows takes {step['step_ms']:.1f} ms, the linear layers alone "
        f"{step['linears_ms']:.1f} ms: {step['ratio']:.2f} times, {most:g} are allowed "
        f"({_verdict(is_kept)}). As transformers has them, the linear layers take "
        f"{step['peer_linears_ms']:.1f} ms. At least {step['answers_as_generate']:.0%} of the "
        "answers are those of static batching, token for token."
    )
