"""No rejection by real limiters, and the limit used: the short form of bench/limits.py.

A busy machine adds jitter of its own and rings timers late. Both sides stamp on one clock, and the
client's loop is watched, so it is known how much of either there was: a try is judged by what it
really had. On a quiet machine that is the issue's bar; bench/limits.py knows nothing else.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from redline.limits import Rate
from support.opponents import KINDS, SPARE_GUARD_S, Opponent, Setting, Trial, opponent, try_redline

RATE, CALLS = Rate(20, 1.0), 101
JITTERS_S = (0.0, 0.05)
# A try that a busy machine has spoilt is repeated; so is one that was slow.
MOST_TRIES, SLOW_TRIES = 6, 3
# Timers that ring late by more than this share of a run make it slow in ways that Lag cannot see.
BUSY = 0.03
TICK_S = 0.01
# Of KINDS, those that let nothing through beyond the count.
STRICT = ("fixed", "moving")

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, Opponent]]:
    """One of each kind. All are tried at once: a try mostly waits."""
    with ExitStack() as stack:
        yield {
            kind: stack.enter_context(opponent(Setting(kind, RATE), life_s=900)) for kind in KINDS
        }


class Lag:
    """How late this loop's timers ring: the sum over windows of the latest one in each.

    A call that is sent late holds its place in the window for longer, so that every call which is
    a whole number of windows behind it may be as late as all of them together.
    """

    def __init__(self) -> None:
        self.total_s = 0.0

    async def __aenter__(self) -> Lag:
        self._task = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _watch(self) -> None:
        while True:
            ends_s = time.monotonic() + RATE.window_s
            worst_s = 0.0
            while (now_s := time.monotonic()) < ends_s:
                await asyncio.sleep(TICK_S)
                late_s = time.monotonic() - now_s - TICK_S
                # What is over already counts at once, for the run may end within the window.
                self.total_s += max(0.0, late_s - worst_s)
                worst_s = max(worst_s, late_s)


async def keeps_its_word(server: Opponent, profile: str, jitter_s: float) -> str:
    """Fails if a call is rejected that the guard covered, or if it is too slow on a calm machine.

    The tries, if the machine was too busy in all of them to judge one, otherwise nothing.
    """
    trials: list[tuple[Trial, float]] = []
    slow = 0
    while len(trials) < MOST_TRIES:
        async with Lag() as lag:
            trial = await try_redline(server, profile, CALLS, jitter_s=jitter_s, seed=len(trials))
        bar_s = server.setting.bar_s(profile, CALLS, max(jitter_s, trial.jitter_s)) + lag.total_s
        trials.append((trial, bar_s))
        assert trial.admitted + trial.rejected == CALLS
        if trial.rejected:
            # Only a machine that added more jitter than the guard has to spare may repeat the try.
            assert trial.jitter_s > jitter_s + SPARE_GUARD_S, trials
        elif trial.last_send_s <= bar_s:
            return ""
        else:
            slow += lag.total_s < BUSY * trial.last_send_s
            assert slow < SLOW_TRIES, trials
    return f"{server.setting.kind}, {profile}, jitter {jitter_s}: {trials}"


@pytest.mark.slow
async def test_no_call_is_rejected_and_the_last_one_leaves_in_time(
    servers: dict[str, Opponent],
) -> None:
    settings = [
        (server, profile, jitter_s)
        for kind, server in servers.items()
        for jitter_s in JITTERS_S
        for profile in ("any", kind)
    ]
    async with asyncio.TaskGroup() as group:
        tries = []
        for setting in settings:
            tries.append(group.create_task(keeps_its_word(*setting)))
            # So that bursts do not meet.
            await asyncio.sleep(RATE.window_s / len(settings))
    if unjudged := [task.result() for task in tries if task.result()]:
        pytest.skip(f"the machine is too busy: {unjudged}")


@pytest.mark.slow
async def test_a_limit_stated_too_high_is_rejected(servers: dict[str, Opponent]) -> None:
    """Else the servers would prove nothing."""
    stated = Rate(RATE.count + 2, RATE.window_s)
    trials = await asyncio.gather(
        *(try_redline(servers[kind], kind, 2 * RATE.count, stated=stated) for kind in STRICT)
    )
    assert all(trial.rejected > 0 for trial in trials), trials
