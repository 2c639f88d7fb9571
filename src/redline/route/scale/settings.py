"""Defines the settings by which a fleet is scaled: bounds, targets and windows."""

from __future__ import annotations

import math

import msgspec

from redline.errors import ConfigError

POLICIES = ("demand", "rps")


class ScaleSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds of a fleet's size, and the targets and windows that determine it.

    policy: `demand`, or `rps`: int(load / (100 * 0.7)) + 1 replicas at each sample, where load is
        in calls per second; only for comparison.
    min_replicas, max_replicas: bounds. With a minimum of 0, a fleet without calls is stopped.
    target_utilization: the share of its capacity that a fleet should use at a steady load.
    queue_wait_slo_s: the target for the p95 of the time that calls wait for a replica.
    capacity: calls that one replica carries at once, until measured; 0 for the number that its
        endpoint takes at once, or 1 if that is unknown.
    tolerance: a demand that differs from the fleet's size by less than this share changes nothing,
        unless the queue wait exceeds its SLO.
    panic_window_s: a fleet whose queue wait exceeds its SLO grows at once to drain its queue in
        half of this time, and does not shrink for this time.
    scale_down_window_s: a fleet shrinks to the highest demand of this window.
    warm_up_s: the time from the start of a replica to its first answer, until measured.
    idle_s: a fleet with a minimum of 0 is stopped after this time without calls.
    tick_s: the time between two samples; at most a tenth of panic_window_s.
    Times are in seconds.
    Raises ConfigError for a value that cannot work.
    """

    policy: str = "demand"
    min_replicas: int = 1
    max_replicas: int = 8
    target_utilization: float = 0.7
    queue_wait_slo_s: float = 1.0
    capacity: float = 0.0
    tolerance: float = 0.1
    panic_window_s: float = 60.0
    scale_down_window_s: float = 300.0
    warm_up_s: float = 60.0
    idle_s: float = 300.0
    tick_s: float = 1.0

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise ConfigError(
                f"the scaling policy must be {' or '.join(POLICIES)}, not {self.policy}",
                hint="use demand",
            )
        if self.min_replicas < 0:
            raise ConfigError(
                f"min_replicas must be at least 0, not {self.min_replicas}",
                hint="0 lets the fleet scale to zero when it has no calls",
            )
        if self.max_replicas < max(1, self.min_replicas):
            raise ConfigError(
                f"max_replicas must be at least {max(1, self.min_replicas)}, "
                f"not {self.max_replicas}",
                hint="it is the most replicas that may run at once",
            )
        if not 0 < self.target_utilization <= 1:
            raise ConfigError(
                f"target_utilization must be above 0 and at most 1, "
                f"not {self.target_utilization:g}",
                hint="0.7 leaves room for bursts",
            )
        if not 0 <= self.tolerance < 1:
            raise ConfigError(
                f"the tolerance must be at least 0 and below 1, not {self.tolerance:g}",
                hint="0.1 is 10 %",
            )
        if not 0 <= self.capacity < math.inf:
            raise ConfigError(
                f"the capacity of a replica must be at least 0 and finite, not {self.capacity:g}",
                hint="0 uses the number of calls that its endpoint takes at once",
            )
        if not 0 <= self.warm_up_s < math.inf:
            raise ConfigError(
                f"warm_up_s must be at least 0 and finite, not {self.warm_up_s:g}",
                hint="60 is usual for a server that loads a model",
            )
        for name in ("queue_wait_slo_s", "panic_window_s", "scale_down_window_s", "idle_s"):
            self._check_time(name)
        self._check_time("tick_s")
        if self.tick_s > self.panic_window_s / 10:
            raise ConfigError(
                f"tick_s must be at most a tenth of panic_window_s, not {self.tick_s:g}",
                hint="the panic window must contain at least ten samples",
            )

    def _check_time(self, name: str) -> None:
        value = getattr(self, name)
        if not 0 < value < math.inf:
            raise ConfigError(
                f"{name} must be above 0 and finite, not {value:g}", hint="it is in seconds"
            )
