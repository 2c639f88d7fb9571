"""What a replay says of strategies is what they do on real servers."""

from __future__ import annotations

from pathlib import Path

import pytest

from redline.route.replay import replay
from support.reruns import fleet, makespans, rerun, wrong_pairs

STRATEGIES = ("p2c", "weighted_score", "round_robin")
# Runs of a second or two differ by as much from one time to the next.
NOISE = 0.25


@pytest.mark.slow
def test_a_replay_ranks_strategies_as_real_reruns_do(tmp_path: Path) -> None:
    """Recorded by the one that is worst here, and that says least about the others."""
    with fleet() as urls:
        real = {
            name: rerun(urls, name, tmp_path / name, calls=160, workers=24) for name in STRATEGIES
        }
    assert real["p2c"] < (1 - NOISE) * real["round_robin"]
    found = replay(tmp_path / "round_robin", strategies=STRATEGIES, seeds=(1, 2))
    told = makespans(found)
    assert wrong_pairs(real, told, noise=NOISE) == []
    assert told["round_robin"] == pytest.approx(real["round_robin"], rel=NOISE)
    assert found.best.better != "round_robin"


def test_a_wrong_order_is_found() -> None:
    real, told = {"a": 1.0, "b": 2.0, "c": 2.1}, {"a": 3.0, "b": 2.0, "c": 1.0}
    assert wrong_pairs(real, told, noise=NOISE) == [("a", "b"), ("a", "c")]
    assert wrong_pairs(real, real, noise=NOISE) == []
