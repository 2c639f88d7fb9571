"""The benchmark pages agree with bench/results/*.json, and contain no other figures."""

from __future__ import annotations

import copy
import itertools
import json
import math
import re
import sys
from pathlib import Path
from statistics import mean, median, stdev
from types import ModuleType
from typing import Any

import pytest

from support.scripts import script
from support.sim_process import SimProcess

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "bench" / "results"
# What a part of a page needs of a record, for one that misses its bar.
SOURCE = {
    "measured_at": "2026-11-28T00:00:00Z",
    "commit": "0" * 40,
    "src_differs_from_commit": False,
    "duration_s": 1.0,
    "versions": {"python": "3.11.7", "cpus": "2", "platform": "Linux x86_64"},
}
OPCODES = {
    **{"opcodes": 1801, "opcodes_min": 1790, "opcodes_max": 1810, "frames": 48},
    **{"bar": 1800, "is_kept": False},
}


def record_of(name: str) -> dict[str, Any]:
    """The record of a benchmark or campaign that is on no page before it has left one."""
    path = RESULTS / f"{name}.json"
    if not path.exists():
        pytest.skip(f"{name} has left no record yet")
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def missed_bars(pages: dict[str, str]) -> str:
    """What the first page says of bars that are missed."""
    return pages["benchmarks.md"].partition("Bars that are missed:")[2].partition("<!-- end")[0]


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
    assert {*results} - {*report.NAMES} == set()
    assert {*report.NAMES} - {*results} <= {*report.AWAITED}
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
    other["opcodes"] = {"summary": {"no limits": OPCODES}, "settings": {"times": 5}, **SOURCE}
    page = report.filled(pages["benchmarks.md"], other)
    assert "[bytecodes of a row](benchmarks-calls.md#bytecodes-of-a-row), no limits: 1,801" in page
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
    record = json.loads((RESULTS / "limit-servers.json").read_text())
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


def test_watching_a_run_costs_little_or_the_first_page_says_more(
    results: dict[str, Any], pages: dict[str, str]
) -> None:
    recorder = script("bench/recorder.py", "record", "run", "versions")
    raw, missed = results["recorder"]["raw"], missed_bars(pages).partition("[recording]")[2]
    assert raw.keys() == set(recorder.LOADS)
    for load, pairs in raw.items():
        assert len(pairs) >= 10
        bound = sys.modules["versions"].upper_bound([on / off for off, on in pairs])
        assert (bound > 1.05) == (f"{load} {bound:.3f}" in missed.partition("\n")[0]), load


def test_a_row_executes_few_bytecodes() -> None:
    found = record_of("opcodes")
    assert found["settings"]["bars"] == {"no limits": 1_800, "with --rps": 2_300}
    assert found["raw"].keys() == found["settings"]["bars"].keys()
    for load, bar in found["settings"]["bars"].items():
        counts = [one["opcodes"] for one in found["raw"][load]]
        assert len(counts) >= 5
        assert median(counts) <= bar, load


def test_other_clients_cost_a_multiple_or_the_first_page_says_less(
    results: dict[str, Any], pages: dict[str, str]
) -> None:
    bars = {"64 in flight, 0 ms": 28, "1,000 in flight, 200 ms": 55}
    runs, missed = results["run"]["raw"], missed_bars(pages)
    assert {run["load"] for run in runs} == bars.keys()
    for load, least in bars.items():
        own, theirs = (
            [run["cpu_s"] for run in runs if (run["load"], run["client"]) == (load, client)]
            for client in ("redline", "openai")
        )
        assert min(len(own), len(theirs)) >= 3
        times = results["run"]["summary"][load]["openai"]["cpu_to_redline"]
        assert times == pytest.approx(median(theirs) / median(own), rel=0.02)
        said = rf"\[what a call costs\].*{load}: [^;\n]* takes {times} times"
        assert (times < least) == bool(re.search(said, missed)), load


def test_a_call_costs_less_than_two_thirds_of_what_it_did(results: dict[str, Any]) -> None:
    versions, found = script("bench/versions.py", "record"), results["versions"]
    assert (found["settings"]["old"], len(found["raw"])) == ("4294e90", 4)
    for load, pairs in found["raw"].items():
        assert len(pairs) >= 10
        assert versions.upper_bound([new / old for old, new in pairs]) <= 0.65, load


def test_the_journal_costs_little(results: dict[str, Any]) -> None:
    versions, found = script("bench/versions.py", "record"), results["journal"]
    load = "64 in flight, 0 ms"
    if "us_bound" not in found["summary"][load]:
        pytest.skip("the record is older than the bound")
    pairs = found["raw"][load]["pairs"]
    assert len(pairs) >= 10
    share = versions.upper_bound([on / off for off, on in pairs]) - 1
    assert 1000 * share * median(off for off, _ in pairs) <= 20.0
    assert found["summary"][load]["calls"]["write"] / found["settings"][load]["many"] <= 0.3


def test_our_http_server_answers_twice_as_many_requests(results: dict[str, Any]) -> None:
    runs, idle = results["server"]["raw"], results["server"]["summary"]["idle"]["own"]
    for load in ("chat", "stream", "healthz"):
        before, own = (
            [
                run["requests"] / run["cpu_s"]
                for run in runs
                if (run["load"], run["kind"]) == (load, kind)
            ]
            for kind in ("before", "own")
        )
        assert len(own) >= 5
        assert median(new / old for old, new in zip(before, own, strict=True)) >= 2.0, load
    assert int(results["server"]["settings"]["idle"]) >= 10_000
    assert idle["with_mb"] - idle["before_mb"] <= 100.0


def test_the_knee_of_each_server_is_found(results: dict[str, Any]) -> None:
    found = results["concurrency"]["summary"]
    bar = results["concurrency"]["settings"]["bar"]
    assert bar == {"work": 0.95, "latency": 1.5, "refused": 0.01, "swing": 0.15}
    assert (found["kept"]["knee"], found["of"]) == (14, 14)
    own = [clients["knee"] for clients in found["servers"].values()]
    for name, least in (("work", True), ("latency", False), ("refused", False)):
        kept = [one[name] >= bar[name] if least else one[name] <= bar[name] for one in own]
        assert sum(kept) >= 14, name


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


def test_a_hundred_thousand_waiters_take_two_seconds_of_cpu(results: dict[str, Any]) -> None:
    assert results["waiters"]["settings"]["waiters"] >= 100_000
    runs = [
        run["cpu_s"]
        for run in results["waiters"]["raw"]
        if (run["loop"], run["kind"], run["is_counted"]) == ("uvloop", "limited", False)
    ]
    assert len(runs) >= 3
    assert median(runs) <= 2.0


def test_the_default_of_a_fleet_is_near_the_best(results: dict[str, Any]) -> None:
    settings, summary = results["route"]["settings"], results["route"]["summary"]
    assert len(summary["scenarios"]) >= 12 * len(settings["slots"])
    for rows in summary["scenarios"].values():
        own = rows["p2c, late"]
        for key in ("p50_s", "p99_s"):
            late = [row[key] for who, row in rows.items() if who == "oracle" or "late" in who]
            assert own[key] <= settings["bar"] * min(late)
        # What binds early may lower a median, but not the mean. An older record has none.
        means = [row["mean_s"] for row in rows.values() if "mean_s" in row]
        assert not means or own["mean_s"] <= 1.1 * min(means)
    stale = summary["stale"]
    assert stale["weighted_score"]["p50_s"] > 3 * stale["p2c"]["p50_s"]


def test_real_servers_confirm_the_order_of_strategies() -> None:
    found = record_of("route_real")
    settings, seeds = found["settings"], found["seeds"]["arrivals"]
    assert (settings["servers"], settings["calls"] >= 300, len(seeds) >= 3) == (4, True, True)
    scenarios = {run["scenario"] for run in found["raw"]}
    assert len(scenarios) == 6
    differing = 0
    for name in scenarios:
        runs = [run for run in found["raw"] if run["scenario"] == name]
        assert [run["seed"] for run in runs] == seeds
        real = {who: mean(run["real"][who]["mean_s"] for run in runs) for who in runs[0]["real"]}
        for better, worse in itertools.permutations(real, 2):
            virtual = [(run["virtual"][better], run["virtual"][worse]) for run in runs]
            if all(one["mean_s"] < 0.9 * other["mean_s"] for one, other in virtual):
                differing += 1
                assert real[better] < real[worse], (name, better, worse)
    assert differing >= 20
    assert all(one["rank_correlation"] > 0.5 for one in found["summary"].values())


def test_a_fixed_score_is_as_slow_as_before_there_was_a_pool(results: dict[str, Any]) -> None:
    settings, stale = results["route"]["settings"]["stale"], results["route"]["summary"]["stale"]
    if "before_s" not in settings:
        pytest.skip("the record is older than this part")
    assert settings["before_s"] == {"weighted_score": 7.5, "two choices": 2.3}
    for who, p50_s in settings["before_s"].items():
        assert stale[who]["p50_s"] == pytest.approx(p50_s, rel=0.1)


def test_a_job_uses_all_that_unequal_servers_can_do(results: dict[str, Any]) -> None:
    settings, summary = results["route"]["settings"], results["route"]["summary"]
    if "closed" not in summary:
        pytest.skip("the record is older than this part")
    assert settings["closed"]["rows"] >= 20_000
    assert settings["closed"]["speeds"] == [1, 1, 0.5, 0.25]
    runs = [run for row in summary["closed"].values() for run in row["runs"]]
    assert len(runs) == len(settings["closed"]["slots"]) * len(results["route"]["seeds"]["seeds"])
    for run in runs:
        assert run["took_s"] <= 1.03 * run["ideal_s"] + run["longest_s"]


def test_few_calls_see_an_endpoint_that_fails(results: dict[str, Any]) -> None:
    settings, raw = results["failures"]["settings"], results["failures"]["raw"]
    bars = settings["bars"]
    assert len(raw["faults"]["modes"]) == 7
    for mode, met in raw["faults"]["modes"].items():
        assert met["calls"] >= settings["calls"] >= 20_000, mode
        assert met["failed_first_attempts"] <= bars["seen"] * met["calls"], mode
        assert (met["back_s"] <= bars["back_s"], met["unanswered"]) == (True, 0), mode
    others = (settings["servers"] - 1) * settings["slower"]
    slow = raw["faults"]["modes"]["ten times slower"]["share"]
    assert 0.5 / (1 + others * settings["slower"]) <= slow <= 1 / (1 + others)
    assert raw["all"]["ratio"] >= bars["throughput"]
    assert (raw["killed"]["missing"], raw["killed"]["twice"]) == (0, 0)
    assert raw["resumed"]["rejected"] == 0
    runs = raw["disturbed"]["runs"]
    assert sum(run["calls"] for run in runs) >= settings["disturbed"] >= 10_000
    assert all(run["left"] == [] for run in runs)
    # An older record has two pools, of half as many calls each.
    if "disturbed" in results["failures"]["seeds"]:
        assert max(run["calls"] for run in runs) >= settings["disturbed"]


def test_keys_of_one_server_are_used_or_the_first_page_says_less(
    results: dict[str, Any], pages: dict[str, str]
) -> None:
    settings, found = results["failures"]["settings"], results["failures"]["raw"]["keys"]
    assert (settings["keys"], settings["rate"], settings["parked_s"]) == (4, 20, 10)
    assert found["rows"] >= 6_000
    # As many as wait for the keys.
    assert found["latest_place"] <= 220
    is_kept = found["used_of_nominal"] >= 0.98 and not found["rejected"]
    assert found["is_kept"] == is_kept
    assert is_kept == ("[keys of one server]" not in missed_bars(pages))


def test_a_pool_costs_little_or_the_first_page_says_more(
    results: dict[str, Any], pages: dict[str, str]
) -> None:
    raw, summary = results["pool_cost"]["raw"], results["pool_cost"]["summary"]
    for size, bar in (("2", 1.04), ("100", 1.1)):
        logs = [math.log(own / one) for own, one in zip(raw[size], raw["1"], strict=True)]
        assert len(logs) >= 10
        # Student's t for 9 degrees of freedom, one-sided 95 %.
        bound = math.exp(mean(logs) + 1.833 * stdev(logs) / math.sqrt(len(logs)))
        row = summary[f"{size} endpoints"]
        assert (row["bound"], row["bar"]) == (pytest.approx(bound, abs=0.005), bar)
        is_said = re.search(rf"\[a pool\].*\b{size} endpoints", missed_bars(pages))
        assert (row["bound"] > bar) == bool(is_said)


def test_an_autoscaler_is_calm_and_follows(results: dict[str, Any]) -> None:
    settings, raw = results["scaling"]["settings"], results["scaling"]["raw"]
    assert settings["hours"] >= 6
    assert settings["policy"] == "demand"
    assert min(len(raw["steady"]), len(raw["steps"])) >= 10
    for run in raw["steady"]:
        assert run["changes_per_hour"] <= 2
        assert 0.6 <= run["utilization"] <= 0.8
        assert (run["failed"], run["dropped"]) == (0, 0)
    for run in raw["steps"]:
        # The start of a replica and the panic window, 60 s each, and a tenth.
        assert run["back_s"] <= 132
        assert run["after"] < run["most"]
        assert (run["failed"], run["dropped"]) == (0, 0)


def test_no_call_is_lost_where_real_replicas_are_stopped() -> None:
    parts = record_of("scale-downs")["parts"].values()
    fleets = [fleet for part in parts for fleet in part["fleets"]]
    assert sum(fleet["stopped"] for fleet in fleets) >= 50
    assert {outcome for fleet in fleets for outcome in fleet["outcomes"]} == {"succeeded"}


def test_a_replay_ranks_strategies_as_reruns_did() -> None:
    found = record_of("replay")
    summary, rounds = found["summary"], found["settings"]["rounds"]
    assert (found["settings"]["calls"] >= 300, rounds >= 3) == (True, True)
    real = dict[str, list[float]]()
    for run in found["raw"]:
        real.setdefault(run["strategy"], []).append(run["makespan_s"])
    assert {len(spans) for spans in real.values()} == {rounds}
    differing = [
        (better, worse)
        for better, worse in itertools.permutations(real, 2)
        if (lead := mean(real[worse]) - mean(real[better])) > 0.05 * mean(real[worse])
        and lead > 3 * math.hypot(*(stdev(real[name]) for name in (better, worse))) / rounds**0.5
    ]
    assert len(differing) >= 1
    assert summary["replays"].keys() == real.keys()
    for told in (one["makespans_s"] for one in summary["replays"].values()):
        assert [pair for pair in differing if told[pair[0]] >= told[pair[1]]] == []


def test_a_million_rows_are_shown_and_compared_in_little_memory() -> None:
    record = record_of("show")
    assert (record["settings"]["rows"] >= 1_000_000, record["settings"]["most_mb"]) == (True, 200)
    assert {title.split()[0] for title in record["raw"]} == {"show", "compare"}
    peaks_mb = [one["peak_mb"] for one in record["raw"].values()]
    assert record["summary"]["peak_mb"] == max(peaks_mb) <= 200


def test_bottlenecks_that_are_kept_apart_are_others_and_count_as_they_came(
    results: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = results["binds"]
    names = [one["name"] for one in record["apart"]["raw"]]
    assert len(names) == 4
    assert not {*names} & {one["name"] for one in record["raw"]}
    binds = script("bench/binds.py", "record")
    (tmp_path / "binds.json").write_text(json.dumps(record))
    assert binds.try_apart(tmp_path / "binds.json", relax=True) == 2
    assert "have been run" in capsys.readouterr().err


def test_each_run_of_a_bottleneck_is_summarized() -> None:
    binds = script("bench/binds.py", "record")
    runs = [("a", 1, 10, 10), ("a", 2, 10, 8), ("b", 1, 20, 20), ("b", 2, 20, 19)]
    summary = binds.summarize([binds.Found(*run, (), {}) for run in runs])
    assert summary["by_seed"] == {"a": {"1": 1.0, "2": 0.8}, "b": {"1": 1.0, "2": 0.95}}
    assert summary["least_run"] == {"name": "a", "seed": 2, "share": 0.8}
    # What is judged is each scenario over its seeds.
    assert (summary["least"], summary["share"]) == (0.9, 0.95)


def test_bench_agrees_with_its_peer_or_the_first_page_says_that_not(pages: dict[str, str]) -> None:
    record = record_of("throughput")
    settings = record["settings"]
    assert (settings["concurrency"], settings["duration_s"] >= 30) == (16, True)
    assert settings["bars"] == {"requests_per_s": 0.03, "ttft_p50_s": 0.05}
    assert len(record["raw"]) >= 3
    for figure, bar in settings["bars"].items():
        ratios = sorted(one["redline"][figure] / one["aiperf"][figure] for one in record["raw"])
        middle = (ratios[(len(ratios) - 1) // 2] + ratios[len(ratios) // 2]) / 2 - 1
        assert record["summary"]["differences"][figure] == pytest.approx(middle)
        is_said = f"#redline-bench-and-its-peer), {figure}:" in missed_bars(pages)
        assert (abs(middle) > bar) == is_said
    assert all(one["aiperf"]["requests_per_s"] < 100 for one in record["raw"])


def test_what_has_no_record_yet_is_drawn_once_it_has(
    report: ModuleType, results: dict[str, Any]
) -> None:
    known = {name: one for name, one in results.items() if name not in report.AWAITED}
    assert {report.blocks(known)[name] for name in report.AWAITED} == {"No record yet."}
    figures = dict.fromkeys(("requests_per_s", "ttft_p50_s", "ttft_p99_s", "tpot_mean_s"), 0.5)
    who = ("redline", "aiperf", "redline's server", "aiperf's server")
    facts = {key: known["binds"][key] for key in ("versions", "commit", "measured_at")}
    facts |= {"src_differs_from_commit": False, "duration_s": 1.0}
    planted = {
        "throughput": {
            "settings": {"bars": {"requests_per_s": 0.03, "ttft_p50_s": 0.05}},
            "summary": {"differences": {**figures, "requests_per_s": 0.02, "ttft_p50_s": -0.06}},
            "raw": [dict.fromkeys(who, figures)],
        },
        "show": {
            "settings": {"rows": 1_000_000, "most_mb": 200.0},
            "summary": {"peak_mb": 210.0},
            "raw": {"show a.jsonl": {"peak_mb": 210.0, "cpu_s": 3.0}},
        },
    }
    made = report.blocks(known | {name: one | facts for name, one in planted.items()})
    assert "| +2.0 % | 3 %, kept |" in made["throughput"]
    assert "| -6.0 % | 5 %, **missed** |" in made["throughput"]
    assert "The bar, 200 MB for 1,000,000 rows, is not kept." in made["show"]
    missed = made["lost"].partition("Bars that are missed:")[2]
    assert "ttft_p50_s: -6.0 %, at most 5 %" in missed
    assert (
        "shown and compared](benchmarks-observe.md#many-rows-shown-and-compared): 210 MB" in missed
    )
    assert "requests_per_s" not in missed


def test_every_record_is_of_a_committed_tree_and_has_passed() -> None:
    records = sorted(RESULTS.glob("*.json"))
    assert len(records) >= 4
    for path in records:
        record = json.loads(path.read_text())
        assert record.get("has_passed", True), path.name
        assert re.fullmatch("[0-9a-f]{40}", record["commit"]), path.name


class Costing:
    """Costs as much for each row as the next of these figures says, and 1 s for the start."""

    def __init__(self, *a_row: float) -> None:
        self._a_row = iter((1.0, *(each for each in a_row for _ in ("many", "few"))))

    def cpu_s(self, rows: Path) -> float:
        return 1.0 + next(self._a_row) * int(rows.stem)


def test_a_turn_that_is_disturbed_does_not_count() -> None:
    versions = script("bench/versions.py", "record")
    counts = versions.InFlight(64, 0.0, 3_000, 1_000, 3)
    # The machine becomes slower, and the last run of each meets other work.
    variants = Costing(0.1, 0.2, 0.9), Costing(0.11, 0.22, 0.3)
    pairs = versions.compare(variants, [Path("3000"), Path("1000")], counts, 1)
    assert pairs == [[pytest.approx(200), pytest.approx(220)]]


@pytest.mark.slow
def test_both_sides_of_what_is_compared_run_to_their_end(tmp_path: Path) -> None:
    """They reach into parts of redline that may change."""
    recorder = script("bench/recorder.py", "record", "run", "versions")
    journal = script("bench/journal.py")
    rows = tmp_path / "20.jsonl"
    sys.modules["record"].write_rows(rows, 20)
    with SimProcess() as server:
        for is_on in (False, True):
            assert recorder.Variant(is_on, server.base_url, 8).cpu_s(rows) > 0
        counts = sys.modules["versions"].InFlight(8, 0.0, 20, 10, 1)
        sides = {kind: journal.Runs(kind, server.base_url, counts) for kind in ("off", "on")}
        for runs in sides.values():
            assert runs.cpu_s(rows) > 0
    assert sides["on"].bytes_written > sides["off"].bytes_written == 0


def test_redline_runs_before_each_peer() -> None:
    script("bench/record.py")
    run = script("bench/run.py")
    own = ["redline"] * run.OWN_RUNS
    assert run.in_turn(("redline", "a", "b"), 1) == [*own, "b", *own, "a"]
    assert run.in_turn(("a", "b"), 0) == ["a", "b"]
    assert run.in_turn(("redline",), 0) == own


def test_a_peer_is_compared_with_the_median_of_redlines_runs_before_it() -> None:
    script("bench/record.py")
    run = script("bench/run.py")
    costs = [("redline", 1.0), ("redline", 3.0), ("redline", 2.0), ("a", 20.0)]
    costs += [("redline", 5.0), ("b", 7.0), ("redline", 4.0), ("a", 20.0)]
    runs = [{"client": client, "cpu_s": cpu_s, "rows": 1} for client, cpu_s in costs]
    assert run.in_pairs(runs, "a") == [10.0, 5.0]
