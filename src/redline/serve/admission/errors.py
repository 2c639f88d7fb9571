"""Errors of calls that admission does not let in. QueueFull and Overloaded state when to retry."""

from __future__ import annotations

from redline.errors import RateLimited, ServerFailed, Withdrawn


class QueueFull(RateLimited):
    """The tenant or its class already has the maximum number of waiting calls: HTTP 429."""

    def __init__(self, what: str, *, retry_after_s: float) -> None:
        hint = "send fewer calls at once"
        super().__init__(what, hint=hint, status=429, retry_after_s=retry_after_s)


class Overloaded(ServerFailed):
    """The call would wait longer than allowed, or has: HTTP 503."""

    def __init__(self, what: str, *, retry_after_s: float) -> None:
        hint = "ask again later, or allow more time"
        super().__init__(what, hint=hint, status=503, retry_after_s=retry_after_s)


class Moved(Withdrawn):
    """The call no longer waits here: its endpoints may be behind another gate now."""

    def __init__(self) -> None:
        super().__init__("the endpoints have changed")
