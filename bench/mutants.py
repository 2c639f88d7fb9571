"""Do the tests notice a changed program? bench/mutants.py [MODULE ...] [--most N] [--minutes M].

mutmut changes one operator, literal, name or argument of a function at a time. A mutant survives if
no test fails; this includes mutants that no test reaches, and those that are equivalent to the
program. `MODULES` names the modules to judge and the tests that judge them: quick ones within one
process, most of them in virtual time. A seed draws the mutants of each module, in an order that
does not depend on the number drawn.

The campaign `mutants` has a part of 300 mutants for each module, which passes if 90 % are killed.
This script judges a smaller number and prints the survivors with their changes. Both save each
verdict in build/mutants, so that the next call continues with the next mutant; they start again if
the code of src or of the module's tests has changed, other than in comments, docstrings and
messages. The exit status is 0 if every module reaches 90 %, 1 if one does not, and 3 if the minutes
were over first. Needs mutmut, which is in the group dev.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import record
from imports import code_of, files_of

MOST = 300
LEAST_KILLED = 0.9
SEED = 0
UNFINISHED = 3
# A part of a campaign lasts at most an hour.
LONGEST_S = 3500
# How a mutant's tests ended, as mutmut keeps it. Any other status is a failed test, a crash or a
# timeout, and kills the mutant.
_SURVIVED = (0, 34)
_UNREACHED = (5, 33)
_TIMED_OUT = (24, 36, 152, 255, -24)
_UNJUDGED = (None, 2)
# Besides Python, what the tests of the modules read: prices and scripts for Redis, saved outputs.
_READ, _DATA = ("src", "tests/fixtures"), (".json", ".jsonl", ".lua", ".py", ".toml")
_COPIED = ("README.md", "docs", "examples", "pyproject.toml", "src", "tests")
# A mutant that never ends is killed by the time of one test, which ends the process: otherwise
# Hypothesis would repeat the example. All its tests together have 3 times what they took, and 30 s
# more: a busy machine must not kill it. A test that measures CPU time is left out: mutmut's copy of
# a program calls each function through another one.
_CONFIG = """
[tool.mutmut]
source_paths = ["src"]
only_mutate = {sources}
also_copy = ["README.md", "docs", "examples"]
pytest_add_cli_args = [
  "-p", "no:cacheprovider", "-p", "no:xdist", "--timeout=30", "--timeout-method=thread",
  "--deselect=tests/sim/test_waiters.py::test_a_waiter_costs_little_more_than_a_task",
]
pytest_add_cli_args_test_selection = {tests}
use_git_change_detection = false
timeout_multiplier = 3.0
timeout_constant = 10.0
"""
# Prints the change that each mutant is, as lines of a diff.
_CHANGES = """
import json, sys
from mutmut.mutation.diff_apply import find_mutant, get_diff_for_mutant
found = {}
for name in json.load(sys.stdin):
    lines = get_diff_for_mutant(name, path=find_mutant(name).path).splitlines()
    found[name] = [line for line in lines if line[:1] in "+-" and line[:3] not in ("+++", "---")]
print(json.dumps(found))
"""

Work = Callable[[Path], dict[str, Any]]


class Module(NamedTuple):
    """sources: patterns below src/redline. tests: files and folders."""

    sources: tuple[str, ...]
    tests: tuple[str, ...]


_LIMITS = (
    "tests/crash/test_recent.py",
    "tests/property/test_limiter.py",
    "tests/property/test_limits.py",
    "tests/property/test_many_limits.py",
    "tests/property/test_phases.py",
    "tests/unit/limits",
)
_JOBS = (
    "tests/sim/test_feed.py",
    "tests/sim/test_journal.py",
    "tests/sim/test_longest_wait.py",
    "tests/sim/test_parts.py",
    "tests/sim/test_retry.py",
    "tests/sim/test_runner.py",
)
MODULES = {
    "limits/rule": Module(("limits/rule/*",), _LIMITS),
    "limits/wait": Module(("limits/wait/*",), (*_LIMITS, "tests/sim/test_waiters.py")),
    "calls: retry and endpoint": Module(
        ("calls/client/retry.py", "calls/wire/endpoint.py", "calls/http/backend.py"),
        (
            "tests/property/test_requests.py",
            "tests/real/test_http.py",
            "tests/sim/test_feedback.py",
            "tests/sim/test_retry.py",
            "tests/unit/calls",
        ),
    ),
    "journal": Module(
        ("journal/journal.py", "journal/lines.py", "journal/results_file.py"),
        (
            "tests/cli/test_changed_rows.py",
            "tests/cli/test_flawed_answers.py",
            "tests/cli/test_old_outputs.py",
            "tests/crash/test_continue.py",
            "tests/crash/test_keys.py",
            "tests/crash/test_lost_lines.py",
            "tests/crash/test_platter.py",
            "tests/crash/test_torn_tail.py",
            "tests/unit/journal",
            *_JOBS,
        ),
    ),
    "row identity": Module(("journal/identity.py",), ("tests/unit/journal", *_JOBS)),
    "job runner": Module(
        ("job/work/runner.py",),
        (
            "tests/real/test_given_up.py",
            "tests/real/test_python.py",
            "tests/sim/test_webhook.py",
            *_JOBS,
        ),
    ),
    "route: balance and health": Module(
        ("route/balance.py", "route/health.py"),
        (
            "tests/sim/test_pool.py",
            "tests/sim/test_withdraw.py",
            "tests/unit/route/test_balance.py",
            "tests/unit/route/test_call_facts.py",
            "tests/unit/route/test_health.py",
            "tests/unit/route/test_health_pages.py",
            "tests/unit/route/test_pool.py",
            "tests/unit/route/test_pool_room.py",
        ),
    ),
    "engine: scheduler": Module(
        ("engine/schedule/*",),
        (
            "tests/unit/engine/test_core.py",
            "tests/unit/engine/test_plans.py",
            "tests/unit/engine/test_scheduler.py",
        ),
    ),
    "engine: draft and verify": Module(
        ("engine/draft/*",),
        (
            "tests/unit/engine/test_acceptance.py",
            "tests/unit/engine/test_core.py",
            "tests/unit/engine/test_draft_length.py",
            "tests/unit/engine/test_lookup.py",
            "tests/unit/engine/test_proposers.py",
            "tests/unit/engine/test_verification.py",
        ),
    ),
}


class TooFewKilledError(AssertionError):
    """Less than `LEAST_KILLED` of a module's mutants; `found` keeps the figures for the record."""

    def __init__(self, found: dict[str, Any]) -> None:
        super().__init__(f"{found['killed']} of {found['judged']} mutants killed")
        self.found = found


def parts() -> Iterator[tuple[str, int, Work]]:
    """Name, seed and work of each part."""
    for name in MODULES:
        yield name, SEED, _work(name)


def _work(name: str) -> Work:
    def work(folder: Path) -> dict[str, Any]:
        found = judge(name, MOST, time.monotonic() + LONGEST_S)
        if found["judged"] < found["drawn"]:
            print(f"{name}: {found['judged']} of {found['drawn']} judged; the same command goes on")
            raise SystemExit(UNFINISHED)
        if not reaches(found):
            raise TooFewKilledError(found)
        return found

    return work


def reaches(found: dict[str, Any]) -> bool:
    return bool(found["killed"] >= LEAST_KILLED * found["judged"] > 0)


def judge(name: str, most: int, until_s: float) -> dict[str, Any]:
    """How many of at most `most` mutants of the module are killed, and which are not.

    until_s: when to stop, monotonic; `judged` is less than `drawn` then.
    Raises RuntimeError with the log's end if mutmut fails, and also if an earlier call was ended
    while mutmut made the mutants.
    """
    folder = prepared(name)
    found = verdicts(folder)
    if not found:
        # It makes the mutants, and stops since none bears this name.
        run_mutmut(folder, "run", "none", until_s=until_s)
        found = verdicts(folder)
    if not found:
        # mutmut was ended while it made them, and takes its half-made copy for a whole one.
        shutil.rmtree(folder)
        raise RuntimeError(f"no mutants of {name} were made: run this again")
    names = drawn(sorted(found), most)
    if waiting := [one for one in names if found[one] in _UNJUDGED]:
        run_mutmut(folder, "run", "--max-children", "1", *waiting, until_s=until_s)
        found = verdicts(folder)
    ends = {one: found[one] for one in names if found[one] not in _UNJUDGED}
    lasted_s = durations(folder)
    survivors = [one for one, status in ends.items() if status in (*_SURVIVED, *_UNREACHED)]
    return {
        "mutants": len(found),
        "drawn": len(names),
        "judged": len(ends),
        "killed": len(ends) - len(survivors),
        "timed_out": sum(status in _TIMED_OUT for status in ends.values()),
        "unreached": sum(status in _UNREACHED for status in ends.values()),
        "duration_s": round(sum(lasted_s.get(one, 0.0) for one in ends), 2),
        "tests": list(MODULES[name].tests),
        "survivors": changes(folder, survivors),
    }


def version_of(module: Module) -> str:
    """A name for all code that judges the module: src, its tests, and what these import and read.

    Pages for a browser are left out.
    """
    digest = hashlib.blake2b(digest_size=8)
    data = {path for part in _READ for path in (record.ROOT / part).rglob("*.*")}
    data = {path for path in data if path.suffix in _DATA}
    for file in sorted(data | files_that_judge(module)):
        text = file.read_text(encoding="utf-8")
        name = file.relative_to(record.ROOT).as_posix()
        digest.update(f"{name}\0{code_of(text) if file.suffix == '.py' else text}".encode())
    return digest.hexdigest()


def files_that_judge(module: Module) -> set[Path]:
    """The files of the module's tests, what pytest loads with them, and what they import."""
    found = set[Path]()
    for name in module.tests:
        path = record.ROOT / name
        found |= set(path.rglob("*.py")) if path.is_dir() else {path}
    beside = {folder / "conftest.py" for file in found for folder in file.parents}
    found |= {file for file in beside if file.exists()}
    return set[Path]().union(*map(files_of, found))


def prepared(name: str) -> Path:
    """A folder of its own with a copy of the project, made once for each version of the code.

    The module's copies of other versions are removed.
    """
    module = MODULES[name]
    base = record.ROOT / "build" / "mutants" / "".join(c if c.isalnum() else "-" for c in name)
    folder = base / version_of(module)
    if folder.exists():
        return folder
    shutil.rmtree(base, ignore_errors=True)
    made = folder.with_suffix(".new")
    made.mkdir(parents=True)
    for part in _COPIED:
        source = record.ROOT / part
        if source.is_dir():
            shutil.copytree(source, made / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, made / part)
    sources = [f"src/redline/{pattern}" for pattern in module.sources]
    with (made / "pyproject.toml").open("a", encoding="utf-8") as config:
        tests = json.dumps(module.tests)
        config.write(_CONFIG.format(sources=json.dumps(sources), tests=tests))
    return made.rename(folder)


def run_mutmut(folder: Path, *words: str, until_s: float) -> None:
    """It is interrupted at `until_s`, and keeps the verdicts until then."""
    with (folder / "mutmut.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "mutmut", *words],
            cwd=folder,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            process.wait(max(1.0, until_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGINT)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            return
    if process.returncode and "none" not in words:
        end = (folder / "mutmut.log").read_text("utf-8", "replace")[-3000:]
        raise RuntimeError(f"mutmut ended with {process.returncode}: {end}")


def durations(folder: Path) -> dict[str, float]:
    """Seconds that the tests of each mutant took, in this call or an earlier one."""
    found = dict[str, float]()
    for path in (folder / "mutants" / "src").rglob("*.meta"):
        found.update(json.loads(path.read_bytes())["durations_by_key"])
    return found


def verdicts(folder: Path) -> dict[str, int | None]:
    """Each mutant with how its tests ended, None before they ran."""
    found = dict[str, int | None]()
    for path in (folder / "mutants" / "src").rglob("*.meta"):
        found.update(json.loads(path.read_bytes())["exit_code_by_key"])
    return found


def drawn(names: list[str], most: int) -> list[str]:
    """At most `most` of the names, in an order of which a smaller number is the beginning."""
    order = random.Random(SEED).sample(names, len(names))
    return order[:most]


def changes(folder: Path, names: list[str]) -> dict[str, list[str]]:
    """What each mutant changes, as lines of a diff."""
    shown = subprocess.run(
        [sys.executable, "-c", _CHANGES],
        cwd=folder,
        input=json.dumps(names),
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, list[str]] = json.loads(shown.stdout)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("modules", nargs="*", help=f"all without one: {', '.join(MODULES)}")
    parser.add_argument("--most", type=int, default=MOST, help="mutants of a module")
    parser.add_argument("--minutes", type=float, default=60)
    given = parser.parse_args()
    until_s = time.monotonic() + 60 * given.minutes
    if unknown := set(given.modules) - set(MODULES):
        parser.error(f"no module {', '.join(unknown)}; there are {', '.join(MODULES)}")
    found = dict[str, dict[str, Any]]()
    for name in given.modules or MODULES:
        one = found[name] = judge(name, given.most, until_s)
        share = one["killed"] / one["judged"] if one["judged"] else 0.0
        for mutant, lines in one["survivors"].items():
            print(mutant, *lines, sep="\n  ")
        print(
            f"{name}: {one['killed']} of {one['judged']} killed ({share:.1%}), "
            f"{one['timed_out']} of them by time, {one['drawn'] - one['judged']} to be judged, "
            f"{one['unreached']} reached by no test",
            flush=True,
        )
    if any(one["judged"] < one["drawn"] or not one["drawn"] for one in found.values()):
        return UNFINISHED
    return int(not all(map(reaches, found.values())))


if __name__ == "__main__":
    raise SystemExit(main())
