"""The live view of a job on a terminal: its numbers are those of the server's log."""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path
from statistics import median

from support.sim_process import SimProcess
from support.terminal import OnTerminal, Terminal

REDLINE = (sys.executable, "-m", "redline")
ROWS = 400
VIEW = ["input", "rows", "speed", "binds"]


def number(text: str, pattern: str) -> float:
    """The number in the one group of the pattern; with k or m, thousands or millions."""
    found = re.search(pattern, text)
    assert found is not None, (pattern, text)
    digits = found[1].replace(",", "")
    factor = {"k": 1e3, "m": 1e6}.get(digits[-1], 1.0)
    return float(digits.rstrip("km")) * factor


def is_near(shown: float, true: float) -> bool:
    return abs(shown - true) <= 0.02 * true


def test_what_the_screen_says_is_what_the_server_has_seen(tmp_path: Path) -> None:
    rows, results = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    texts = ({"text": f"row {i} " + "word " * (i % 40)} for i in range(ROWS))
    rows.write_text("".join(json.dumps(row) + "\n" for row in texts))
    sim = SimProcess("--latency", "0.3-0.5", "--faults", "500=0.05")
    command = (
        *(*REDLINE, "run", str(rows), "--base-url", sim.base_url, "--model", "m", "-c", "40"),
        *("--prompt", "{{ text }}", "--rpm", "6000", "--profile", "moving", "-o", str(results)),
    )
    sim.start()
    try:
        with OnTerminal(command, 120) as job:
            job.until(lambda lines: done_of(lines) > 100)
            # While the key is parked, nothing moves, and the numbers can be compared.
            sim.park("", 3.0)
            began_s = time.monotonic()
            lines = job.until(
                lambda lines: time.monotonic() > began_s + 1.7 and "on hold" in lines[0]
            )
            compare(lines, sim)
            job.until(lambda lines: "on hold" not in lines[0])
            sim.kill()
            outage = job.until(lambda lines: any("refuses connections" in line for line in lines))
            told = " ".join(outage[-2:])
            assert re.search(r"refuses connections, for \d\.\d s now; retrying, nothing is", told)
            assert "on hold" in outage[0]
            sim.start()
            sim.disturb(latency="0.01")
            assert job.end() == 0
    finally:
        sim.kill()
    shown = [done_of(lines) for lines in job.frames if done_of(lines) >= 0]
    assert len(shown) > 10
    assert shown == sorted(shown)
    # Nothing is left of the view.
    assert job.screen.lines[0].startswith(f"{ROWS} rows = {ROWS} succeeded")


def done_of(lines: list[str]) -> int:
    """How many rows are done; -1 if the view is not there."""
    found = next((line for line in lines if line.startswith("rows ")), None)
    return -1 if found is None else int(number(found, r"([\d,]+) of"))


def compare(lines: list[str], sim: SimProcess) -> None:
    """The numbers on the screen with those of the server, which has stood still for a while."""
    stats, seen = sim.stats(), sim.get("/sim/requests?limit=100000")["requests"]
    input_, rows, speed, limits, usage, errors, *_ = lines
    done = stats["by_status"]["200"]
    assert done_of(lines) == done
    assert number(rows, r"([\d,]+) failed") == 0
    assert number(rows, r"([\d,]+) left") == ROWS - done
    assert is_near(number(input_, r"([\d.]+) %"), 100 * done / ROWS)
    assert number(speed, r"([\d,]+)/40 in flight") == 0
    assert number(speed, r"([\d,]+) x 429") == stats["by_status"]["429"]
    took = [one["ended_s"] - one["arrival_s"] for one in seen if one["status"] == 200]
    # The client's own time is in it, on a machine with other work.
    assert abs(number(speed, r"p50 ([\d.]+) ms") / 1000 / median(took) - 1) < 0.06
    assert is_near(number(limits, r"([\d,.k]+)/6,000 rpm"), stats["received"])
    assert is_near(number(usage, r"([\d,.]+) tokens/row"), stats["tokens"] / done)
    faults = stats["faults_by_kind"].get("500", 0)
    assert number(errors, r"([\d,]+) server_failed") == faults
    assert number(errors, r"([\d,]+) rate_limited") == stats["by_status"]["429"]


def test_prints_come_above_the_view_and_a_narrower_terminal_leaves_nothing_behind(
    tmp_path: Path,
) -> None:
    program = tmp_path / "job.py"
    program.write_text(
        "import asyncio, redline\n"
        "async def answer(row):\n"
        "    await asyncio.sleep(0.02)\n"
        "    if row['n'] % 20 == 0:\n"
        "        print('at', row['n'])\n"
        "    return row['n']\n"
        "rows = [{'n': n} for n in range(1, 101)]\n"
        "redline.run(rows, call=answer, concurrency=2, progress=True)\n"
        "print('end')\n"
    )
    with OnTerminal((sys.executable, str(program)), 60) as job:
        lines = job.until(lambda lines: "at 40" in lines and done_of(lines) >= 0)
        assert lines.index("at 20") < lines.index("at 40")
        assert lines[lines.index("at 40") + 1].startswith("input ")
        job.resize(36)
        lines = job.until(lambda lines: "at 60" in lines and lines[-1].startswith("binds "))
        assert [label for line in lines if (label := line.split()[0]) != "at"] == VIEW
        assert job.end() == 0
    assert job.screen.lines == [*(f"at {n}" for n in range(20, 101, 20)), "end"]


def test_the_terminal_of_these_tests_is_one() -> None:
    screen = Terminal(10)
    screen.feed("abc\ndefghijklmnop\r\x1b[1Ax\x1b[K\ny\x1b[J")
    assert screen.lines == ["abc", "x", "y"]
