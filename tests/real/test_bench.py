"""The benchmarks run, in their smallest form, and leave the files that the page is made of."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.simulated import simulated

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]


# One round of the least that wrk can last, which asks for as much as its connections take.
SHORT = ("--rounds", "1", "--seconds", "1", "--connections", "1")


def bench(name: str, folder: Path, *flags: str) -> dict[str, Any]:
    """The result file of one benchmark run."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "bench" / f"{name}.py"), "--results", str(folder), *flags],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert (folder / f"{name}.json").exists(), done.stdout + done.stderr
    result: dict[str, Any] = json.loads((folder / f"{name}.json").read_text())
    assert set(result) > {"commit", "command", "versions", "settings", "seeds", "raw", "duration_s"}
    assert f"{name}.json" in done.stdout
    return result


@pytest.mark.slow
def test_the_articles_comparison(tmp_path: Path) -> None:
    result = bench("article", tmp_path, "--runs", "1", "--calls", "6", "--clients", "redline")
    (run,) = result["raw"]
    assert run["rejected"] == 0
    assert len(run["latencies_s"]) == 6
    assert run["arrivals_s"] == sorted(run["arrivals_s"])
    assert run["fastest_possible_s"] < run["bar_s"]
    # The last answer cannot come before the server has sent it.
    last = max(a + b for a, b in zip(run["arrivals_s"], run["latencies_s"], strict=True))
    assert run["end_s"] >= last - 0.001


@pytest.mark.slow
def test_the_cost_of_a_call(tmp_path: Path) -> None:
    result = bench("run", tmp_path, "--rounds", "1", "--rows", "50", "--clients", "redline")
    assert {run["load"] for run in result["raw"]} == {*result["settings"]["loads"]}
    for run in result["raw"]:
        assert run["cpu_s"] > 0
        assert run["rows"] == 50


@pytest.mark.parametrize("client", ["direct", "bare"])
def test_the_clients_of_the_transports(client: str) -> None:
    script = str(ROOT / "bench" / "peers" / "transport_clients.py")
    with simulated() as sim:
        done = subprocess.run(
            [sys.executable, script, client, sim.base_url, "20", "4"],
            capture_output=True,
            text=True,
            timeout=110,
            check=False,
        )
        assert set(json.loads(done.stdout or "{}")) == {"cpu_s", "wall_s", "peak_rss_mb"}, done
        assert sim.stats()["received"] == 20


@pytest.mark.slow
def test_the_memory_curve(tmp_path: Path) -> None:
    result = bench("memory", tmp_path, "--rows", "20000")
    rows = [sample["rows"] for sample in result["raw"]]
    assert rows == sorted(rows)
    assert len(result["summary"]["rss_mb"]) == 10
    assert all(20 < sample["rss_mb"] < 2000 for sample in result["raw"])


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("wrk") is None, reason="wrk is not installed")
def test_the_http_server_under_wrk(tmp_path: Path) -> None:
    result = bench("server", tmp_path, *SHORT, "--idle", "100")
    assert {(run["load"], run["kind"]) for run in result["raw"]} == {
        (load, kind) for load in ("chat", "stream", "healthz") for kind in ("before", "own")
    }
    assert all(run["requests"] > 100 for run in result["raw"])
    for load in ("chat", "stream", "healthz"):
        assert result["summary"][load]["ratio"] > 0
    for sizes in result["summary"]["idle"].values():
        assert 0 < sizes["before_mb"] <= sizes["with_mb"]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("wrk") is None, reason="wrk is not installed")
def test_the_relay_beside_a_bare_passthrough(tmp_path: Path) -> None:
    result = bench("relay", tmp_path, *SHORT)
    fronts = [run["front"] for run in result["raw"]]
    assert sorted(fronts) == ["bare", "limited", "redline"]
    assert all(run["requests"] > 100 for run in result["raw"])
    assert result["summary"]["bare"]["ratio"] == 1.0
