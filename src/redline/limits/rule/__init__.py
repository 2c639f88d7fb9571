"""Decides when rate limits allow a send, at a time that the caller passes; never waits."""

from redline.limits.rule.bucket import BucketLevel
from redline.limits.rule.cost import CERTAIN, KINDS, Cost, Kind, Spread, stated_cost
from redline.limits.rule.guard import FIRST_GUARD_S, MARGIN_S, PRIOR_S, Jitter
from redline.limits.rule.kept_sends import RecentSends
from redline.limits.rule.phases import Phases
from redline.limits.rule.rate import (
    MAX_COUNT,
    SECONDS,
    Rate,
    limit_text,
    parse_count,
    parse_rate,
    rate_per,
    span,
)
from redline.limits.rule.rules import LimitLine, Rules
from redline.limits.rule.settings import (
    AUTO,
    BURSTS,
    CHARGES,
    MAX_CONCURRENCY,
    MAX_GUARD_S,
    PROFILES,
    RATES,
    Limits,
    Rates,
    as_rates,
    last_send_s,
    soon,
    usable,
)
from redline.limits.rule.shape import paid_at_s, refund_s, shape_of
from redline.limits.rule.window import Booking, Doubt, Window, prove
