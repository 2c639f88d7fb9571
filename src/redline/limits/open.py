"""Opens the limiter that the settings describe."""

from __future__ import annotations

from redline.clock import Clock
from redline.limits.rule import Limits
from redline.limits.wait import Limiter, RateLimiter


def open_limiter(limits: Limits, name: str, clock: Clock) -> RateLimiter:
    """A limiter of this process alone, or one shared with others if `Limits.share` says so.

    name: what is limited; processes that state the same name share its limits. Blocks for some
    seconds at most if they are shared. Raises ConfigError if they cannot be.
    """
    if not limits.share:
        return Limiter(limits, clock)
    # Imported here, so that processes that share no limits do not load it.
    from redline.limits.shared import SharedLimiter, open_ledger

    return SharedLimiter(limits, open_ledger(limits.share, limits, name, clock), clock)
