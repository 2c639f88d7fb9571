"""Death at each step that a run or a repair takes on the disk; dying.py does the work."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from crash import dying
from crash.mutating import mutated

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


@pytest.mark.slow
@pytest.mark.parametrize(("work", "seed"), WORKS.items())
def test_a_run_that_dies_at_any_step_loses_nothing_and_is_resumed(
    tmp_path: Path, work: str, seed: int
) -> None:
    """Killed, or with the power gone: the manner is drawn at each step."""
    moments = dying.sweep(dying.WORKS[work], seed, ("any", "any"), tmp_path)
    # A sweep that finds fewer steps has not seen the files change.
    assert moments.total() >= 25, moments


@pytest.mark.slow
@pytest.mark.parametrize(("mutant", "work", "manner", "reason"), MUTANTS)
def test_the_sweep_notices_a_broken_part(
    tmp_path: Path, mutant: str, work: str, manner: str, reason: str
) -> None:
    place, loss = manner.split("/")
    with mutated(mutant), pytest.raises(AssertionError, match=reason):
        dying.sweep(dying.WORKS[work], 1, (place, loss), tmp_path, last_first=mutant in LATE)


def died(*words: str) -> tuple[int, str]:
    """The status of dying.py, and the last line of its stderr."""
    reply = subprocess.run(
        [sys.executable, PROGRAM, *words],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"tests:{os.environ.get('PYTHONPATH', '')}"},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    return reply.returncode, reply.stderr.rstrip().rsplit("\n", 1)[-1]


@pytest.mark.slow
def test_what_a_sweep_finds_is_seen_again_when_a_process_dies() -> None:
    mutant = ("--mutant", "told-too-early")
    status, last = died("new", "before/all", *mutant)
    assert status == 1
    assert last.startswith(f"AssertionError: {LOST}")
    words = last.partition(f"replay: PYTHONPATH=tests python {PROGRAM} ")[2].split()
    assert died(*words, *mutant) == (1, last), "the replay failed otherwise"
    assert died(*words)[0] == 0
