"""The campaign journal-kills in its smallest form, and that it seeks steps that there are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
# In a process of its own, because it forks.
PARTS = """
import json, sys, step_campaign
from pathlib import Path
step_campaign.LEAST = 1
for name, _, work in step_campaign.parts():
    if name in sys.argv[2:]:
        print(json.dumps(work(Path(sys.argv[1]))))
"""
MOMENTS = """
import json, sys, step_campaign
from pathlib import Path
from crash.dying import WORKS, survey
found = {}
for work in WORKS.values():
    found[work.name] = [vars(step) for seed in (1, 2) for step in
                        survey(work, seed, Path(sys.argv[1]))]
print(json.dumps({"found": found, "sought": step_campaign.STEPS}))
"""
UNKNOWN = """
import sys
from pathlib import Path
from crash import dying
dying._MOST_CASES = 4
dying.hunt(["new"], ["group: no such moment"], ["none"], 1, Path(sys.argv[1]))
"""

pytestmark = [
    pytest.mark.crash,
    pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc/self/fd"),
]


def answered(code: str, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    paths = ["bench", "tests", os.environ.get("PYTHONPATH", "")]
    return subprocess.run(
        [sys.executable, "-c", code, str(folder), *words],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


def sought(steps: dict[str, Any]) -> dict[str, set[str]]:
    """The moments that the campaign seeks in each work."""
    found: dict[str, set[str]] = {}
    for works, purposes in steps.values():
        moments = {
            f"{purpose}: {moment}" if moment else purpose
            for purpose, moments in purposes.items()
            for moment in moments or [""]
        }
        for work in works:
            found.setdefault(work, set()).update(moments)
    return found


def test_every_moment_that_the_campaign_seeks_occurs(tmp_path: Path) -> None:
    reply = answered(MOMENTS, tmp_path)
    assert reply.returncode == 0, reply.stderr
    told = json.loads(reply.stdout)
    occurring = {
        step[place]
        for steps in told["found"].values()
        for step in steps
        for place in ("before", "within", "after")
    }
    wanted = set.union(*sought(told["sought"]).values())
    assert len(wanted) >= 50
    assert not wanted - occurring
    # What is not sought is what the next step is sought for, or where nothing can have changed.
    assert len(occurring - {""} - wanted) <= 12, occurring - wanted


@pytest.mark.slow
def test_two_parts_in_their_smallest_form(tmp_path: Path) -> None:
    reply = answered(PARTS, tmp_path, "group, killed", "lost lines, power")
    assert reply.returncode == 0, reply.stderr
    figures = [json.loads(line) for line in reply.stdout.splitlines() if line.startswith("{")]
    assert len(figures) == 2
    for part in figures:
        assert min(part["at"].values()) >= 1
        assert part["deaths"] == sum(part["at"].values()) + part["elsewhere"]


def test_a_moment_that_never_comes_is_noticed(tmp_path: Path) -> None:
    reply = answered(UNKNOWN, tmp_path)
    assert reply.returncode == 1
    assert "AssertionError: too few deaths" in reply.stderr
