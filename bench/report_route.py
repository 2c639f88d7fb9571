"""The parts of docs/benchmarks.md on fleets."""

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


def failures(result: Result) -> str:
    """What calls see of a server that fails, by how it does; and the other parts in sentences."""
    summary = result["summary"]
    rows = [
        [
            mode,
            f"{met['calls']:,}",
            f"{met['failed_first_attempts']:,} ({100 * met['share_failed']:.2f} %)",
            f"{100 * met['share']:.2f} %",
            f"{met['back_s']:.1f} s",
        ]
        for mode, met in summary["faults"]["modes"].items()
    ]
    head = ["it fails by", "calls", "first attempts that see it", "its share", "back after"]
    pairs = ", ".join(f"{one['with'] / one['without']:.2f}" for one in summary["all"]["pairs"])
    killed, keys, resumed = summary["killed"], summary["keys"], summary["resumed"]
    lines = [
        f"All fail alike: {summary['all']['ratio']:.3f} times the answers a second of a pool "
        f"without breakers (pairs: {pairs}).",
        f"One is killed: of {killed['rows']:,} rows {killed['missing']} are missing and "
        f"{killed['twice']} are there twice; it answers {killed['back_s']:.1f} s after its start.",
        f"Four keys of one server, one of them parked: {100 * keys['used_of_nominal']:.1f} % of "
        f"the limits used in {keys['took_s']:.0f} s, {keys['rejected']} rejections and "
        f"{keys['rejected_while_parked']} of the parked key; no result is more than "
        f"{keys['latest_place']} places behind its row. Killed {resumed['kills']} times and "
        f"resumed: {resumed['received']:,} requests, {resumed['rejected']} rejections.",
        f"Disturbed at random: {summary['disturbed']['left']} things left.",
    ]
    missed = [name for name, part in result["raw"].items() if not part["is_kept"]]
    verdict = f"not kept by: {', '.join(missed)}" if missed else "kept"
    said = "\n".join(f"- {line}" for line in lines)
    load = f"The bars are {verdict}. Load of the machine before: {result['load_before']:g}."
    return "\n\n".join([table(head, rows), said, load, source(result)])


def scaling(result: Result) -> str:
    """What the autoscaler did, by seed."""
    seeds = result["seeds"]["arrivals"]
    rows = [
        [
            str(seed),
            f"{steady['changes_per_hour']:.2f}",
            f"{steady['utilization']:.3f}",
            f"{step['back_s']:.0f} s",
            f"{step['before']} -> {step['most']} -> {step['after']}",
            str(steady["failed"] + steady["dropped"] + step["failed"] + step["dropped"]),
        ]
        for seed, steady, step in zip(
            seeds, result["raw"]["steady"], result["raw"]["steps"], strict=True
        )
    ]
    head = ["seed", "changes an hour", "utilization", "back at the SLO after", "replicas"]
    head.append("calls failed or dropped")
    bar = f"The bars are {'kept' if result['summary']['is_kept'] else 'not kept'}."
    return "\n\n".join([table(head, rows), bar, source(result)])


def _pair(row: Mapping[str, Any]) -> str:
    return f"{row['p50_s']:.2f} / {row['p99_s']:.2f}"


def _over(found: Mapping[str, Any], key: str) -> str:
    own = found["p2c, late"][key]
    return f"{own['p50_s']:.2f} / {own['p99_s']:.2f}"
