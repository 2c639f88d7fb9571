"""The soak of bench/serve_soak.py in its smallest form: a leak is noticed, and there is none."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

from support.sim_process import SimProcess

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

import serve_soak

pytestmark = [
    pytest.mark.real,
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/statm").is_file(), reason="needs /proc/self/statm"),
]
FLAT = {"memory_mb": 60.0, "blocks": 110_000.0, "descriptors": 80.0, "tasks": 40.0}


def samples(**leaks: float) -> list[serve_soak.Sample]:
    """Half an hour with a sample a second. leaks: how much of a figure is kept in an hour."""
    chance = random.Random(1)
    return [
        {"at_s": float(second)}
        | {
            figure: level
            + chance.uniform(-0.001, 0.001) * level
            + leaks.get(figure, 0.0) * second / 3600
            for figure, level in FLAT.items()
        }
        for second in range(1800)
    ]


@pytest.mark.parametrize("figure", FLAT)
def test_a_leak_is_noticed_and_its_absence_too(figure: str) -> None:
    bar = serve_soak.BARS[figure]
    found = serve_soak.judge(samples(**{figure: 1.5 * bar}))
    assert [name for name, of in found.items() if of["is_leak"]] == [figure]


def test_what_is_flat_is_no_leak() -> None:
    assert not any(of["is_leak"] for of in serve_soak.judge(samples()).values())


def test_a_gateway_at_half_load_grows_within_bounds_and_holds_nothing_in_the_end(
    tmp_path: Path,
) -> None:
    plan = serve_soak.Plan(lasts_s=20.0, keys=200, every_s=0.5, warm_up_s=4.0)
    with SimProcess("--latency", serve_soak.LATENCY) as sim:
        found = serve_soak.soak(tmp_path, sim.base_url, plan)
        assert sim.stats()["in_flight"] == 0
    before, after = found["before"], found["after"]
    assert found["answers"] > plan.keys
    assert found["left"] > 0
    assert found["held"] == {}
    # A connection to the endpoint for each client, at most.
    assert after["descriptors"] <= before["descriptors"] + serve_soak.CONNECTIONS
    assert after["tasks"] <= before["tasks"]
    # One object of 100 bytes that each call leaves would be above it.
    calls = found["answers"] + found["left"]
    assert after["blocks"] - before["blocks"] < max(20_000, calls)
    assert after["memory_mb"] - before["memory_mb"] < 16
