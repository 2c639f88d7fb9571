"""Defines the errors of calls that admission refuses; both say when to retry."""

from __future__ import annotations

from redline.errors import RateLimited, ServerFailed


class QueueFull(RateLimited):
    """The tenant or its class already has the maximum number of waiting calls: HTTP 429."""

    is_admitted = False


class Overloaded(ServerFailed):
    """The call would wait, or has waited, longer than allowed: HTTP 503."""

    is_admitted = False

    def __init__(self, what: str, *, retry_after_s: float) -> None:
        super().__init__(
            what,
            hint="retry later, or allow more time",
            status=503,
            retry_after_s=retry_after_s,
        )
