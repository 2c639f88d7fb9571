"""`redline synth` against a server that repeats itself, and through a death."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from support.simulated import Simulated, simulated

pytestmark = pytest.mark.real

COUNT = 120
PLANTED = ("--stories", "--near-duplicates", "0.1")
TOPICS = ("--prompt", "Write a story about {{ topic }}.", "--vary", "topic=tea,rain,stones")
# Runs the command line with a method of the index of kept texts that does nothing: METHOD, flags.
FORGETFUL = """
import sys
from redline.cli import main
from redline.tasks.synth import NearDuplicates
setattr(NearDuplicates, sys.argv[1], lambda self, *text: None)
main(sys.argv[2:])
"""


def command(sim: Simulated, *flags: str) -> list[str]:
    return ["synth", "--count", str(COUNT), *TOPICS, "--base-url", sim.base_url, "--model", "m",
            "-o", "stories.jsonl", "-c", "20", *flags]  # fmt: skip


def redline(*argv: str) -> list[str]:
    return [sys.executable, "-m", "redline", *argv]


def run(folder: Path, argv: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=60)


def kill_half_way(folder: Path, argv: list[str]) -> None:
    """Runs until half of the texts are there, and kills -9."""
    results = folder / "stories.jsonl"
    process = subprocess.Popen(
        argv, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    deadline_s = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline_s:
        if results.exists() and results.read_bytes().count(b"\n") >= COUNT // 2:
            break
        time.sleep(0.005)
    assert process.poll() is None, "it ended before it could be killed"
    os.kill(process.pid, signal.SIGKILL)
    process.wait()


def lines(folder: Path) -> list[dict[str, Any]]:
    text = (folder / "stories.jsonl").read_text("utf-8")
    return [json.loads(line) for line in text.splitlines()]


def most_similar(texts: list[str]) -> float:
    """The highest Jaccard index of any two texts' runs of three words; all pairs are compared."""
    runs = []
    for text in texts:
        words = text.lower().replace(".", "").split()
        runs.append({tuple(words[at : at + 3]) for at in range(len(words) - 2)})
    return max(len(one & other) / len(one | other) for one, other in combinations(runs, 2))


def check_whole(folder: Path, told: subprocess.CompletedProcess[str]) -> None:
    assert told.returncode == 0, told.stderr
    assert told.stdout.splitlines()[-1] == f"delivered: {COUNT}/{COUNT}"
    assert sorted(line["row"] for line in lines(folder)) == list(range(1, COUNT + 1))
    assert most_similar([line["output"] for line in lines(folder)]) < 0.8


@pytest.mark.slow
def test_near_duplicates_are_made_anew(tmp_path: Path) -> None:
    with simulated(*PLANTED, "--latency", "0.01") as sim:
        told = run(tmp_path, redline(*command(sim)))
        check_whole(tmp_path, told)
        dropped = [kind for line in lines(tmp_path) for kind in line.get("dropped", [])]
        assert set(dropped) == {"near_duplicate"}
        assert f"near_duplicate: {len(dropped)}" in told.stdout
        assert sim.stats()["received"] == COUNT + len(dropped)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, list[str]]]:
    """A run that was killed half-way, its last line torn, and the command that goes on.

    Half of all stories repeat one, so that whoever forgets one soon keeps a second.
    """
    folder = tmp_path_factory.mktemp("killed")
    with simulated("--stories", "--near-duplicates", "0.5", "--latency", "0.15") as sim:
        argv = command(sim, "--tries", "30")
        kill_half_way(folder, redline(*argv))
        results = folder / "stories.jsonl"
        results.write_bytes(results.read_bytes()[:-40])
        yield folder, argv


@pytest.mark.slow
def test_a_death_and_a_torn_line_leave_as_many_and_no_two_alike(
    killed: tuple[Path, list[str]], tmp_path: Path
) -> None:
    folder, argv = killed
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    torn = (tmp_path / "stories.jsonl").read_bytes()
    check_whole(tmp_path, run(tmp_path, redline(*argv)))
    whole = torn[: torn.rindex(b"\n") + 1]
    assert whole.count(b"\n") >= COUNT // 2 - 1
    assert (tmp_path / "stories.jsonl").read_bytes().startswith(whole)


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    ["keep", "add"],
    ids=["the index is not built again", "a text that is kept is not taken in"],
)
def test_what_is_forgotten_is_noticed(
    killed: tuple[Path, list[str]], tmp_path: Path, method: str
) -> None:
    folder, argv = killed
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    told = run(tmp_path, [sys.executable, "-c", FORGETFUL, method, *argv])
    assert told.returncode == 0, told.stderr
    with pytest.raises(AssertionError):
        check_whole(tmp_path, told)
    assert most_similar([line["output"] for line in lines(tmp_path)]) >= 0.8
