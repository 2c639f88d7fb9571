"""Enforces rate limits and concurrency: `rule` decides without waiting, and `wait` waits."""

from redline.limits.open import open_limiter
from redline.limits.rule import (
    PROFILES,
    Cost,
    Limits,
    Rate,
    Spread,
    as_rates,
    parse_count,
    parse_rate,
    rate_per,
)
from redline.limits.wait import Grant, Limiter, RateLimiter, Slots, SyncLimiter

__all__ = [
    "PROFILES",
    "Cost",
    "Grant",
    "Limiter",
    "Limits",
    "Rate",
    "RateLimiter",
    "Slots",
    "Spread",
    "SyncLimiter",
    "as_rates",
    "parse_count",
    "parse_rate",
    "rate_per",
]
