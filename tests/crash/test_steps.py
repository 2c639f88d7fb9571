"""Death at each step of the journal, of its rewriting and of a resume; dying.py does the work."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SCENARIOS = ["new", "ordered", "resume", "retry-failed", "mended", "restart"]
LOST, STUCK = "acknowledged and lost", "the resumed run did not finish"
# What each mutant must be caught by, and what is then said. A file that is replaced wrongly is the
# results file or the manifest, whichever a death finds first: how lines fall into groups, and so
# the number of a step, differs from run to run.
MUTANTS = [
    ("not-synced", "new", "power", (LOST,)),
    ("name-not-synced", "new", "power", (LOST,)),
    ("told-too-early", "new", "power", (LOST,)),
    ("torn-tail-kept", "new", "torn", ("a damaged line",)),
    ("done-is-asked-again", "resume", "before", ("r1",)),
    ("old-file-removed-first", "ordered", "before", (LOST, STUCK)),
    ("new-file-not-synced", "ordered", "power", (LOST, STUCK)),
]

pytestmark = [
    pytest.mark.crash,
    pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc/self/fd"),
]


def sweep(scenario: str, manner: str, folder: Path, *mutants: str) -> tuple[int, str, str]:
    reply = subprocess.run(
        [sys.executable, str(HERE / "dying.py"), scenario, manner, str(folder), *mutants],
        env=os.environ | {"PYTHONPATH": str(HERE.parent)},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    return reply.returncode, reply.stdout, reply.stderr


@pytest.mark.parametrize("manner", ["after", "torn", "power"])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_run_that_dies_at_any_step_loses_nothing_and_is_resumed(
    tmp_path: Path, scenario: str, manner: str
) -> None:
    status, out, err = sweep(scenario, manner, tmp_path)
    assert status == 0, err
    steps = int(out.split()[1])
    # A sweep that finds few steps has not seen the writes: there are 4 groups and a manifest.
    assert steps >= (4 if manner == "torn" else 20), out


@pytest.mark.parametrize(("mutant", "scenario", "manner", "reasons"), MUTANTS)
def test_the_sweep_notices_a_broken_journal(
    tmp_path: Path, mutant: str, scenario: str, manner: str, reasons: tuple[str, ...]
) -> None:
    status, _, err = sweep(scenario, manner, tmp_path, mutant)
    last = err.rstrip().rsplit("\n", 1)[-1]
    assert status == 1, err
    assert last.startswith("AssertionError"), err
    assert any(reason in last for reason in reasons), last
