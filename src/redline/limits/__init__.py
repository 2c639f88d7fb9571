"""Rate limits and concurrency: decided in virtual time, waited for at the edge."""

from redline.limits.limiter import Grant, Limiter
from redline.limits.rate import Rate, parse_count, parse_rate
from redline.limits.settings import PROFILES, Limits, as_rates
from redline.limits.slots import Slots

__all__ = [
    "PROFILES",
    "Grant",
    "Limiter",
    "Limits",
    "Rate",
    "Slots",
    "as_rates",
    "parse_count",
    "parse_rate",
]
