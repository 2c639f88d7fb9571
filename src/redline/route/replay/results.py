"""The results of a replay: each strategy's figures, and whether one is significantly better."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import msgspec

from redline.errors import ConfigError
from redline.route.balance import STRATEGIES
from redline.route.replay.service import LEAST_CALLS, Service

# A strategy is recommended if the mean of its advantages over the seeds is above three of its
# standard errors, since the best of eight is compared, and above what anybody would notice.
_ERRORS = 3.0
_LEAST_GAIN = 0.01
# If the mean latency for the recorded strategy is off by more, the model says nothing about others.
MOST_OFF = 0.25
# With fewer calls, the beginning and the end of a run dominate.
_LEAST_CALLS = 200


class Seeded(msgspec.Struct, frozen=True, kw_only=True):
    """One replay of one strategy. Seconds are from a call's arrival to its outcome.

    makespan_s: from the first arrival to the last outcome. cost_usd: None if a price is unknown.
    failed: calls without an answer. answers: by endpoint.
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
    """One strategy: its replays, one for each seed. The figures are means over these."""

    strategy: str
    runs: list[Seeded]

    def mean(self, figure: str) -> float:
        """The mean over the replays. figure: the name of a number of Seeded."""
        return statistics.fmean(getattr(run, figure) for run in self.runs)

    @property
    def cost_usd(self) -> float | None:
        costs = [run.cost_usd for run in self.runs if run.cost_usd is not None]
        return statistics.fmean(costs) if len(costs) == len(self.runs) else None

    def share(self, endpoint: str) -> float:
        """The share of all answers that were given by this endpoint."""
        answers = sum(sum(run.answers.values()) for run in self.runs)
        own = sum(run.answers.get(endpoint, 0) for run in self.runs)
        return own / answers if answers else 0.0


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """The difference between two strategies.

    gain: by what share one strategy's figure is below the other's; error: its standard error.
    """

    better: str
    worse: str
    gain: float
    error: float

    @property
    def is_clear(self) -> bool:
        """Whether it exceeds the noise."""
        return self.gain > max(_LEAST_GAIN, _ERRORS * self.error)


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a replayed trace.

    workers: see RunBegan, 0 for calls that come as they were recorded. calls: of `total` in the
    trace. balance: the strategy of the recorded run; recorded: its figures. services: by endpoint.
    figure: what strategies are compared by, `makespan_s` or `mean_s`. best: the lowest, compared
    with the strategy of the record; the default, if that is as low within the noise. notes: what a
    reader must know about the trace.
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
        """Whether there are enough calls, and the model reproduces what was recorded."""
        own = all(service.is_own for service in self.services.values())
        return own and self.calls >= _LEAST_CALLS and abs(self.off) <= MOST_OFF


def recommended(replay: Replay) -> str | None:
    """The strategy to prefer to the recorded one; None if there is no clear case for one."""
    return replay.best.better if replay.reliable and replay.best.is_clear else None


def best_of(scored: Sequence[Scored], balance: str, figure: str) -> Compared:
    """The strategy with the lowest figure, compared with that of the trace.

    It is the default, if none is better than that by more than the noise.
    """
    better = min(scored, key=lambda one: one.mean(figure))
    usual = [one for one in scored if one.strategy == STRATEGIES[0]]
    if usual and not compared(better, usual[0], figure).is_clear:
        (better,) = usual
    return compared(better, next(one for one in scored if one.strategy == balance), figure)


def compared(better: Scored, worse: Scored, figure: str) -> Compared:
    """By what share the figure of `better` is lower. Both were replayed with the same seeds."""
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
        f"the trace has {calls:,} answered calls, too few to estimate how long servers take",
        hint=f"at least {LEAST_CALLS} are needed, and a few hundred to distinguish strategies",
    )
