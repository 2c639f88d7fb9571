"""When the last of many calls can go, by the limits alone."""

from __future__ import annotations

from redline.limits.jitter import FIRST_GUARD_S
from redline.limits.rate import Rate
from redline.limits.settings import Limits


def last_send_s(before: float, rate: Rate, limits: Limits) -> float:
    """When the last send may go, after requests or tokens of the amount `before`."""
    guard_s = FIRST_GUARD_S if limits.guard_s is None else limits.guard_s
    span_s = rate.window_s + guard_s
    if limits.profile in ("fixed", "moving"):
        return before // rate.count * span_s
    if limits.profile == "bucket":
        capacity = rate.count * max(0.0, 1 - guard_s / rate.window_s)
        return max(0.0, before - capacity) * rate.window_s / rate.count
    return before * span_s / rate.count
