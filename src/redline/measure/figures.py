"""The figures that a load has measured."""

from __future__ import annotations

from typing import Any

import msgspec

from redline.measure.flow import Rate
from redline.timeline import Quantiles


class Failures(msgspec.Struct, frozen=True, kw_only=True):
    """Failed calls of one kind. kind: such as `rate_limited`, or the name of an exception."""

    kind: str
    count: int
    example: str


class Goodput(msgspec.Struct, frozen=True, kw_only=True):
    """Answers that met the objectives. share: of all calls, including failed ones; 0 to 1."""

    objectives: str
    rate: Rate
    share: float


class ClientUse(msgspec.Struct, frozen=True, kw_only=True):
    """The resources that the load took in this process.

    cpu: the share of a core that the event loop's thread used; process_cpu: that of all threads
    together. loop_lag_s: the delay of the event loop, 99th percentile. late_s: the delay of calls
    that did not wait for a place, 99th percentile; 0 for a closed loop. bottleneck: why the figures
    are this client's and not the target's; empty if they are the target's.
    """

    cpu: float
    process_cpu: float
    loop_lag_s: float
    late_s: float
    bottleneck: str = ""


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one load; docs/metrics.md has the formula and the source of each.

    load: a description in words. concurrency: the most calls in flight. seconds: the measured
    window, without the warm-up. scheduled: requests due in the window, which are the sum of
    succeeded, failed, unsent (never made) and cut (ended by an interrupt). warm_up: requests before
    the window.

    input_tokens_per_s, output_tokens_per_s, tokens_per_s: None if answers do not report their
    usage; is_token_count_estimated: the chunks of some answers were counted instead, and their
    input is unknown, so that tokens_per_s is that of the output. in_flight: the mean. latency: from
    the scheduled time to the end of the answer; from_send: from the write of the request. ttft:
    from the scheduled time to the first text; inter_token: between two pieces of text; tpot: the
    time per token of an answer after the first. waited: for a place or a limit of this client.
    batch_efficiency: the share of places that were taken, 0 to 1: of those in lists of requests,
    otherwise of those for calls in flight; None for single requests on a schedule. gpu_utilization:
    of this machine's GPUs, 0 to 1; None without NVML or a GPU. concurrent_users: the number that
    the throughput supports, by Little's law. spent_usd: None if the price of an answer is unknown.
    ended: why the load ended before its time; empty if it did not.
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
        """The successful requests per second."""
        return self.requests.per_s

    def as_dict(self) -> dict[str, Any]:
        """Returns all figures as JSON values."""
        fields: dict[str, Any] = msgspec.to_builtins(self)
        return {**fields, "requests_per_s": self.requests_per_s}
