"""Several limits at once are used as well as the one that binds, and none of them is passed."""

from __future__ import annotations

import asyncio
import math
import random
from dataclasses import dataclass

import pytest

from redline import Limiter, Limits
from redline.limits import Cost, Rate
from redline.sim import Admission, Charge
from redline.testing import VirtualClock, virtual_run
from support.sharing import Ask, Process, share

KINDS = ("requests", "tokens", "input_tokens", "output_tokens")
ALGORITHMS = ("fixed", "moving", "counter", "bucket")
JITTER_S = 0.05
USED = 0.97
# In windows of the server's clock at the first send, which the counter alone goes by.
PHASES = {"counter": (0.0, 0.31, 0.77)}
WORKERS = 64
_START_S = 1000.0


@dataclass(frozen=True)
class Sent:
    """One call as it was written."""

    at_s: float
    cost: Cost


async def _send(limits: Limits, costs: list[Cost]) -> list[Sent]:
    clock = VirtualClock(asyncio.get_running_loop())
    limiter = Limiter(limits, clock)
    waiting = iter(costs)
    sends: list[Sent] = []

    async def work() -> None:
        for cost in waiting:
            grant = await limiter.acquire(cost)
            grant.sent(clock.now_s())
            sends.append(Sent(clock.now_s(), cost))

    await asyncio.gather(*(work() for _ in range(WORKERS)))
    return sends


def send(limits: Limits, costs: list[Cost]) -> list[Sent]:
    """All of `costs`, which wait from the start; what each uses is known."""
    return virtual_run(_send(limits, costs), start_s=_START_S)


def rejections(sends: list[Sent], limits: Limits, algorithm: str, phase: float) -> int:
    """How many the server turns away, each up to JITTER_S late."""
    rates = {kind.replace("_", "-"): limits.rates(kind) for kind in KINDS}
    server = Admission(rates, algorithm)
    shift_s = phase * max(rate.window_s for found in rates.values() for rate in found)
    chance = random.Random(1)
    arrivals = sorted(
        (sent.at_s + chance.uniform(0, JITTER_S), number) for number, sent in enumerate(sends)
    )
    costs = [sends[number].cost for _, number in arrivals]
    return sum(
        server.ask(Charge(cost.input_tokens, cost.output_tokens), at_s + shift_s) is not None
        for (at_s, _), cost in zip(arrivals, costs, strict=True)
    )


def used(sends: list[Sent], limits: Limits) -> float:
    """The share of the limit that binds, from the first call to the last."""
    began_s = sends[0].at_s
    lasted_s = sends[-1].at_s - began_s
    shares = [0.0]
    for kind in KINDS:
        for rate in limits.rates(kind):
            until_s = lasted_s
            if limits.profile in ("fixed", "moving"):
                # Each window begins with its burst, so only whole ones can be compared.
                until_s = math.floor(lasted_s / rate.window_s) * rate.window_s
            allowed = rate.count * until_s / rate.window_s
            if limits.profile == "bucket":
                allowed += rate.count
            counted = [sent for sent in sends if sent.at_s - began_s < until_s]
            shares.append(sum(sent.cost.amount(kind) for sent in counted) / allowed)
    return max(shares)


def costs(chance: random.Random, count: int, mean: float, shape: float) -> list[Cost]:
    """Token sizes of this mean: all alike, evenly spread or long-tailed by `shape`."""
    found = []
    for _ in range(count):
        if shape <= 1:
            tokens = chance.uniform(1 - shape, 1 + shape) * mean
        else:
            tokens = chance.lognormvariate(-((shape - 1) ** 2) / 2, shape - 1) * mean
        tokens = min(max(1, round(tokens)), round(12 * mean))
        found.append(Cost(tokens // 2, tokens - tokens // 2))
    return found


def pair(number: int, profile: str) -> tuple[Limits, list[Cost]]:
    """A limit on requests and one on tokens that allow 0.5 to 2 times as many calls, and calls."""
    chance = random.Random(f"pair {number}")
    requests = chance.choice((600, 1000, 1500))
    ratio = 2 ** chance.uniform(-1, 1)
    mean = chance.choice((60, 250, 1200))
    shape = chance.choice((0.0, 0.5, 0.9, 1.4, 1.6))
    tokens = round(requests * mean * ratio)
    limits = Limits(requests=Rate(requests, 60.0), tokens=Rate(tokens, 60.0), profile=profile)
    return limits, costs(chance, round(3.3 * requests * min(1.0, ratio)), mean, shape)


def check(limits: Limits, calls: list[Cost], servers: tuple[str, ...], bar: float) -> None:
    sends = send(limits, calls)
    assert len(sends) == len(calls)
    assert used(sends, limits) >= bar, limits
    check_rejections(sends, limits, servers)


def check_rejections(sends: list[Sent], limits: Limits, servers: tuple[str, ...]) -> None:
    for algorithm in servers:
        for phase in PHASES.get(algorithm, (0.0,)):
            assert rejections(sends, limits, algorithm, phase) == 0, (limits, algorithm, phase)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(20))
def test_a_pair_is_used_as_well_as_the_limit_that_binds(number: int) -> None:
    own = ALGORITHMS[number % len(ALGORITHMS)]
    check(*pair(number, "any"), ALGORITHMS, USED)
    check(*pair(number, own), (own,), USED)


@pytest.mark.slow
@pytest.mark.parametrize("ratio", [0.9, 1.0, 1.1])
def test_a_pair_that_processes_share(ratio: float) -> None:
    limits = Limits(requests="1000/60s", tokens=Rate(round(250_000 * ratio), 60.0))
    calls = costs(random.Random(3), 1600, 250, 0.9)
    asks = [Ask(tokens=cost.tokens) for cost in calls]
    shared = share(limits, [Process(asks[number::3], way_s=0.001) for number in range(3)])
    sends = [Sent(sent.at_s, Cost(sent.ask.tokens)) for sent in shared.sends]
    sends.sort(key=lambda sent: sent.at_s)
    assert used(sends, limits) >= USED
    check_rejections(sends, limits, ALGORITHMS)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_three_limits_at_once(seed: int) -> None:
    """A second, a minute and the tokens of a minute; then input and output apart."""
    chance = random.Random(seed)
    limits = Limits(requests=("30/1s", "1500/60s"), tokens="375k/60s")
    check(limits, costs(chance, 4000, 250, 0.9), ALGORITHMS, USED)
    apart = [
        Cost(round(chance.uniform(20, 500)), min(900, round(chance.lognormvariate(5, 0.6))))
        for _ in range(3000)
    ]
    limits = Limits(requests="1000/60s", input_tokens="260k/60s", output_tokens="180k/60s")
    check(limits, apart, ALGORITHMS, USED)


@pytest.mark.parametrize("seed", [1, 2])
def test_windows_of_a_second_lose_hardly_more_than_their_guard(seed: int) -> None:
    limits = Limits(requests="400/1s", tokens="100k/1s")
    calls = costs(random.Random(seed), 4000, 250, 0.5)
    check(limits, calls, ALGORITHMS, USED / 1.055)
