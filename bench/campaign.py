"""Long tests that can be resumed: bench/campaign.py NAME --minutes N; without a name, lists them.

A campaign is a list of parts. The figures of each part are saved when it ends, so an interrupted
campaign continues with the next part. It starts again if it was finished, or if the code that it
runs has changed since; changes of comments, docstrings and messages do not count. The record is
bench/results/NAME.json. The exit status is 0 if every part has passed, 1 if one has failed, and 3
if the minutes were over first. The list says for each campaign whether it has passed on this code;
its status is 1 if any has not.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "bench" / "results"
_CLI = ROOT / "src" / "redline" / "cli"
sys.path.insert(0, str(ROOT / "tests"))

import budget_campaign  # noqa: E402
import client_campaign  # noqa: E402
import fault_campaign  # noqa: E402
import fuzz_gateway  # noqa: E402
import fuzz_server  # noqa: E402
import fuzz_transport  # noqa: E402
import limit_campaign  # noqa: E402
import mutants  # noqa: E402
import serve_soak  # noqa: E402
import shrink_campaign  # noqa: E402
import step_campaign  # noqa: E402
import stream_campaign  # noqa: E402
from imports import code_of, files_of  # noqa: E402

from crash.killing import LIMITED, SATURATED, Plan, kill_until_done  # noqa: E402

UNFINISHED = 3
# What each campaign runs: its script, and what that imports.
_SCRIPTS = {
    "budget": "bench/budget_campaign.py",
    "engine-equality": "bench/engine_equality.py",
    "engine-law": "bench/engine_law_campaign.py",
    "engine-pipeline": "bench/engine_pipeline.py",
    "faults": "bench/fault_campaign.py",
    "fuzz-gateway": "bench/fuzz_gateway.py",
    "fuzz-server": "bench/fuzz_server.py",
    "fuzz-transport": "bench/fuzz_transport.py",
    "gateway-clients": "bench/client_campaign.py",
    "gateway-soak": "bench/serve_soak.py",
    "journal-kills": "bench/step_campaign.py",
    "kills": "tests/crash/killing.py",
    "limit-servers": "bench/limit_campaign.py",
    "mutants": "bench/mutants.py",
    "redis-streams": "bench/stream_campaign.py",
    "scale-downs": "bench/shrink_campaign.py",
    "vllm-launcher": "bench/vllm_campaign.py",
}
# The commands that a campaign starts in processes of their own: their modules in src/redline/cli.
_COMMANDS = {
    "budget": ("commands/run", "commands/sim"),
    "fuzz-gateway": ("commands/serve", "commands/sim"),
    "fuzz-server": ("commands/engine", "commands/serve", "commands/sim"),
    "fuzz-transport": ("commands/run",),
    "gateway-clients": ("commands/serve", "commands/sim"),
    "gateway-soak": ("commands/serve",),
    "kills": ("commands/run", "commands/sim", "results/verify"),
    "limit-servers": ("commands/run", "commands/sim"),
    "redis-streams": ("commands/run", "commands/sim"),
    "scale-downs": ("commands/fleet_up", "commands/sim"),
    "vllm-launcher": ("commands/engine",),
}
# What such a process may need besides: programs of the tests, and what is not Python.
_PROGRAMS = ("tests/crash", "tests/support/*_server.py", "tests/support/*_worker.py", "bench/peers")
_BESIDES = ("src/*[!.][!p][!y]", *_PROGRAMS, "examples/tiny-model", "pyproject.toml")
# What people read and pages for a browser count for no campaign, files of tests only for the one
# that runs them.
_NOT_RUN = (
    ":(exclude,glob)**/*.md",
    ":(exclude,glob)src/**/page.html*",
    ":(exclude,glob)tests/**/test_*.py",
)
_PACKAGES = ("redline", "httptools", "msgspec", "uvloop")


@dataclass(frozen=True)
class Part:
    """One bounded piece of a campaign: `work` returns raw figures, or raises AssertionError."""

    name: str
    seed: int
    work: Callable[[Path], dict[str, Any]]


def kills() -> list[Part]:
    """50 kills -9 of runs of 2,000 rows at random moments, once under a limit, once without."""

    def part(name: str, plan: Plan) -> Part:
        def work(folder: Path) -> dict[str, Any]:
            figures = kill_until_done(plan, folder)
            found = asdict(plan) | asdict(figures)
            found["wasted_per_kill"] = round(figures.wasted / figures.kills, 2)
            if figures.received > figures.allowed:
                raise OutOfBoundsError(
                    f"{figures.received} requests, {figures.allowed} allowed", found
                )
            return found

        return Part(name, plan.seed, work)

    return [
        part("limited", replace(LIMITED, kills=50, seed=11)),
        part("saturated", replace(SATURATED, kills=50, seed=12)),
    ]


def journal_kills() -> list[Part]:
    """50 deaths at each step of the journal, killed and with the power gone, each resumed."""
    return [Part(name, seed, work) for name, seed, work in step_campaign.parts()]


def limit_servers() -> list[Part]:
    """Every real limiter, jitter, rate and profile, ten times, and the long runs."""
    return [Part(name, seed, work) for name, seed, work in limit_campaign.parts()]


def fuzz() -> list[Part]:
    """Twelve minutes of seeded faults in what a server answers."""
    return [Part(name, seed, work) for name, seed, work in fuzz_transport.parts()]


def fuzz_requests() -> list[Part]:
    """Twelve minutes of seeded faults in what a client of our own server sends."""
    return [Part(name, seed, work) for name, seed, work in fuzz_server.parts()]


def fuzz_gateway_requests() -> list[Part]:
    """Some 64,000 generated requests to a gateway: valid ones succeed, others get proper errors."""
    return [Part(name, seed, work) for name, seed, work in fuzz_gateway.parts()]


def gateway_clients() -> list[Part]:
    """litellm, langchain-openai and instructor as clients of a gateway."""
    return [Part(name, seed, work) for name, seed, work in client_campaign.parts()]


def gateway_soak() -> list[Part]:
    """30 minutes of a gateway at half load: memory, descriptors and tasks stay flat."""
    return [Part(name, seed, work) for name, seed, work in serve_soak.parts()]


def faults() -> list[Part]:
    """10,000 distinct traces of fault scripts, and the lines that must not be changed."""
    return [Part(name, seed, work) for name, seed, work in fault_campaign.parts()]


def budget() -> list[Part]:
    """50 runs with a budget, through faults and kills: never passed, and used."""
    return [Part(name, seed, work) for name, seed, work in budget_campaign.parts()]


def engine_law() -> list[Part]:
    """200,000 tokens of each of 20 seeds and ways to decode: their law is the target's."""
    import engine_law_campaign  # PyTorch is needed by this one only

    return [Part(name, seed, work) for name, seed, work in engine_law_campaign.parts()]


def engine_pipeline() -> list[Part]:
    """Stages of one length, each always busy: wall time by (m T + p - 1) of them."""
    import engine_pipeline

    return [Part(name, seed, work) for name, seed, work in engine_pipeline.parts()]


def mutated_modules() -> list[Part]:
    """300 changes of each module that carries invariants: tests notice nine of ten."""
    return [Part(name, seed, work) for name, seed, work in mutants.parts()]


def redis_streams() -> list[Part]:
    """10,000 messages, two consumers that are killed: each message once, and acknowledged."""
    return [Part(name, seed, work) for name, seed, work in stream_campaign.parts()]


def scale_downs() -> list[Part]:
    """50 replicas of real fleets that are stopped with calls in flight: no call is lost."""
    return [Part(name, seed, work) for name, seed, work in shrink_campaign.parts()]


def vllm_launcher() -> list[Part]:
    """Greedy answers of the local engine and of vLLM, started by the launcher, are equal."""
    # It needs the extra `engine`, which the others do without.
    import vllm_campaign

    return [Part(name, seed, work) for name, seed, work in vllm_campaign.parts()]


def equality() -> list[Part]:
    """The engine's greedy answers are generate's, over every mix of settings."""
    # As above.
    import engine_equality

    return [Part(name, seed, work) for name, seed, work in engine_equality.parts()]


CAMPAIGNS: dict[str, Callable[[], list[Part]]] = {
    "budget": budget,
    "engine-equality": equality,
    "engine-law": engine_law,
    "engine-pipeline": engine_pipeline,
    "faults": faults,
    "fuzz-gateway": fuzz_gateway_requests,
    "fuzz-server": fuzz_requests,
    "fuzz-transport": fuzz,
    "gateway-clients": gateway_clients,
    "gateway-soak": gateway_soak,
    "journal-kills": journal_kills,
    "kills": kills,
    "limit-servers": limit_servers,
    "mutants": mutated_modules,
    "redis-streams": redis_streams,
    "scale-downs": scale_downs,
    "vllm-launcher": vllm_launcher,
}


class OutOfBoundsError(AssertionError):
    """A figure that is too large; `found` keeps the figures for the record."""

    def __init__(self, what: str, found: dict[str, Any]) -> None:
        super().__init__(what)
        self.found = found


def begin(name: str, path: Path) -> dict[str, Any]:
    """The record to go on with, or a new one."""
    what = _paths_of(name)
    commit = _commit(what)
    if path.exists():
        old: dict[str, Any] = json.loads(path.read_text("utf-8"))
        if not old["is_finished"] and _is_alike(old["commit"], commit, what):
            return old
    return {
        "campaign": name,
        "commit": commit,
        "command": f"bench/campaign.py {name}",
        "begun": datetime.now(UTC).isoformat("T", "seconds"),
        "versions": {package: version(package) for package in _PACKAGES}
        | {
            "python": platform.python_version(),
            "system": f"{platform.system()} {platform.machine()}",
        },
        "cores": os.cpu_count(),
        "seeds": {},
        "is_finished": False,
        "has_passed": False,
        "duration_s": 0.0,
        "parts": {},
    }


def holds(name: str) -> bool:
    """What the campaign's record says is true of this checkout: it passed, on what it runs here."""
    path, what = RESULTS / f"{name}.json", _paths_of(name)
    if not path.exists():
        return False
    record: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return bool(record["has_passed"]) and _is_alike(record["commit"], _commit(what), what)


def _paths_of(name: str) -> list[str]:
    """What the campaign runs, as git names it."""
    commands = _COMMANDS.get(name, ())
    modules = ["app", *commands] if commands else []
    scripts = [ROOT / _SCRIPTS[name], *(_CLI / f"{module}.py" for module in modules)]
    files = set[Path]().union(*map(files_of, scripts))
    besides = [*_BESIDES, *_NOT_RUN] if commands else []
    if name == "mutants":
        files |= set[Path]().union(*map(mutants.files_that_judge, mutants.MODULES.values()))
        besides = ["src", "tests/fixtures", *_NOT_RUN[:2]]
    return [*sorted(str(path.relative_to(ROOT)) for path in files), *besides]


def _commit(what: list[str]) -> str:
    """The commit, and `+changes` if what the campaign runs differs from it."""
    changed = _git("status", "--porcelain", "--", *what).stdout
    return (_git("rev-parse", "HEAD").stdout.strip() or "unknown") + ("+changes" if changed else "")


def _is_alike(old: str, new: str, what: list[str]) -> bool:
    """Both commits run the same: those between them changed other files, or only what explains."""
    if "+" in old + new:
        return False
    changed = _git("diff", "--name-only", old, new, "--", *what)
    return changed.returncode == 0 and all(
        _code(old, path) == _code(new, path) for path in changed.stdout.splitlines()
    )


@cache
def _code(commit: str, path: str) -> str:
    """What a file does: its code without what only people read, or else its whole text."""
    # Empty if the commit has no file of that name.
    text = _git("show", f"{commit}:{path}").stdout
    if path.endswith(".py"):
        return code_of(text)
    if path.endswith(".lua"):
        return "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("--"))
    return text


def _git(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)


def save(record: dict[str, Any], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".new")
    beside.write_text(json.dumps(record, indent=2) + "\n", "utf-8")
    beside.replace(path)


def run_part(part: Part) -> dict[str, Any]:
    """The part's figures with `passed` and `duration_s`; the reason where it failed.

    A part that goes on with what an earlier call found says itself how long both took.
    """
    begun_s = time.monotonic()
    found: dict[str, Any] = {"passed": True}
    with tempfile.TemporaryDirectory(prefix="redline-campaign-") as folder:
        try:
            found |= part.work(Path(folder))
        except AssertionError as error:
            found |= getattr(error, "found", {})
            found |= {"passed": False, "reason": str(error)}
    found.setdefault("duration_s", round(time.monotonic() - begun_s, 2))
    return found


def run_campaign(name: str, minutes: float) -> int:
    """Runs the parts that are not done yet, as long as the minutes last; the exit status."""
    path = RESULTS / f"{name}.json"
    record, parts = begin(name, path), CAMPAIGNS[name]()
    ends_s = time.monotonic() + 60 * minutes
    for part in parts:
        if part.name in record["parts"]:
            print(f"{name}/{part.name}: done before")
            continue
        if time.monotonic() >= ends_s:
            print(f"{name}: the {minutes:g} minutes are over; the same command continues")
            return UNFINISHED
        found = run_part(part)
        record["parts"][part.name] = found
        record["seeds"][part.name] = part.seed
        record["duration_s"] = round(record["duration_s"] + found["duration_s"], 2)
        save(record, path)
        print(f"{name}/{part.name}: {'passed' if found['passed'] else found['reason']}", flush=True)
    record["is_finished"] = True
    record["has_passed"] = all(found["passed"] for found in record["parts"].values())
    save(record, path)
    print(f"{name}: {path.relative_to(ROOT)}, {record['duration_s']:g} s")
    return 0 if record["has_passed"] else 1


def list_records() -> int:
    """Prints which campaigns have passed on what is checked out; 1 if any has not."""
    found = {name: holds(name) for name in sorted(CAMPAIGNS)}
    for name, is_true in found.items():
        print(f"{name}: {'passed on this code' if is_true else 'to run'}")
    return 0 if all(found.values()) else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("name", nargs="?", choices=sorted(CAMPAIGNS))
    parser.add_argument("--minutes", type=float, default=10, help="begin no part after this")
    given = parser.parse_args()
    if given.name is None:
        return list_records()
    return run_campaign(given.name, given.minutes)


if __name__ == "__main__":
    sys.exit(main())
