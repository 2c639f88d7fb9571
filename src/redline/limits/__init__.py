"""Rate limits and concurrency: decided in virtual time, waited for at the edge."""

from redline.limits.blocking import SyncLimiter
from redline.limits.cost import Cost, Spread
from redline.limits.grant import Grant
from redline.limits.limiter import Limiter
from redline.limits.rate import Rate, parse_count, parse_rate, rate_per
from redline.limits.settings import PROFILES, Limits, as_rates
from redline.limits.slots import Slots

__all__ = [
    "PROFILES",
    "Cost",
    "Grant",
    "Limiter",
    "Limits",
    "Rate",
    "Slots",
    "Spread",
    "SyncLimiter",
    "as_rates",
    "parse_count",
    "parse_rate",
    "rate_per",
]
