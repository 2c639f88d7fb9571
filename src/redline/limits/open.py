"""Opens the limiter that the settings describe."""

from __future__ import annotations

from redline.clock import Clock
from redline.limits.rule import Limits
from redline.limits.wait import Limiter, RateLimiter


def open_limiter(limits: Limits, name: str, clock: Clock) -> RateLimiter:
    """Returns a limiter for this process alone, or a shared one if `Limits.share` is set.

    name: identifies the endpoint or function; processes that pass the same name share its limits.
    If the limits are shared, blocks for at most a few seconds. Raises ConfigError if they cannot be
    shared.
    """
    if not limits.share:
        return Limiter(limits, clock)
    # Imported here, so that processes that share no limits do not load it.
    from redline.limits.shared import SharedLimiter, open_ledger

    return SharedLimiter(limits, open_ledger(limits.share, limits, name, clock), clock)
