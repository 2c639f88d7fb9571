"""Adaptive concurrency against simulated servers: the bars of bench/concurrency.py, in small."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from redline.limits.discover import AdaptiveConcurrency
from support.catching import assert_caught

BENCH = Path(__file__).parents[2] / "bench"
SEED = 1


@pytest.fixture(scope="module")
def bench() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("bench_concurrency", BENCH / "concurrency.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up, and the benchmark imports what lies beside it.
    sys.modules[spec.name] = module
    sys.path.insert(0, str(BENCH))
    try:
        spec.loader.exec_module(module)
        yield module
    finally:
        sys.path.remove(str(BENCH))
        del sys.modules[spec.name]


def figures(bench: ModuleType, scenario: Any, kind: Any, levels: tuple[int, int]) -> dict[str, Any]:
    """One run's; levels: the best fixed concurrency, and the knee."""
    best, knee = (bench.simulate(scenario, bench.Fixed(level), SEED) for level in levels)
    trace = bench.simulate(scenario, kind(most=bench.MOST), SEED)
    found: dict[str, Any] = bench.judge(scenario, trace, best, knee)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "levels"),
    [
        ("batch of 256", (256, 240)),
        ("batch, full at 96", (240, 96)),
        ("pool of 4", (4, 4)),
        ("pool of 32", (32, 32)),
        ("pool of 32, sizes unknown", (32, 32)),
        ("503 above 100", (100, 96)),
        ("503 above 8", (8, 8)),
        ("doubled at 60 s", (128, 128)),
    ],
)
def test_it_does_nearly_the_best_work_at_nearly_the_knees_latency(
    bench: ModuleType, name: str, levels: tuple[int, int]
) -> None:
    found = figures(bench, bench.SCENARIOS[name], AdaptiveConcurrency, levels)
    assert bench.is_kept(found), found


def test_noise_without_a_queue_does_not_hold_it_down(bench: ModuleType) -> None:
    scenario = replace(bench.SCENARIOS["noise, no queue"], duration_s=150)
    found = figures(bench, scenario, AdaptiveConcurrency, (1000, 1000))
    assert found["work"] >= 0.9
    assert found["limit_mean"] >= 0.9 * bench.MOST


def check_it_follows(kind: Any, bench: ModuleType) -> None:
    scenario = bench.Scenario(
        lambda _: bench.Pool(32, [(300, 16), (600, 32)]), duration_s=800, changed_s=600
    )
    limits = bench.simulate(scenario, kind(most=bench.MOST), SEED).limits
    assert 28 <= sum(limits[200:300]) / 100 <= 40
    assert 12 <= sum(limits[450:600]) / 150 <= 24
    assert 28 <= sum(limits[700:800]) / 100 <= 45


def test_it_follows_a_server_that_slows_down_and_recovers(bench: ModuleType) -> None:
    def check(kind: Any) -> None:
        check_it_follows(kind, bench)

    assert_caught(check, AdaptiveConcurrency, lambda most: bench.Fixed(32))


@pytest.mark.parametrize(
    ("name", "client", "key", "is_bad"),
    [
        ("pool of 32", "aimd", "latency", lambda value: value > 5),
        ("pool of 32", "gradient", "latency", lambda value: value > 1.5),
        ("batch of 256", "vegas", "work", lambda value: value < 0.9),
    ],
)
def test_the_others_lose_where_the_decision_says_so(
    bench: ModuleType, name: str, client: str, key: str, is_bad: Any
) -> None:
    levels = {"pool of 32": (32, 32), "batch of 256": (256, 240)}[name]
    kind = bench.CLIENTS[client]
    found = figures(bench, bench.SCENARIOS[name], lambda most: kind(), levels)
    assert is_bad(found[key]), found
