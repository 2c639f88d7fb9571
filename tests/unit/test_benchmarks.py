"""The benchmark pages agree with bench/results/*.json, and contain no other figures."""

from __future__ import annotations

import copy
import json
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from support.scripts import script

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def report() -> ModuleType:
    return script("bench/report.py")


@pytest.fixture(scope="module")
def results(report: ModuleType) -> dict[str, Any]:
    found: dict[str, Any] = report.load()
    return found


@pytest.fixture(scope="module")
def pages(report: ModuleType) -> dict[str, str]:
    return {path.name: text for path, text in report.pages().items()}


def test_every_benchmark_has_left_its_results(report: ModuleType, results: dict[str, Any]) -> None:
    assert sorted(results) == sorted(report.NAMES)
    for name, result in results.items():
        assert result["name"] == name
        assert len(result["commit"]) == 40
        assert result["duration_s"] > 0
        assert all(result[key] for key in ("command", "versions", "settings", "summary", "raw"))


def test_the_pages_hold_each_part_once(report: ModuleType, pages: dict[str, str]) -> None:
    parts = [part for text in pages.values() for part in re.findall(r"<!-- figures: (\w+)", text)]
    assert sorted(parts) == sorted((*report.NAMES, *report.SUMMARIES, "losses", "campaigns"))


def test_the_pages_agree_with_the_results(
    report: ModuleType, results: dict[str, Any], pages: dict[str, str]
) -> None:
    for text in pages.values():
        assert report.filled(text, results) == text, "run python bench/report.py"


def test_the_text_names_no_number_but_settings(
    report: ModuleType, results: dict[str, Any], pages: dict[str, str]
) -> None:
    strange = {name: report.strange_numbers(text, results) for name, text in pages.items()}
    assert {name: numbers for name, numbers in strange.items() if numbers} == {}


def test_a_changed_figure_is_seen(
    report: ModuleType, results: dict[str, Any], pages: dict[str, str]
) -> None:
    other = copy.deepcopy(results)
    other["article"]["summary"]["redline"]["end_s_median"] += 0.01
    changed = {name for name, text in pages.items() if report.filled(text, other) != text}
    assert changed == {"benchmarks.md", "benchmarks-limits.md", "benchmarks-losses.md"}


def test_a_bar_that_is_missed_is_on_the_first_page(
    report: ModuleType, results: dict[str, Any], pages: dict[str, str]
) -> None:
    other = copy.deepcopy(results)
    for name in ("pool_cost", "recorder"):
        for row in other[name]["summary"].values():
            row["bound"] = 0.5
    other["engine"]["summary"]["kept"]["decode step"] = False
    other["failures"]["raw"]["killed"]["is_kept"] = False
    page = report.filled(pages["benchmarks.md"], other)
    assert "- [engine](benchmarks-engine.md): decode step" in page
    assert "- [endpoints that fail](benchmarks-fleet.md#endpoints-that-fail): killed" in page
    missed = page.partition("Bars that are missed:")[2]
    assert ("[a pool]" in missed, "[recording]" in missed) == (False, False)
    now = pages["benchmarks.md"].partition("Bars that are missed:")[2]
    for text in pages.values():
        for bar in re.findall(r"^- \*\*missed\*\*: (.*)$", text, re.M):
            assert bar in now


def test_a_figure_in_the_text_is_seen(
    report: ModuleType, results: dict[str, Any], pages: dict[str, str]
) -> None:
    planted = pages["benchmarks-scale.md"].replace(
        "## Memory of a long run", "redline makes 31,337 rows/s.\n\n## Memory"
    )
    assert report.strange_numbers(planted, results) == ["31,337"]


def test_medians_are_those_of_the_raw_runs(results: dict[str, Any]) -> None:
    """The summaries are checked against the raw figures by another route than the benches take."""
    for kind in ("redline", "threads", "gather", "bucket"):
        own = sorted(r["end_s"] for r in results["article"]["raw"] if r["client"] == kind)
        middle = (own[(len(own) - 1) // 2] + own[len(own) // 2]) / 2
        assert results["article"]["summary"][kind]["end_s_median"] == pytest.approx(
            middle, abs=0.01
        )
    for load, clients in results["run"]["summary"].items():
        for kind, row in clients.items():
            runs = [r for r in results["run"]["raw"] if (r["load"], r["client"]) == (load, kind)]
            assert len(runs) >= 3
            runs = [run for run in runs if "failed" not in run]
            assert len(runs) == row["rounds"]
            costs = sorted(1000 * r["cpu_s"] / r["rows"] for r in runs)
            middle = (costs[(len(costs) - 1) // 2] + costs[len(costs) // 2]) / 2
            assert row["cpu_s_per_1000"] == pytest.approx(middle, abs=0.001)


def test_the_bars_of_the_kept_figures_are_kept(results: dict[str, Any]) -> None:
    runs = [run for run in results["article"]["raw"] if run["client"] == "redline"]
    assert len(runs) >= 10
    for run in runs:
        spans = enumerate(run["latencies_s"])
        bar_s = max(i // 2 * 1.05 + latency_s for i, latency_s in spans)
        assert run["rejected"] == 0
        assert run["end_s"] <= bar_s + 0.2
    assert results["memory"]["summary"]["is_flat"]


def test_redline_is_never_rejected_where_the_machine_is_calm(
    report: ModuleType, results: dict[str, Any]
) -> None:
    runs = [run for run in results["limits"]["raw"] if run["limiter"].startswith("redline")]
    assert len(runs) >= 2 * 2 * 4 * 2 * 3  # rates, jitters, servers, profiles, repeats
    calm = [run for run in runs if report.is_calm(run)]
    assert len(calm) >= 40
    assert sum(run["rejected"] for run in calm) == 0


def test_the_campaign_of_real_servers_drew_no_rejection() -> None:
    record = json.loads((ROOT / "bench" / "results" / "limit-servers.json").read_text())
    runs = [run for part in record["parts"].values() for run in part["raw"]]
    assert len(runs) >= 2 * 2 * 4 * 2 * 10 + 2 * 4 * 2
    assert sum(run["rejected"] for run in runs) == 0
    assert all(run["last_send_s"] <= run["real_bar_s"] for run in runs)


def test_token_limits_are_used_and_kept(results: dict[str, Any]) -> None:
    lines = results["tokens"]["summary"]["lines"]
    assert sum(line["judged"] for line in lines) >= 1_000_000
    for line in lines:
        rejected = line["rejected"]["actual"] + line["rejected"]["reserved"]
        assert rejected <= 1e-4 * line["judged"]
        if line["rate"] == "200k/60s":
            assert rejected == 0
            assert line["used_min"] >= 0.95


def test_watching_a_run_costs_at_most_what_is_allowed(results: dict[str, Any]) -> None:
    recorder = script("bench/recorder.py", "record", "run", "versions")
    result = results.get("recorder", {"raw": {}})
    if set(result["raw"]) != set(recorder.LOADS):
        pytest.skip("the record is of other loads, from before all of it was measured")
    for pairs in result["raw"].values():
        assert len(pairs) >= 10
        ratios = [on / off for off, on in pairs]
        assert sys.modules["versions"].upper_bound(ratios) <= 1.05


def test_unknown_limits_are_found(results: dict[str, Any]) -> None:
    assert {(row["server"], row["rate"]) for row in results["search"]["raw"]} >= {
        (server, rate) for server in ("fixed", "moving", "bucket") for rate in ("20/1s", "600/60s")
    }
    for row in results["search"]["raw"]:
        assert row["used"] >= 0.95
        assert row["rejected"] <= 0.001


def test_waiters_are_woken_once_each(results: dict[str, Any]) -> None:
    for row in results["waiters"]["summary"].values():
        assert row["results"] <= results["waiters"]["settings"]["waiters"] + 1
        assert row["per_s"] == pytest.approx(results["waiters"]["settings"]["per_s"], rel=0.02)


def test_the_default_of_a_fleet_is_near_the_best(results: dict[str, Any]) -> None:
    settings, summary = results["route"]["settings"], results["route"]["summary"]
    assert len(summary["scenarios"]) >= 12 * len(settings["slots"])
    for rows in summary["scenarios"].values():
        own = rows["p2c, late"]
        for key in ("p50_s", "p99_s"):
            late = [row[key] for who, row in rows.items() if who == "oracle" or "late" in who]
            assert own[key] <= settings["bar"] * min(late)
    stale = summary["stale"]
    assert stale["weighted_score"]["p50_s"] > 3 * stale["p2c"]["p50_s"]


def test_few_calls_see_an_endpoint_that_fails(results: dict[str, Any]) -> None:
    settings, raw = results["failures"]["settings"], results["failures"]["raw"]
    bars = settings["bars"]
    assert len(raw["faults"]["modes"]) == 6
    for mode, met in raw["faults"]["modes"].items():
        assert met["calls"] >= settings["calls"] >= 20_000, mode
        assert met["failed_first_attempts"] <= bars["seen"] * met["calls"], mode
        assert (met["back_s"] <= bars["back_s"], met["unanswered"]) == (True, 0), mode
    assert raw["all"]["ratio"] >= bars["throughput"]
    assert (raw["killed"]["missing"], raw["killed"]["twice"]) == (0, 0)
    assert raw["resumed"]["rejected"] == 0
    runs = raw["disturbed"]["runs"]
    assert sum(run["calls"] for run in runs) >= settings["disturbed"] >= 10_000
    assert all(run["left"] == [] for run in runs)


def test_every_record_is_of_a_committed_tree_and_has_passed() -> None:
    records = sorted((ROOT / "bench" / "results").glob("*.json"))
    assert len(records) >= 4
    for path in records:
        record = json.loads(path.read_text())
        assert record.get("has_passed", True), path.name
        assert re.fullmatch("[0-9a-f]{40}", record["commit"]), path.name


def test_redline_runs_before_each_peer() -> None:
    script("bench/record.py")
    run = script("bench/run.py")
    assert run.in_turn(("redline", "a", "b"), 1) == ["redline", "b", "redline", "a"]
    assert run.in_turn(("a", "b"), 0) == ["a", "b"]
    assert run.in_turn(("redline",), 0) == ["redline"]
