"""Token limits over HTTP against the simulated provider: nearly all used, nobody rejected.

The long form, with uncertain outputs and larger limits, is in tests/sim/test_token_limits.py and
bench/tokens.py, in virtual time.
"""

from __future__ import annotations

import asyncio
import math
import random
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest

from redline.calls import Call, Endpoint, HttpBackend, Request
from redline.limits import Limits, Rate
from support.scripted import chat, said, scripted
from support.simulated import Simulated, simulated

RATE = Rate(60_000, 6.0)
WINDOWS = 2.3
USED = 0.95
# The simulated model echoes its question, so the outputs have 215 tokens and 20 to either side. A
# long prompt makes for few calls, which a busy machine can still send in time.
CHARACTERS = (770, 930)
RULES = "Answer in the words of the question. " * 60
MOST_TOKENS = 256
TRIES = 3

pytestmark = pytest.mark.real


@dataclass(frozen=True)
class Trial:
    """One server and the profile against it."""

    algorithm: str
    profile: str = "any"
    charge: str = "actual"

    @property
    def flags(self) -> list[str]:
        return [
            *("--tokens", "60k/6s", "--algorithm", self.algorithm, "--charge", self.charge),
            *("--latency", "0.2-0.5", "--headers", "none"),
        ]

    @property
    def limits(self) -> Limits:
        charge = "reserved" if self.charge == "reserved" else "actual"
        return Limits(tokens=RATE, profile=self.profile, charge=charge, concurrency=48)


TRIALS = [
    *(Trial(algorithm) for algorithm in ("fixed", "moving", "counter", "bucket")),
    Trial("moving", "moving"),
    Trial("bucket", "bucket"),
    Trial("counter", charge="reserved"),
    Trial("moving", charge="answered"),
]


async def send_for(base_url: str, limits: Limits, lasts_s: float) -> None:
    """Calls that always wait, until lasts_s after the first; those that are sent then end."""
    backend = HttpBackend(Endpoint(base_url=base_url, limits=limits, proxy=""))
    chance = random.Random(1)
    ends_s = asyncio.get_running_loop().time() + lasts_s

    async def work() -> None:
        while True:
            text = "x" * chance.randint(*CHARACTERS)
            messages = [{"role": "system", "content": RULES}, {"role": "user", "content": text}]
            body = {"model": "m", "messages": messages, "max_tokens": MOST_TOKENS}
            call = Call()
            sending = asyncio.create_task(backend.send(Request(body=body), call))
            await asyncio.wait([sending], timeout=ends_s - asyncio.get_running_loop().time())
            if not sending.done() and call.sent_s is None:
                sending.cancel()
            await asyncio.wait([sending])
            if asyncio.get_running_loop().time() >= ends_s:
                return

    try:
        await asyncio.gather(*(work() for _ in range(limits.slots())))
    finally:
        await backend.aclose()


def used(trial: Trial, stats: dict[str, Any]) -> float:
    """The share of what the server would have let in from the first call to the last."""
    lasted_s = stats["last_received_s"] - stats["first_received_s"]
    allowed = RATE.count * lasted_s / RATE.window_s
    if trial.profile == "moving":
        allowed = RATE.count * (math.floor(lasted_s / RATE.window_s) + 1)
    elif trial.profile == "bucket":
        allowed += RATE.count
    tokens: float = stats["tokens"]
    if trial.charge == "reserved":
        # Charged are the prompt and the maximum.
        tokens = stats["prompt_tokens"] + MOST_TOKENS * stats["answered"]
    # What the last call pays for comes after it.
    return tokens * (1 - 1 / stats["answered"]) / allowed


async def try_it(trial: Trial, server: Simulated) -> tuple[int, float]:
    """Calls that the server rejected, and the share of its limit that was used."""
    await send_for(server.base_url, trial.limits, WINDOWS * RATE.window_s)
    stats = await asyncio.to_thread(server.stats)
    assert stats["received"] == stats["answered"] + stats["rejected"]
    return stats["rejected"], used(trial, stats)


@pytest.mark.slow
async def test_nearly_all_tokens_are_used_and_no_call_is_rejected() -> None:
    """A try may be repeated: a busy machine may hold a call up for longer than the guard."""
    left = dict.fromkeys(TRIALS, (-1, 0.0))
    for _ in range(TRIES):
        with ExitStack() as stack:
            servers = {t: stack.enter_context(simulated(*t.flags)) for t in left}
            found = await asyncio.gather(*(try_it(*pair) for pair in servers.items()))
        results = dict(zip(servers, found, strict=True))
        left = {t: one for t, one in results.items() if one[0] or one[1] < USED}
        if not left:
            return
    pytest.fail(f"rejected calls and the share used: {left}")


@pytest.mark.parametrize("stated", [2**63 - 1, 10**400])
async def test_a_usage_above_what_any_call_can_use_holds_up_no_other_call(stated: int) -> None:
    usage = {"prompt_tokens": stated, "completion_tokens": stated}
    with scripted(lambda _: chat(said(), usage=usage)) as server:
        limits = Limits(tokens=Rate(100_000, 3600.0))
        backend = HttpBackend(Endpoint(base_url=server.base_url, limits=limits, proxy=""))
        body = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
        try:
            async with asyncio.timeout(20):
                for _ in range(3):
                    assert (await backend.send(Request(body=body), Call())).reply is not None
        finally:
            await backend.aclose()
