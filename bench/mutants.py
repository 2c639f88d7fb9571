"""Do the tests notice a changed program? bench/mutants.py [MODULE ...] [--minutes 60].

mutmut changes one operator, literal, name or argument of a function at a time. A mutant that no
test fails for survives; one that the tests do not reach does, too, and so does one that is
equivalent. `MODULES` names what is judged and the tests that judge it. Of each module at most 300
mutants are drawn by a seed. What was found is kept in build/mutants, so that a later call goes on
at the next mutant; it begins anew for another commit.

Prints the share that is killed by module, and writes it with the survivors to
bench/results/mutants.json. Exit status 0 if every module is judged and reaches 90 %, 1 if one does
not reach it, 3 if the minutes were over first. Needs mutmut, of the dev group.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import record

MOST = 300
LEAST_KILLED = 0.9
SEED = 0
UNFINISHED = 3
# How a mutant's tests ended, as mutmut keeps it; any other status is a failed test, a crash or a
# timeout, and kills the mutant.
_SURVIVED = (0, 34)
_UNREACHED = (5, 33)
_ROOT = record.ROOT
_COPIED = ("README.md", "docs", "examples", "pyproject.toml", "src", "tests")
# These read the source, or start processes that run the installed one.
_LEFT_OUT = ("crash", "docs", "real", "test_architecture.py")
_CONFIG = """
[tool.mutmut]
source_paths = ["src"]
only_mutate = {sources}
also_copy = ["README.md", "docs", "examples"]
pytest_add_cli_args = ["-p", "no:cacheprovider", "-p", "no:xdist", "-q"]
pytest_add_cli_args_test_selection = {tests}
use_git_change_detection = false
"""


class Module(NamedTuple):
    """sources: patterns below src/redline. tests: paths below tests."""

    sources: tuple[str, ...]
    tests: tuple[str, ...]


_LIMITS = (
    "unit/limits",
    "property/test_limiter.py",
    "property/test_limits.py",
    "property/test_many_limits.py",
    "property/test_schedule.py",
)
_JOBS = ("unit/job", "sim/test_runner.py", "sim/test_retry.py", "sim/test_parts.py")
MODULES = {
    "limits/rule": Module(("limits/rule/*",), _LIMITS),
    "limits/wait": Module(("limits/wait/*",), (*_LIMITS, "sim/test_waiters.py")),
    "calls: retry and endpoint": Module(
        ("calls/client/retry.py", "calls/wire/endpoint.py", "calls/http/backend.py"),
        ("unit/calls", "sim/test_retry.py", "sim/test_feedback.py", "property/test_requests.py"),
    ),
    "journal": Module(
        ("journal/journal.py", "journal/lines.py", "journal/results_file.py"),
        ("unit/journal", "sim/test_journal.py", *_JOBS),
    ),
    "row identity": Module(("journal/identity.py",), ("unit/journal", *_JOBS)),
    "job runner": Module(("job/work/runner.py",), _JOBS),
    "route: balance and health": Module(
        ("route/balance.py", "route/health.py"),
        ("unit/route", "sim/test_pool.py"),
    ),
    "engine: scheduler": Module(("engine/schedule/*",), ("unit/engine",)),
    "engine: draft and verify": Module(("engine/draft/*",), ("unit/engine",)),
}


def prepared(name: str, module: Module, base: Path) -> Path:
    """A folder of its own with a copy of the project, made once for a commit."""
    folder = base / "".join(c if c.isalnum() else "-" for c in name)
    if (folder / "pyproject.toml").exists():
        return folder
    folder.mkdir(parents=True)
    for part in reversed(_COPIED):
        source = _ROOT / part
        if source.is_dir():
            shutil.copytree(source, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, folder / part)
    for part in _LEFT_OUT:
        left = folder / "tests" / part
        shutil.rmtree(left) if left.is_dir() else left.unlink()
    sources = [f"src/redline/{pattern}" for pattern in module.sources]
    tests = [f"tests/{path}" for path in module.tests]
    with (folder / "pyproject.toml").open("a", encoding="utf-8") as config:
        config.write(_CONFIG.format(sources=json.dumps(sources), tests=json.dumps(tests)))
    return folder


def mutmut(folder: Path, *words: str, until_s: float) -> str:
    """Its output. It is interrupted when the time is over; what it has judged by then it keeps."""
    command = [sys.executable, "-m", "mutmut", *words]
    with (folder / "mutmut.log").open("ab") as log:
        process = subprocess.Popen(
            command, cwd=folder, stdout=subprocess.PIPE, stderr=log, start_new_session=True
        )
        try:
            out, _ = process.communicate(timeout=max(1.0, until_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGINT)
            try:
                out, _ = process.communicate(timeout=30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                out, _ = process.communicate()
    (folder / "mutmut.out").write_bytes(out)
    return out.decode("utf-8", "replace")


def judged(folder: Path) -> dict[str, int | None]:
    """Each mutant with how its tests ended, None before they ran."""
    found = dict[str, int | None]()
    for path in (folder / "mutants" / "src").rglob("*.meta"):
        found.update(json.loads(path.read_bytes())["exit_code_by_key"])
    return found


def drawn(folder: Path, until_s: float) -> list[str]:
    """The names of the mutants that are judged; mutmut makes them all first."""
    if not judged(folder):
        # It makes the mutants, and stops since none has this name.
        mutmut(folder, "run", "none", until_s=until_s)
    names = sorted(judged(folder))
    return sorted(random.Random(SEED).sample(names, min(MOST, len(names))))


def outcome(name: str, folder: Path, until_s: float) -> dict[str, Any]:
    names = drawn(folder, until_s)
    waiting = [one for one, status in judged(folder).items() if status is None and one in names]
    if waiting:
        mutmut(folder, "run", "--max-children", "2", *waiting, until_s=until_s)
    found = judged(folder)
    ends = {one: found.get(one) for one in names}
    survivors = [one for one, status in ends.items() if status in (*_SURVIVED, *_UNREACHED)]
    done = sum(status is not None for status in ends.values())
    return {
        "mutants": len(found),
        "drawn": len(names),
        "judged": done,
        "killed": done - len(survivors),
        "unreached": sum(status in _UNREACHED for status in ends.values()),
        "survivors": survivors,
    }


def chosen(patterns: list[str]) -> Iterator[tuple[str, Module]]:
    for name, module in MODULES.items():
        if not patterns or any(fnmatch.fnmatch(name, pattern) for pattern in patterns):
            yield name, module


def main() -> int:
    parser = argparse.ArgumentParser(description="Which changes of the program do tests notice?")
    parser.add_argument("modules", nargs="*", help="patterns of names; all without one")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--results", type=Path, default=record.RESULTS)
    given = parser.parse_args()
    until_s = time.monotonic() + 60 * given.minutes
    asked = dict(chosen(given.modules))
    if not asked:
        parser.error(f"no such module; there are {', '.join(MODULES)}")
    result = record.Record("mutants", {"most": MOST, "seed": SEED}, {"draw": SEED})
    result.versions.update(record.own_versions("mutmut", "pytest"))
    commit = subprocess.run(
        ["git", "-C", str(_ROOT), "rev-parse", "HEAD"], capture_output=True, text=True, check=True
    )
    base = _ROOT / "build" / "mutants" / commit.stdout.strip()[:12]
    summary = dict[str, Any]()
    for name, module in asked.items():
        one = summary[name] = outcome(name, prepared(name, module, base), until_s)
        share = one["killed"] / one["judged"] if one["judged"] else 0.0
        print(
            f"{name}: {one['killed']} of {one['judged']} killed ({share:.1%}), "
            f"{one['drawn'] - one['judged']} to be judged, {one['unreached']} reached by no test",
            flush=True,
        )
    print(f"written: {result.write(given.results, summary, {})}")
    if any(one["judged"] < one["drawn"] or not one["drawn"] for one in summary.values()):
        return UNFINISHED
    return int(any(one["killed"] < LEAST_KILLED * one["judged"] for one in summary.values()))


if __name__ == "__main__":
    raise SystemExit(main())
