"""docs/benchmarks.md says what bench/results/*.json say, and nothing else."""

from __future__ import annotations

import copy
import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def report() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bench_report", ROOT / "bench" / "report.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def results(report: ModuleType) -> dict[str, Any]:
    found: dict[str, Any] = report.load()
    return found


@pytest.fixture(scope="module")
def page(report: ModuleType) -> str:
    text: str = report.PAGE.read_text()
    return text


def test_every_benchmark_has_left_its_results(report: ModuleType, results: dict[str, Any]) -> None:
    assert sorted(results) == sorted(report.NAMES)
    for name, result in results.items():
        assert result["name"] == name
        assert len(result["commit"]) == 40
        assert result["duration_s"] > 0
        assert all(result[key] for key in ("command", "versions", "settings", "summary", "raw"))


def test_the_page_holds_a_part_of_each(report: ModuleType, page: str) -> None:
    for name in (*report.NAMES, "losses"):
        assert page.count(f"<!-- figures: {name} -->") == 1


def test_the_page_is_what_the_results_make_of_it(
    report: ModuleType, results: dict[str, Any], page: str
) -> None:
    assert report.filled(page, results) == page, "run python bench/report.py"


def test_the_text_names_no_number_but_settings(
    report: ModuleType, results: dict[str, Any], page: str
) -> None:
    assert report.strange_numbers(page, results) == []


def test_a_changed_figure_is_seen(report: ModuleType, results: dict[str, Any], page: str) -> None:
    other = copy.deepcopy(results)
    other["article"]["summary"]["redline"]["end_s_median"] += 0.01
    assert report.filled(page, other) != page


def test_a_figure_in_the_text_is_seen(
    report: ModuleType, results: dict[str, Any], page: str
) -> None:
    planted = page.replace("## Memory of a long run", "redline makes 31,337 rows/s.\n\n## Memory")
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
            assert len(runs) >= 5
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


def test_every_record_is_of_a_committed_tree_and_has_passed() -> None:
    records = sorted((ROOT / "bench" / "results").glob("*.json"))
    assert len(records) >= 4
    for path in records:
        record = json.loads(path.read_text())
        assert record.get("has_passed", True), path.name
        assert re.fullmatch("[0-9a-f]{40}", record["commit"]), path.name
