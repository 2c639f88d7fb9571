"""Limit headers in the styles of the providers, and Retry-After."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime

from redline.sim.admission import Reading


def limit_headers(style: str, readings: Sequence[Reading], wall_s: float) -> dict[str, str]:
    """The headers that tell a client how much of each limit is left.

    style: `openai` (resets as durations like `6m0s`), `azure` (the same names, resets in whole
    seconds), `anthropic` (resets as RFC 3339 times, for which wall_s is the time now), or `none`.
    """
    headers: dict[str, str] = {}
    if style == "none":
        return headers
    for reading in readings:
        if style == "anthropic":
            prefix = f"anthropic-ratelimit-{reading.what}"
            headers[f"{prefix}-limit"] = str(reading.limit)
            headers[f"{prefix}-remaining"] = str(reading.left)
            headers[f"{prefix}-reset"] = rfc3339(wall_s + reading.reset_s)
            continue
        reset = duration(reading.reset_s) if style == "openai" else str(whole(reading.reset_s))
        headers[f"x-ratelimit-limit-{reading.what}"] = str(reading.limit)
        headers[f"x-ratelimit-remaining-{reading.what}"] = str(reading.left)
        headers[f"x-ratelimit-reset-{reading.what}"] = reset
    return headers


def retry_headers(style: str, wait_s: float) -> dict[str, str]:
    """`retry-after` in whole seconds and `retry-after-ms`; after either the request fits.

    Nothing for style `none`, and nothing for a request that will never fit.
    """
    if style == "none" or math.isinf(wait_s):
        return {}
    return {"retry-after": str(whole(wait_s)), "retry-after-ms": str(whole(wait_s * 1000))}


def duration(seconds_s: float) -> str:
    """The time as OpenAI writes it: `0s`, `114ms`, `8.64s`, `6m0s`, `24h0m0s`. Rounded up."""
    millis = whole(seconds_s * 1000)
    if 0 < millis < 1000:
        return f"{millis}ms"
    minutes, rest_ms = divmod(millis, 60_000)
    seconds = f"{rest_ms / 1000:.3f}".rstrip("0").rstrip(".")
    if minutes == 0:
        return f"{seconds}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes}m{seconds}s" if hours else f"{minutes}m{seconds}s"


def rfc3339(wall_s: float) -> str:
    """The moment as `2030-01-02T03:04:05Z`, rounded up to the second."""
    return datetime.fromtimestamp(whole(wall_s), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def whole(value: float) -> int:
    """The value rounded up, but not for float noise below a millionth."""
    return math.ceil(round(value, 6))
