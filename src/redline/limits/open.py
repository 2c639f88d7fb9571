"""The limiter that the settings ask for."""

from __future__ import annotations

from typing import Any

from redline.clock import Clock
from redline.limits.rule import Limits
from redline.limits.shared import SharedLimiter, open_ledger
from redline.limits.wait import Grant, Limiter

AnyLimiter = Limiter | SharedLimiter
AnyGrant = Grant[Any]


def open_limiter(limits: Limits, name: str, clock: Clock) -> AnyLimiter:
    """One of this process alone, or one shared with others where `Limits.share` says so.

    name: what is limited; processes that name the same share. Blocks for some seconds at most
    where they are shared. Raises ConfigError where they cannot be.
    """
    if not limits.share:
        return Limiter(limits, clock)
    return SharedLimiter(limits, open_ledger(limits.share, limits, name, clock), clock)
