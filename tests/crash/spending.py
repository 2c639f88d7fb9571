"""Runs with a budget, killed at random moments and continued, against what the server bills.

The small form is a test, the long form the campaign `budget` of bench/campaign.py. What the server
has billed is counted as hard as can be: every request that it received and did not refuse with an
HTTP error is paid for, whether anybody saw its answer or not.
"""

from __future__ import annotations

import json
import random
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crash.killing import (
    LIMIT_S,
    Server,
    await_lines,
    redline,
    run_flags,
    sealed_lines,
    serving,
    started,
    whole_part,
)

# Dollars for a million tokens, and so picodollars for one.
_INPUT, _OUTPUT = 3_000_000, 15_000_000
_PRICES = '[prices."sim"]\ninput = 3\noutput = 15\n'
_MAX_TOKENS = 40
_REFUSALS = ("429", "500", "503")
_SPENT = 2  # exit status of a run that its budget ends


@dataclass(frozen=True)
class Plan:
    """One budget. calls: how many it pays for, each at its worst."""

    seed: int
    kills: int
    rows: int = 1000
    concurrency: int = 8
    calls: int = 60


@dataclass
class Figures:
    """Shares of the budget: counted, by redline; billed, by the server at the hardest."""

    kills: int = 0
    rows_done: int = 0
    received: int = 0
    faults: int = 0
    budget_usd: float = 0.0
    counted: float = 0.0
    billed: float = 0.0
    answered: float = 0.0
    has_ended: bool = False
    duration_s: float = 0.0


def spend_until_done(plan: Plan, folder: Path) -> Figures:
    """Kills a run with a budget `plan.kills` times, continues it, and ends with all that it counts.

    Raises AssertionError where the server has billed more than the budget or more than is counted,
    or where less than 95 % of the budget is used and rows are left.
    """
    begun_s = time.monotonic()
    chance = random.Random(plan.seed)
    (folder / "redline.toml").write_text(_PRICES)
    rows, output = folder / "rows.jsonl", folder / "labels.jsonl"
    _write_rows(rows, plan.rows, chance)
    budget = plan.calls * _worst(rows)
    money = f"{budget / 10**12:.12f}usd"
    share = chance.choice((0.0, 0.05, 0.15))
    latency = chance.choice(("0.01-0.1", "lognormal:-3.5,0.8"))
    sim = ("--faults", str(share), "--latency", latency, "--seed", str(plan.seed))
    figures = Figures(budget_usd=budget / 10**12)
    with serving(*sim) as server:
        flags = run_flags(rows, output, server, "-c", str(plan.concurrency), "--timeout", "0.4")
        flags += ["--max-tokens", str(_MAX_TOKENS), "--budget", money]
        while figures.kills < plan.kills and _kill(flags, output, chance):
            figures.kills += 1
            assert _billed(server) <= _counted(output), "billed and not counted"
        ended = redline(*flags, cwd=folder)
        assert ended.returncode in (0, 1, _SPENT), ended.stderr
        stats = server.stats()
        billed = _billed(server)
    counted = _counted(output)
    figures.received, figures.faults = stats["received"], stats["faults"]
    figures.rows_done = len(sealed_lines(output))
    figures.counted, figures.billed = counted / budget, billed / budget
    figures.answered = _cost(stats["prompt_tokens"], stats["completion_tokens"]) / budget
    figures.has_ended = ended.returncode == _SPENT
    figures.duration_s = round(time.monotonic() - begun_s, 2)
    assert billed <= counted <= budget, figures
    if figures.has_ended:
        assert "error: the budget does not allow the next call" in ended.stderr
        assert figures.counted >= 0.95, figures
    return figures


def _write_rows(path: Path, count: int, chance: random.Random) -> None:
    with path.open("w", encoding="utf-8") as file:
        for number in range(count):
            # Of one length, so that one request costs what any other does.
            text = "".join(chance.choices("abcdefgh ", k=180))
            file.write(json.dumps({"custom_id": f"t-{number:05}", "text": text}) + "\n")


def _worst(rows: Path) -> int:
    """Picodollars of a call by the rule of docs/budget.md: a token for each byte of its JSON."""
    text = json.loads(rows.read_text("utf-8").splitlines()[0])["text"]
    message = {"role": "user", "content": f"Classify: {text}"}
    body = {"model": "sim", "max_tokens": _MAX_TOKENS, "messages": [message]}
    raw = json.dumps(body, separators=(",", ":")).encode()
    return _cost(len(raw) + 64, _MAX_TOKENS)


def _cost(input_tokens: int, output_tokens: int) -> int:
    return input_tokens * _INPUT + output_tokens * _OUTPUT


def _billed(server: Server) -> int:
    """Picodollars of all that was not refused."""
    stats = server.stats()
    refused = stats["refused"] + stats["rejected"] + stats["overloaded"]
    refused += sum(stats["faults_by_kind"].get(kind, 0) for kind in _REFUSALS)
    if not stats["answered"]:
        return 0
    each = _cost(stats["prompt_tokens"], stats["completion_tokens"]) // stats["answered"]
    return int(each * (stats["received"] - refused))


def _counted(output: Path) -> int:
    """What stands in the account, read without redline's own code."""
    line = (output.parent / "labels.redline" / "spent").read_text()
    found: dict[str, Any] = json.loads(line[: line.index("}") + 1])
    return int(found["picodollars"])


def _kill(flags: list[str], output: Path, chance: random.Random) -> bool:
    """False where the run was over before its kill."""
    before = whole_part(output).count(b"\n")
    with started(flags, cwd=output.parent) as process:
        await_lines(output, before + chance.randint(1, 60), process)
        time.sleep(chance.uniform(0, 0.06))
        if process.poll() is not None:
            return False
        process.send_signal(signal.SIGKILL)
        return process.wait(LIMIT_S) == -signal.SIGKILL
