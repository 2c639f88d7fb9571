"""Runs of the command line against a simulated server, killed at random moments and resumed.

The small form is a test, the long form the campaign `kills` of bench/campaign.py.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
import urllib.request
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from redline.cli import main
from support import forked
from support.forked import Command

COMMAND = [sys.executable, "-m", "redline"]
PROMPT = "Classify: {{ text }}"
# Far above what any of these takes; a process that hangs must not hang the tests.
LIMIT_S = 90.0
_POLL_S = 0.002


def clean_environ(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """This environment without what would point a run at another server."""
    foreign = ("OPENAI", "http_proxy", "https_proxy", "all_proxy", "no_proxy", "XDG_")
    kept = {k: v for k, v in os.environ.items() if not k.lower().startswith(foreign)}
    return {k: v for k, v in kept.items() if not k.startswith("OPENAI")} | dict(more or {})


@dataclass(frozen=True)
class Server:
    """A `redline sim` in a process of its own."""

    base_url: str

    def stats(self) -> dict[str, Any]:
        """The counters of GET /sim/stats."""
        url = self.base_url.removesuffix("/v1") + "/sim/stats"
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(url, timeout=10) as reply:
            return dict(json.load(reply))

    def requests(self) -> int:
        return int(self.stats()["received"])


@contextmanager
def serving(*flags: str) -> Iterator[Server]:
    """A server for as long as the block lasts."""
    process, base_url = forked.started(main, ["sim", *flags])
    try:
        assert base_url.startswith("http://127.0.0.1:"), f"no server: {base_url!r}"
        yield Server(base_url)
    finally:
        process.kill()
        forked.ended(process)


def write_rows(path: Path, count: int, first: int = 1) -> None:
    """`count` rows with a custom_id and a text of varied length."""
    with path.open("w", encoding="utf-8") as file:
        for number in range(first, first + count):
            text = f"message {number}: " + "é words " * (number % 7)
            file.write(json.dumps({"custom_id": f"t-{number:05}", "text": text}) + "\n")


def run_flags(rows: Path, output: Path, server: Server, *more: str) -> list[str]:
    """The arguments of `redline run` that these tests have in common."""
    flags = ["run", str(rows), "--prompt", PROMPT, "--model", "sim"]
    return [*flags, "--base-url", server.base_url, "-o", str(output), "--quiet", *more]


def sim_flags(rows: Path, output: Path, *more: str) -> list[str]:
    """The same with the embedded server: no process of its own, and no counts."""
    flags = ["run", str(rows), "--prompt", PROMPT, "--model", "sim", "--endpoint", "sim"]
    return [*flags, "-c", "4", "-o", str(output), "--quiet", *more]


def redline(
    *flags: str, cwd: Path | None = None, environ: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """One command to its end, with its status and all that it printed."""
    command = Command(flags, cwd=cwd, environ=clean_environ(environ))
    try:
        out, err = command.communicate(timeout=LIMIT_S)
    finally:
        command.kill()
    return subprocess.CompletedProcess(command.args, command.wait(), out, err)


@contextmanager
def started(
    flags: Sequence[str],
    cwd: Path | None = None,
    environ: Mapping[str, str] | None = None,
    stdin: int | None = None,
) -> Iterator[Command]:
    """The same command while it runs. Whatever happens, it has ended after the block.

    stdin: as of Command.
    """
    process = Command(flags, cwd=cwd, environ=clean_environ(environ), stdin=stdin)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def ended(process: Command) -> tuple[int, str, str]:
    """Status, stdout and stderr of a started command, once it has ended by itself."""
    out, err = process.communicate(timeout=LIMIT_S)
    return process.wait(), out, err


def await_lines(path: Path, count: int, process: Command) -> int:
    """Waits until `path` has `count` lines or the process is over; the lines it then has."""
    ends_s = time.monotonic() + LIMIT_S
    seen = size = 0
    while time.monotonic() < ends_s:
        is_over = process.poll() is not None
        if path.exists() and path.stat().st_size != size:
            data = path.read_bytes()
            seen, size = data.count(b"\n"), len(data)
        if seen >= count or is_over:
            return seen
        time.sleep(_POLL_S)
    raise AssertionError(f"{path.name} has {seen} of {count} lines after {LIMIT_S:g} s")


def whole_part(path: Path) -> bytes:
    """The file up to its last complete line."""
    data = path.read_bytes() if path.exists() else b""
    return data[: data.rfind(b"\n") + 1]


def sealed_lines(path: Path) -> list[dict[str, Any]]:
    """Every line, its checksum verified without redline's own code. Fails on a torn line."""
    data = path.read_bytes() if path.exists() else b""
    assert not data or data.endswith(b"\n"), f"{path.name} ends in a torn line"
    found = []
    for line in data.splitlines():
        body, tail = line.rsplit(b',"crc":"', 1)
        assert tail == b'%08x"}' % zlib.crc32(body), f"{path.name}: a damaged line"
        found.append(json.loads(line))
    return found


def ids(path: Path) -> list[str]:
    """The custom_ids of the lines, in the order of the file."""
    return [line["custom_id"] for line in sealed_lines(path)]


@dataclass(frozen=True)
class Plan:
    """One killed and resumed run. `server`: flags of its sim; `run`: further flags of the run."""

    kills: int
    seed: int
    rows: int = 2000
    concurrency: int = 32
    server: tuple[str, ...] = ()
    run: tuple[str, ...] = ()


# The main job: a request limit binds, the concurrency does not. Some answers are errors.
_FAULTS = ("--faults", "500=0.01", "--faults", "429=0.01")
LIMITED = Plan(
    kills=6,
    seed=1,
    concurrency=64,
    server=("--latency", "0.05-0.25", *_FAULTS),
    run=("--rps", "300", "--profile", "bucket"),
)
# Nothing limits but the concurrency, so that every slot is in use at each kill.
SATURATED = Plan(kills=6, seed=2, concurrency=32, server=("--latency", "0.05-0.15", *_FAULTS))


@dataclass
class Figures:
    """What a killed run came to.

    retries: what the server failed, each tried again once. allowed: the requests that rows,
    retries and kills explain, a kill by all that may have been in flight.
    """

    kills: int = 0
    rows: int = 0
    concurrency: int = 0
    lines_at_kills: list[int] = field(default_factory=list)
    torn_at_kills: int = 0
    received: int = 0
    retries: int = 0
    allowed: int = 0
    most_in_flight: int = 0
    verdict: str = ""
    duration_s: float = 0.0

    @property
    def wasted(self) -> int:
        """Requests whose answers no kill let be saved."""
        return self.received - self.rows - self.retries


def kill_until_done(plan: Plan, folder: Path) -> Figures:
    """Kills a run `plan.kills` times, each after new lines have appeared, then lets it finish.

    Raises AssertionError where a line that was there is gone or changed, a row is lost or stands
    twice, or a line is torn. What the server counted stands in the figures.
    """
    begun_s = time.monotonic()
    chance = random.Random(plan.seed)
    rows, output = folder / "rows.jsonl", folder / "labels.jsonl"
    write_rows(rows, plan.rows)
    figures = Figures(rows=plan.rows, concurrency=plan.concurrency)
    with serving("--seed", str(plan.seed), *plan.server) as server:
        flags = run_flags(rows, output, server, "-c", str(plan.concurrency), *plan.run)
        while figures.kills < plan.kills:
            lines = _lines_to_await(plan, figures, output, chance)
            # The moment falls anywhere: within a group, between write and fsync, between groups.
            _kill_once(flags, output, (lines, chance.uniform(0, 0.06)), figures)
        kept = whole_part(output)
        last = redline(*flags)
        assert last.returncode == 0, last.stderr
        assert output.read_bytes().startswith(kept), "lines of before the last kill have changed"
        stats = server.stats()
    assert sorted(ids(output)) == [f"t-{number:05}" for number in range(1, plan.rows + 1)]
    figures.verdict = redline("verify", str(output)).stdout.strip()
    assert figures.verdict == f"verify: {plan.rows:,} of {plan.rows:,}, each once"
    figures.received = stats["received"]
    figures.retries = stats["faults"] + stats["rejected"] + stats["overloaded"]
    figures.most_in_flight = stats["most_in_flight"]
    figures.allowed = plan.rows + figures.retries + plan.kills * plan.concurrency
    figures.duration_s = round(time.monotonic() - begun_s, 2)
    return figures


def _lines_to_await(plan: Plan, figures: Figures, output: Path, chance: random.Random) -> int:
    """How many lines the file shall have before the next kill: new ones, and rows left over."""
    present = whole_part(output).count(b"\n")
    share = (plan.rows - present) // (plan.kills - figures.kills + 1)
    return present + chance.randint(1, max(1, share - plan.concurrency // 2))


def _kill_once(
    flags: Sequence[str], output: Path, moment: tuple[int, float], figures: Figures
) -> None:
    """moment: kills once the file has so many lines, and so many seconds have passed since."""
    before = whole_part(output)
    lines, later_s = moment
    with started(flags) as process:
        await_lines(output, lines, process)
        assert process.poll() is None, f"the run ended before its kill: {ended(process)}"
        time.sleep(later_s)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert process.returncode == -signal.SIGKILL
    after = whole_part(output)
    assert after.startswith(before), "lines that were there have changed"
    assert len(after) > len(before), "no new line had appeared"
    figures.kills += 1
    figures.lines_at_kills.append(after.count(b"\n"))
    figures.torn_at_kills += output.stat().st_size > len(after)
