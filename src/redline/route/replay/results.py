"""Compares the strategies of a replay: their figures, and whether one is significantly better."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import msgspec

from redline.errors import ConfigError
from redline.process import counted
from redline.route.balance import STRATEGIES
from redline.route.replay.service import LEAST_CALLS, Service

# A strategy is recommended if its advantage, as a mean over the seeds, is above 1 %, so that it is
# noticed, and above three standard errors: not two, because the strategy is the best of eight.
_ERRORS = 3.0
_LEAST_GAIN = 0.01
# If the replay of the recorded strategy misses the recorded mean latency by more than this share,
# the model says nothing about other strategies.
MOST_OFF = 0.25
# With fewer calls, the beginning and the end of a run dominate.
_LEAST_CALLS = 200


class Seeded(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one replay of one strategy. Latencies are from arrival to outcome.

    makespan_s: from the first arrival to the last outcome. cost_usd: None if a price is unknown.
    failed: number of calls without an answer. answers: number of answers by endpoint.
    """

    seed: int
    mean_s: float
    p50_s: float
    p99_s: float
    makespan_s: float
    cost_usd: float | None
    failed: int
    answers: dict[str, int]


class Scored(msgspec.Struct, frozen=True, kw_only=True):
    """The replays of one strategy, one for each seed. The figures are means over the replays."""

    strategy: str
    runs: list[Seeded]

    def mean(self, figure: str) -> float:
        """Returns the mean over the replays. figure: the name of a numeric field of Seeded."""
        return statistics.fmean(getattr(run, figure) for run in self.runs)

    @property
    def cost_usd(self) -> float | None:
        costs = [run.cost_usd for run in self.runs if run.cost_usd is not None]
        return statistics.fmean(costs) if len(costs) == len(self.runs) else None

    def share(self, endpoint: str) -> float:
        """Returns the share of all answers that this endpoint gave, 0 to 1."""
        answers = sum(sum(run.answers.values()) for run in self.runs)
        own = sum(run.answers.get(endpoint, 0) for run in self.runs)
        return own / answers if answers else 0.0


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """The difference between two strategies.

    gain: the share by which the figure of `better` is below that of `worse`. error: the standard
    error of the gain.
    """

    better: str
    worse: str
    gain: float
    error: float

    @property
    def is_clear(self) -> bool:
        """Whether the gain exceeds the noise."""
        return self.gain > max(_LEAST_GAIN, _ERRORS * self.error)


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a replayed trace.

    workers: see RunBegan; 0 if calls arrive at their recorded times. calls: the number of replayed
    calls, of `total` in the trace. balance: the strategy of the recorded run. recorded: the figures
    of that run. services: by endpoint. figure: the field by which strategies are compared,
    `makespan_s` or `mean_s`. off: the share by which the replayed mean latency of the recorded
    strategy is above the recorded one. best: the strategy with the lowest figure, or the default if
    none is clearly lower, compared with the recorded strategy. notes: what a reader must know about
    the trace.
    """

    trace: str
    workers: int
    calls: int
    total: int
    balance: str
    services: dict[str, Service]
    recorded: Seeded
    scored: list[Scored]
    figure: str
    off: float
    best: Compared
    notes: list[str]

    @property
    def reliable(self) -> bool:
        """Whether the run and each endpoint have enough calls, and the replayed latency is right.

        It is right if `off` is within MOST_OFF of 0.
        """
        own = all(service.is_own for service in self.services.values())
        return own and self.calls >= _LEAST_CALLS and abs(self.off) <= MOST_OFF


def recommended(replay: Replay) -> str | None:
    """Returns the strategy that is clearly better than the recorded one; None if there is none."""
    return replay.best.better if replay.reliable and replay.best.is_clear else None


def best_of(scored: Sequence[Scored], balance: str, figure: str) -> Compared:
    """Compares the strategy with the lowest figure with the recorded one, `balance`.

    If the lowest figure is not clearly below that of the default, the default takes its place.
    """
    better = min(scored, key=lambda one: one.mean(figure))
    usual = [one for one in scored if one.strategy == STRATEGIES[0]]
    if usual and not compared(better, usual[0], figure).is_clear:
        (better,) = usual
    return compared(better, next(one for one in scored if one.strategy == balance), figure)


def compared(better: Scored, worse: Scored, figure: str) -> Compared:
    """Compares the figures of two strategies, which were replayed with the same seeds."""
    gains = [
        1 - getattr(mine, figure) / getattr(other, figure)
        for mine, other in zip(better.runs, worse.runs, strict=True)
    ]
    error = statistics.stdev(gains) / math.sqrt(len(gains)) if len(gains) > 1 else math.inf
    return Compared(
        better=better.strategy, worse=worse.strategy, gain=statistics.fmean(gains), error=error
    )


def too_few(calls: int) -> ConfigError:
    return ConfigError(
        f"the trace has {counted(calls, 'answered call')}, too few to estimate how long servers "
        "take",
        hint=f"at least {LEAST_CALLS} are needed, and a few hundred to distinguish strategies",
    )
