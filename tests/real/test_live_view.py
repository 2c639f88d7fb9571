"""The live view of a job on a terminal: its numbers are those of the server's log."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from support.live_screen import PRICES, Truth, done_of, number, truth_of, wrong
from support.sim_process import SimProcess
from support.terminal import OnTerminal, Terminal
from support.tmux import TMUX, OnTmux

REDLINE = (sys.executable, "-m", "redline")
ROWS, SLOTS = 600, 60
VIEW = ["input", "rows", "speed", "binds"]
# Fields that go on while nothing is answered, or of which the log says nothing then.
MOVING = r"/s'|/min'|input: '[\d.]+ s'|retrying'|p\d\d "
# A call may be cut off before one is refused; then the outage began with that.
GONE = r"refused connections|unreachable"
# What the server's log cannot know of a standstill: rows that wait to be tried again, how late a
# busy machine was to see answers, and what a client says of a server that is gone.
UNLOGGED = rf"retrying'|p\d\d |: '0 in flight'|{GONE}"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the job runs: with an input, and prices."""
    monkeypatch.chdir(tmp_path)
    texts = ({"text": f"row {i} " + "word " * (i % 40)} for i in range(ROWS))
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in texts))
    prices = "\n".join(f"{name} = {usd}" for name, usd in PRICES.items())
    (tmp_path / "redline.toml").write_text(f'[prices."m"]\n{prices}\n')
    return tmp_path


def command(sim: SimProcess, *flags: str, slots: int = SLOTS) -> list[str]:
    target = ("--base-url", sim.base_url, "--model", "m", "--prompt", "{{ text }}")
    limits = ("-c", str(slots), "--rpm", "6000", "--profile", "moving")
    return [*REDLINE, "run", "in.jsonl", *target, *limits, "-o", "out.jsonl", *flags]


def interrupted_after(rows: int) -> int:
    """Rows that a run did which was interrupted then."""
    with SimProcess("--latency", "0.2") as sim:
        run = subprocess.Popen([*command(sim), "-q"], stderr=subprocess.DEVNULL)
        while sim.stats()["answered"] < rows:
            time.sleep(0.02)
        run.send_signal(signal.SIGINT)
        run.wait(30)
    return len(Path("out.jsonl").read_text().splitlines())


@pytest.mark.slow
@pytest.mark.skipif(TMUX is None, reason="tmux is not installed")
@pytest.mark.parametrize(
    ("columns", "flags", "is_resumed"),
    [
        (120, ("--max-retries", "0"), True),
        (80, ("--max-tokens", "1"), False),
        (60, (), True),
    ],
)
def test_every_number_on_the_screen_is_the_logs(
    folder: Path, columns: int, flags: tuple[str, ...], is_resumed: bool
) -> None:
    before = interrupted_after(40) if is_resumed else 0
    sim = SimProcess("--latency", "2-4", "--faults", "500=0.08", "--faults", "429=0.04")
    with sim, OnTmux(command(sim, *flags), columns) as job:
        job.until(lambda lines: bool(lines) and lines[0].startswith("input "))
        begun_s = job.frames[-1][0]
        job.until(lambda _: sim.stats()["received"] >= SLOTS)
        # All that comes later takes longer than this test: in a while nothing moves, and what is on
        # the screen can be compared.
        sim.disturb(latency="60")

        def is_all_there(lines: list[str]) -> bool:
            stats = sim.stats()
            is_still = stats["in_flight"] == SLOTS and time.monotonic() - begun_s > 5.5
            return is_still and done_of(lines) == before + stats["answered"]

        job.until(is_all_there)
        still_s = time.monotonic()
        problems = ["nothing was seen"]
        # A machine with other work may show or see a frame late, but not all of them.
        while problems and time.monotonic() < still_s + 5.0:
            at_s, lines = job.next_frame()
            problems = wrong(lines, truth_of(
                sim, rows=ROWS, slots=SLOTS, begun_s=begun_s, at_s=at_s, before=before,
                is_tried_once="--max-retries" in flags,
            ))  # fmt: skip
        assert not problems, lines
        assert all(len(line) < columns for line in lines)
    shown = [done_of(lines) for _, lines in job.frames if done_of(lines) >= 0]
    assert shown == sorted(shown)
    assert shown[-1] > before


@pytest.mark.skipif(TMUX is None, reason="tmux is not installed")
def test_rates_are_of_the_last_ten_seconds_and_the_end_is_the_logs(folder: Path) -> None:
    sim, rows = SimProcess("--latency", "0.25", "--faults", "500=0.05"), 440
    with sim, OnTmux(command(sim, "--limit", str(rows), slots=4), 120) as job:
        job.until(lambda lines: bool(lines) and lines[0].startswith("input "))
        begun_s = job.frames[-1][0]
        job.until(lambda _: time.monotonic() > begun_s + 2.4)
        # From now on twice as fast: what came before is no part of the last ten seconds.
        sim.disturb("500=0.05", latency="0.125")
        job.until(lambda _: time.monotonic() > begun_s + 12.6)
        problems = ["nothing was seen"]
        while problems and time.monotonic() < begun_s + 14.6:
            at_s, lines = job.next_frame()
            log = truth_of(sim, rows=rows, slots=4, begun_s=begun_s, at_s=at_s)
            # Counts go on while they are compared.
            problems = [
                one for one in wrong(lines, log) if re.search(r"/s'|/min'|input: '\d+ s", one)
            ]
        assert not problems, lines
        assert log.rows_per_s > 1.05 * log.per_s(lambda one: one["status"] == 200, 60)
        lines = job.until(lambda lines: "status 0" in lines)
        log = truth_of(sim, rows=rows, slots=4, begun_s=begun_s, at_s=at_s)
    told = " ".join(lines)
    assert f"{rows} rows = {rows} succeeded + 0 failed + 0 unfinished" in told
    assert count_of(r"([\d,]+) requests at", told) == log.stats["received"]
    assert count_of(r"([\d,]+) retries", told) == log.errors("server_failed")
    assert count_of(r"([\d,]+) tokens in", told) == log.stats["prompt_tokens"]
    assert count_of(r"in, ([\d,]+) out", told) == log.stats["completion_tokens"]
    assert count_of(r"spent: \$([\d.,]+)", told) == pytest.approx(log.dollars, abs=0.005)
    assert count_of(r"([\d,]+) server_failed", told) == log.errors("server_failed")


@pytest.mark.skipif(TMUX is None, reason="tmux is not installed")
def test_what_was_found_is_what_the_provider_grants(folder: Path) -> None:
    sim = SimProcess("--requests", "20/1s", "--latency", "0.1", "--algorithm", "moving")
    target = ("--base-url", sim.base_url, "--model", "m", "--prompt", "{{ text }}")
    flags = ("--rate", "auto", "-o", "out.jsonl")
    with sim, OnTmux([*REDLINE, "run", "in.jsonl", *target, *flags], 120) as job:
        lines = job.until(
            lambda lines: any(line.startswith("limits ") and "found: " in line for line in lines)
        )
        limits = next(line for line in lines if line.startswith("limits "))
        speed = next(line for line in lines if line.startswith("speed "))
        stats = sim.stats()
    assert limits.endswith("  found: 20/1s requests"), limits
    # It is tried whether there is more.
    tried = count_of(r"/([\d.]+) rps \(auto\) <- binds", limits)
    assert 20 <= tried <= 21
    assert count_of(r"([\d,]+)/[\d,]+ in flight \(auto\)", speed) <= stats["most_in_flight"]


def count_of(pattern: str, text: str) -> float:
    found = re.search(pattern, text)
    assert found is not None, (pattern, text)
    return number(found[1])


@pytest.mark.slow
@pytest.mark.skipif(TMUX is None, reason="tmux is not installed")
@pytest.mark.parametrize("columns", [60, 120])
def test_of_batches_the_screen_says_what_the_provider_does(folder: Path, columns: int) -> None:
    before = interrupted_after(40)
    # Some lines stall: the others are over soon, and then nothing moves.
    sim = SimProcess("--batch-latency", "0.5-2.5", "--faults", "stall=0.05", "--faults", "500=0.05")
    flags = ("--via", "batch", "--force")
    with sim, OnTmux(command(sim, *flags), columns) as job:
        job.until(lambda lines: any("1 in_progress" in line for line in lines))
        begun_s = next(at_s for at_s, lines in job.frames if done_of(lines) >= 0)
        # What goes wrong with the lines is drawn; what is asked from now on goes well.
        sim.disturb()
        job.until(lambda _: time.monotonic() > begun_s + 4.0)
        problems = ["nothing was seen"]
        # It is looked at less and less often.
        while problems and time.monotonic() < begun_s + 14.0:
            at_s, lines = job.next_frame()
            log = truth_of(sim, rows=ROWS, slots=SLOTS, begun_s=begun_s, at_s=at_s, before=before)
            problems = wrong(lines, log)
        assert not problems, lines
        assert 0 < log.batches["finished"] < log.batches["total"] == ROWS - before
        shown = [done_of(lines) for _, lines in job.frames if done_of(lines) >= 0]
        assert shown[0] == shown[-1] == before


def test_a_job_that_is_parked_and_loses_its_server(folder: Path) -> None:
    sim = SimProcess("--latency", "0.3-0.5", "--faults", "500=0.05")
    sim.start()
    try:
        with OnTerminal(command(sim), 120) as job:
            job.until(lambda lines: done_of(lines) > 100)
            # While the key is parked, nothing moves, and the numbers can be compared.
            sim.park("", 3.0)
            began_s = time.monotonic()
            lines = job.until(
                lambda lines: time.monotonic() > began_s + 1.7 and "on hold" in lines[0]
            )
            now_s = time.monotonic()
            log = truth_of(sim, rows=ROWS, slots=SLOTS, begun_s=began_s, at_s=now_s)
            problems = [one for one in wrong(lines, log) if not re.search(MOVING, one)]
            assert not problems, lines
            job.until(lambda lines: "on hold" not in lines[0])
            sim.kill()
            outage = job.until(lambda lines: any(re.search(GONE, line) for line in lines))
            told = " ".join(outage[-3:])
            assert re.search(rf"({GONE}).* for \d+\.\d s; retrying, nothing is", told)
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


@pytest.mark.skipif(TMUX is None, reason="tmux is not installed")
def test_the_numbers_stay_the_logs_while_it_is_parked_and_while_its_server_is_gone(
    folder: Path,
) -> None:
    sim = SimProcess("--latency", "0.3-0.5", "--faults", "500=0.05")
    sim.start()
    try:
        with OnTmux(command(sim), 80) as job:
            job.until(lambda lines: bool(lines) and lines[0].startswith("input "))
            begun_s = job.frames[-1][0]
            job.until(lambda lines: done_of(lines) > 100)
            sim.park("", 4.0)
            until_s = time.monotonic() + 3.5
            job.until(lambda lines: "on hold" in lines[0])

            def compared(log: Truth) -> list[str]:
                """What is wrong with the next frame, whose time is that of the log."""
                at_s, lines = job.next_frame()
                found = wrong(lines, log._replace(at_s=at_s))
                return [one for one in found if not re.search(UNLOGGED, one)] or (
                    [] if "on hold" in lines[0] else ["it is not on hold"]
                )

            problems = ["nothing was seen"]
            while problems and time.monotonic() < until_s:
                log = truth_of(sim, rows=ROWS, slots=SLOTS, begun_s=begun_s, at_s=0.0)
                problems = compared(log)
            assert not problems, job.frames[-1]
            # Nothing is answered any more: what the log says holds for the time without a server.
            sim.kill()
            job.until(lambda lines: any(re.search(GONE, line) for line in lines))
            until_s, problems = time.monotonic() + 3.0, ["nothing was seen"]
            while problems and time.monotonic() < until_s:
                problems = compared(log)
            assert not problems, job.frames[-1]
            sim.start()
            sim.disturb(latency="0.01")
            lines = job.until(lambda lines: "status 0" in lines)
            assert sim.stats()["by_status"]["200"] == ROWS - log.done
    finally:
        sim.kill()
    assert lines[0].startswith(f"{ROWS} rows = {ROWS} succeeded")
    shown = [done_of(lines) for _, lines in job.frames if done_of(lines) >= 0]
    assert len(shown) > 10
    assert shown == sorted(shown)


def test_prints_come_above_the_view_and_a_narrower_terminal_leaves_nothing_behind(
    tmp_path: Path,
) -> None:
    program = tmp_path / "job.py"
    program.write_text(
        "import asyncio, redline\n"
        "async def answer(row):\n"
        "    await asyncio.sleep(0.06)\n"
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


def test_a_terminal_that_takes_no_more_holds_up_no_end_of_a_run(tmp_path: Path) -> None:
    program = (
        "import asyncio, os, redline\n"
        "async def answer(row):\n"
        "    await asyncio.sleep(0.7)\n"
        "report = redline.run([{'n': 1}, {'n': 2}], call=answer, concurrency=1, progress=True)\n"
        "open('done', 'w').write(str(report.succeeded))\n"
        "os._exit(0)\n"
    )
    leader, follower = pty.openpty()
    os.set_blocking(follower, False)
    # Room appears again for a while: the system hands on what was written.
    for _ in range(20):
        with suppress(BlockingIOError):
            while True:
                os.write(follower, b"x")
        time.sleep(0.01)
    os.set_blocking(follower, True)
    command = (sys.executable, "-c", program)
    job = subprocess.Popen(
        command,
        stdin=follower,
        stdout=follower,
        stderr=follower,
        cwd=tmp_path,
        env={**os.environ, "TERM": "xterm"},
    )
    try:
        assert job.wait(30) == 0
    finally:
        job.kill()
        job.wait()
        os.close(leader)
        os.close(follower)
    assert (tmp_path / "done").read_text() == "2"


def test_the_terminal_of_these_tests_is_one() -> None:
    screen = Terminal(10)
    screen.feed("abc\ndefghijklmnop\r\x1b[1Ax\x1b[K\ny\x1b[J")
    assert screen.lines == ["abc", "x", "y"]
