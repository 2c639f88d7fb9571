"""Death at each step that a run or a repair takes on the disk; dying.py does the work."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = "tests/crash/dying.py"
# Each with the seed of the smallest case, of 40, that has all moments at which a death may come.
WORKS = {
    "new": 29,
    "limited": 29,
    "ordered": 29,
    "resume": 22,
    "lost-blocks": 2,
    "retry-failed": 2,
    "mended": 2,
    "restart": 29,
    "changed": 2,
    "repair": 30,
}
LOST, ONCE = "acknowledged and lost", "not each once"
# Of these, what only a death at one of the last steps shows.
LATE = ("found-lines-not-synced", "names-not-synced")
# What each mutant must be caught by, and what is then said.
MUTANTS = [
    ("not-synced", "new", "before/all", ONCE),
    ("found-lines-not-synced", "new", "after/none", ONCE),
    ("names-not-synced", "ordered", "before/none", ONCE),
    ("torn-tail-kept", "resume", "before/none", "did not finish"),
    ("damage-not-seen", "lost-blocks", "before/none", "a damaged line"),
    ("lost-lines-kept", "lost-blocks", "before/none", "did not finish"),
    ("lost-lines-refused", "lost-blocks", "before/none", "did not finish"),
    ("told-too-early", "new", "before/all", LOST),
    ("done-is-asked-again", "resume", "before/none", "asked again"),
    ("old-file-removed-first", "ordered", "before/none", LOST),
    ("new-file-not-synced", "ordered", "before/all", ONCE),
    ("old-files-aside-not-synced", "restart", "before/all", "a line of the old run"),
    ("aside-comes-last", "repair", "before/none", "what went out is gone"),
    ("aside-not-synced", "repair", "before/all", "beside labels.jsonl"),
    ("old-file-removed-first", "repair", "before/none", "labels.jsonl is gone"),
    ("repaired-name-not-synced", "repair", "before/none", "is neither"),
]

pytestmark = [
    pytest.mark.crash,
    pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc/self/fd"),
]


def dying(*words: str) -> tuple[int, str, str]:
    """Status, stdout and stderr of dying.py. In a process of its own: it forks, and stays small."""
    reply = subprocess.run(
        [sys.executable, PROGRAM, *words],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"tests:{os.environ.get('PYTHONPATH', '')}"},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    return reply.returncode, reply.stdout, reply.stderr


@pytest.mark.parametrize(("work", "seed"), WORKS.items())
def test_a_run_that_dies_at_any_step_loses_nothing_and_is_resumed(work: str, seed: int) -> None:
    """Killed, or with the power gone: the manner is drawn at each step."""
    status, out, err = dying(work, "any/any", "--seed", str(seed))
    assert status == 0, err
    # A sweep that finds fewer steps has not seen the files change.
    assert int(out.split()[1]) >= 25, out


@pytest.mark.parametrize(("mutant", "work", "manner", "reason"), MUTANTS)
def test_the_sweep_notices_a_broken_part_and_says_how_to_see_it_again(
    mutant: str, work: str, manner: str, reason: str
) -> None:
    order = ["--last-first"] * (mutant in LATE)
    status, _, err = dying(work, manner, *order, "--mutant", mutant)
    last = err.rstrip().rsplit("\n", 1)[-1]
    assert status == 1, err
    assert last.startswith("AssertionError"), err
    assert reason in last
    if mutant == "told-too-early":
        words = last.partition(f"replay: PYTHONPATH=tests python {PROGRAM} ")[2].split()
        status, _, err = dying(*words, "--mutant", mutant)
        assert status == 1
        assert err.rstrip().endswith(last), "the replay failed otherwise"
        assert dying(*words)[0] == 0
