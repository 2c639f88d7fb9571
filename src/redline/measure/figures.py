"""Defines the figures that a load measures."""

from __future__ import annotations

from typing import Any

import msgspec

from redline.measure.flow import Rate
from redline.timeline import Quantiles


class Failures(msgspec.Struct, frozen=True, kw_only=True):
    """The failed requests of one kind.

    kind: an error's kind, such as `rate_limited`, or an exception's name; `other errors` for the
    kinds after the first 50. example: the text of one of the errors.
    """

    kind: str
    count: int
    example: str


class Goodput(msgspec.Struct, frozen=True, kw_only=True):
    """The rate of answers that met the objectives.

    share: their share of all scheduled requests, including failed ones, 0 to 1.
    """

    objectives: str
    rate: Rate
    share: float


class ClientUse(msgspec.Struct, frozen=True, kw_only=True):
    """The resources that the load used in this process.

    cpu: the share of a core that the event loop's thread used; process_cpu: the share that all
    threads used together. loop_lag_s: the delay of the event loop, 99th percentile. late_s: how
    late calls were made, 99th percentile, without calls that had to wait for others to end; 0 for a
    closed loop. bottleneck: why the figures show this client's performance rather than the
    target's; "" if they show the target's.
    """

    cpu: float
    process_cpu: float
    loop_lag_s: float
    late_s: float
    bottleneck: str = ""


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one load; docs/metrics.md has the formula and the source of each.

    load: a description in words. concurrency: maximum calls in flight. seconds: the length of the
    measured window, without the warm-up. scheduled: the requests due in the window: the sum of
    succeeded, failed, unsent (never made) and cut (cancelled before their answer). warm_up: the
    requests before the window.

    input_tokens_per_s, output_tokens_per_s, tokens_per_s: None if no tokens are known.
    is_token_count_estimated: some answers report no usage, so their chunks were counted as tokens;
    input_tokens_per_s is then None, and tokens_per_s covers only the output. in_flight: the mean
    number of requests in flight. latency: from the scheduled time to the end of the answer;
    from_send: from the write of the request to the end of the answer. ttft: from the scheduled time
    to the first text of a stream, or to its first chunk if no chunk has text. inter_token: between
    two pieces of text. tpot: the time per token of an answer, after its first. waited: the wait for
    a slot and for this client's limits. batch_efficiency: the used share of the
    places in lists of requests, or, without lists, of the places for calls in flight, 0 to 1; None
    for single requests on a schedule. gpu_utilization: the share of time in which this machine's
    GPUs were busy, 0 to 1; None without NVML or a GPU. concurrent_users: the number of users that
    the throughput supports, by Little's law. spent_usd: for the successful requests, including the
    warm-up; None if answers are free, if one has no usage or no known price, and in a
    ThroughputMetrics. ended: why the load ended early; "" if it did not.
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
