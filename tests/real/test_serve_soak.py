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


# A minute cannot show the 2 MB an hour of the campaign. What a gateway keeps of its last minutes,
# within bounds, grows by 2 to 3 kB a second meanwhile, and 10 kB that are lost in a hundred calls
# would be another 2 kB.
SLOW = serve_soak.Plan(
    lasts_s=60.0, per_s=20.0, connections=8, every_s=2.0, warm_up_s=2.0, is_exact=True
)
MOST_KB_AN_HOUR = 13_000.0


@pytest.mark.timeout(240)
@pytest.mark.skipif(serve_soak.allocated_kb() is None, reason="needs mallinfo2 of glibc 2.33")
def test_a_gateway_under_a_low_load_for_a_minute_grows_within_a_bound(tmp_path: Path) -> None:
    with SimProcess("--latency", serve_soak.LATENCY) as sim:
        found = serve_soak.soak(tmp_path, sim.base_url, SLOW)
        assert sim.stats()["in_flight"] == 0
    before, after = found["before"], found["after"]
    assert found["answers"] > SLOW.keys
    assert found["left"] > 20
    assert found["held"] == {}
    assert after["descriptors"] == before["descriptors"]
    # A connection to the endpoint may be looked after by a task for a moment.
    assert after["tasks"] <= before["tasks"] + 1
    assert serve_soak.upper_bound(found["samples"], "allocated_kb") < MOST_KB_AN_HOUR
