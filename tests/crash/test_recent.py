"""A process that is killed and started again within a window never overshoots it."""

from __future__ import annotations

import itertools
import os
import random
import signal
import time
from pathlib import Path

import pytest

from redline.clock import SYSTEM
from redline.limits import Cost, Limits
from redline.limits.rule import RecentSends, Rules

GUARD_S = 0.02
# A clock is read a moment after the limiter has read it.
SLACK_S = 0.002


def send_until_killed(folder: Path, profile: str, *, is_kept: bool) -> None:
    """Sends as fast as it may; each stamp is logged before its send, as a server would count it."""
    limits = Limits(requests="12/1s", tokens="360/1s", profile=profile, guard_s=GUARD_S)
    rules, cost = Rules(limits), Cost(30)
    if is_kept:
        rules.keep_in(RecentSends(folder / "state", "sim", SYSTEM))
    log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    while True:
        wait_s = rules.wait_s(cost, SYSTEM.now_s())
        if wait_s > 0:
            time.sleep(min(wait_s, 0.05))
            continue
        bookings = rules.book(cost, SYSTEM.now_s())
        sent_s = SYSTEM.now_s()
        for booking in bookings:
            booking.window.sent(booking, sent_s)
        # The monotonic clock is the machine's: it goes on while no process runs.
        os.write(log, b"%.6f\n" % sent_s)


def killed(
    folder: Path, profile: str, kills: int, seed: int, *, is_kept: bool = True
) -> list[float]:
    """The stamps of all sends of a process that is killed again and again, at random moments."""
    chance = random.Random(seed)
    for _ in range(kills):
        child = os.fork()
        if child == 0:
            try:
                send_until_killed(folder, profile, is_kept=is_kept)
            finally:
                os._exit(70)
        time.sleep(chance.uniform(0.01, 0.25))
        os.kill(child, signal.SIGKILL)
        assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    return [float(line) for line in (folder / "log").read_text().splitlines()]


def most_within(stamps: list[float], span_s: float) -> int:
    first = most = 0
    for number, stamp in enumerate(stamps):
        while stamps[first] <= stamp - span_s:
            first += 1
        most = max(most, number - first + 1)
    return most


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.parametrize("profile", ["any", "moving", "bucket"])
def test_twenty_deaths_within_windows_never_overshoot(tmp_path: Path, profile: str) -> None:
    kills = 20 if profile == "moving" else 6
    stamps = killed(tmp_path, profile, kills, seed=1)
    assert stamps == sorted(stamps)
    if profile == "bucket":
        # A bucket of 12 that refills with 12 a second is never asked for more than it holds.
        level, at_s = 12.0, stamps[0]
        for stamp in stamps:
            level, at_s = min(12.0, level + (stamp - at_s) * 12) - 1, stamp
            assert level >= -0.1
    else:
        assert most_within(stamps, 1 + GUARD_S - SLACK_S) <= 12
    if profile == "any":
        gaps_s = [later - earlier for earlier, later in itertools.pairwise(stamps)]
        assert min(gaps_s) >= (1 + GUARD_S) / 12 - GUARD_S - SLACK_S
    # It makes use of its limit all the same.
    assert len(stamps) >= 0.3 * 12 * (stamps[-1] - stamps[0] - 1)


@pytest.mark.crash
def test_a_process_that_forgets_is_caught(tmp_path: Path) -> None:
    # On a busy machine, processes may start so slowly that windows hardly overlap.
    most = 0
    for seed in range(2, 6):
        (folder := tmp_path / str(seed)).mkdir()
        stamps = killed(folder, "moving", 4, seed=seed, is_kept=False)
        most = max(most, most_within(stamps, 1 + GUARD_S - SLACK_S))
        if most > 12:
            return
    raise AssertionError(f"{most} sends within a window show no process that forgets")
