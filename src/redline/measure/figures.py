"""What a load has measured."""

from __future__ import annotations

from typing import Any

import msgspec

from redline.measure.flow import Rate
from redline.measure.spread import Quantiles


class Failures(msgspec.Struct, frozen=True, kw_only=True):
    """Calls that failed in one way. kind: `rate_limited`, or a function's exception by its name."""

    kind: str
    count: int
    example: str


class Goodput(msgspec.Struct, frozen=True, kw_only=True):
    """Answers that kept the objectives. share: of all calls, failed ones included; 0 to 1."""

    objectives: str
    rate: Rate
    share: float


class ClientUse(msgspec.Struct, frozen=True, kw_only=True):
    """What the load cost this process.

    cpu: of a core that the thread of the event loop was busy; process_cpu: all threads together.
    loop_lag_s: how late the event loop was, 99th percentile. late_s: how late calls were made that
    did not wait for a place, 99th percentile; 0 for a closed loop. bottleneck: why the figures are
    this client's and not the target's; empty if they are not.
    """

    cpu: float
    process_cpu: float
    loop_lag_s: float
    late_s: float
    bottleneck: str = ""


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """One load in figures; docs/metrics.md has the formula and the source of each.

    load: what it was, in words. concurrency: most calls in flight. seconds: the window measured,
    without the warm-up. scheduled: calls due in it; succeeded and failed: of these, those that
    ended; unsent: were due and not made; cut: were ended by an interrupt. warm_up: calls before it.
    input_tokens_per_s, output_tokens_per_s, tokens_per_s: None if answers do not say what they
    used; is_token_count_estimated: some did not, and their chunks were counted. in_flight: on
    average. latency: from the scheduled time to the end of the answer; from_send: from the write of
    the request. ttft: from the scheduled time to the first text; inter_token: between two pieces of
    text; tpot: of an answer, per token after the first. waited: for a place or a limit of this
    client's. batch_efficiency: share of the places offered that were taken, 0 to 1; None for calls
    that come when they come. gpu_utilization: of this machine's GPUs, 0 to 1; None without NVML.
    concurrent_users: that the throughput supports. spent_usd: None if no price is known. ended: why
    before its time.
    """

    target: str
    load: str
    concurrency: int
    seconds: float
    scheduled: int
    succeeded: int
    failed: int
    unsent: int
    cut: int
    warm_up: int
    requests: Rate
    input_tokens_per_s: float | None = None
    output_tokens_per_s: float | None = None
    tokens_per_s: float | None = None
    is_token_count_estimated: bool = False
    in_flight: float = 0.0
    latency: Quantiles | None = None
    from_send: Quantiles | None = None
    ttft: Quantiles | None = None
    inter_token: Quantiles | None = None
    tpot: Quantiles | None = None
    waited: Quantiles | None = None
    goodput: Goodput | None = None
    batch_efficiency: float | None = None
    gpu_utilization: float | None = None
    concurrent_users: float | None = None
    spent_usd: float | None = None
    failures: tuple[Failures, ...] = ()
    client: ClientUse | None = None
    ended: str = ""
    is_interrupted: bool = False

    @property
    def requests_per_s(self) -> float:
        """Requests that succeeded, per second."""
        return self.requests.per_s

    def as_dict(self) -> dict[str, Any]:
        """All of it, as JSON has it."""
        fields: dict[str, Any] = msgspec.to_builtins(self)
        return {**fields, "requests_per_s": self.requests_per_s}
