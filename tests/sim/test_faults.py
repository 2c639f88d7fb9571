"""The one-outcome law under seeded scripts of faults, over the whole way of a row.

The small form of the campaign in bench/fault_campaign.py. A script that breaks the law names its
seed and the command that plays it again.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from faults.mutations import MUTATIONS, Mutation, caught_by
from faults.play import play
from faults.script import KINDS, STAGES

TESTS = Path(__file__).parent.parent
# The rarest fault is in one script of a hundred.
SEEDS = range(1, 401)
ENDINGS = ("itself", "drain", "abort", "cancel", "kill", "power")


# The worker of the tests that yields to others takes four minutes for it on a slow machine.
@pytest.mark.slow
@pytest.mark.timeout(480)
def test_whatever_fails_and_however_it_ends_every_row_has_one_outcome() -> None:
    counts: Counter[str] = Counter()
    traces = set()
    for seed in SEEDS:
        played = play(seed)
        counts += played.counts()
        traces.add(played.hash)
    assert len(traces) >= 0.98 * len(SEEDS), "scripts that are too much alike"
    missed = [kind for kind in KINDS if not counts[f"attempt: {kind}"]]
    missed += [how for how in ENDINGS if not counts[f"ending: {how}"]]
    missed += [stage for stage in STAGES if not counts[f"ended at: {stage}"]]
    assert not missed, f"not met by any script: {missed}"
    assert counts["outcome: succeeded"] > 1_000
    assert counts["outcome: exhausted"] > 500


@pytest.mark.parametrize("seed", [100_278, 102_073, 102_115])
def test_an_answer_is_saved_if_its_function_returns_in_the_turn_in_which_it_is_left(
    seed: int,
) -> None:
    """In 102,073 its result comes behind the timer that leaves it, in the others before it."""
    assert "abort" in [ran.facts.ended_by for ran in play(seed).runs]


@pytest.mark.parametrize("seed", [101_417, 109_108])
def test_a_run_that_is_killed_while_its_timeline_ends_leaves_no_file_open(seed: int) -> None:
    assert "kill" in [ran.facts.ended_by for ran in play(seed).runs]


@pytest.mark.slow
def test_a_seed_gives_the_same_trace_again_in_any_process() -> None:
    seeds = [1, 2, 3, 4, 5, 6, 7, 8]
    here = [play(seed).hash for seed in seeds]
    assert here == [play(seed).hash for seed in seeds]
    command = [sys.executable, str(TESTS / "faults" / "replay.py"), "--quiet"]
    for hash_seed, order in (("1", seeds), ("2", seeds[::-1])):
        there = subprocess.run(
            [*command, *map(str, order)],
            env=os.environ | {"PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        ).stdout
        found = dict(line.split(": ")[:2] for line in there.splitlines())
        assert [found[f"seed {seed}"] for seed in seeds] == here


@pytest.mark.slow
@pytest.mark.parametrize(
    "mutation", [m for m in MUTATIONS if not m.is_rare], ids=lambda mutation: mutation.name
)
def test_the_scripts_notice_a_broken_part(mutation: Mutation) -> None:
    broken = caught_by(mutation, SEEDS)
    assert broken is not None, "no script notices it"
    assert mutation.is_named_by(broken), str(broken)
    assert f"replay.py {broken.seed}" in str(broken)
