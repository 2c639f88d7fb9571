"""Writes limit headers in the styles of the providers, and Retry-After."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from redline.sim.admission import Reading


def limit_headers(style: str, readings: Sequence[Reading], wall_s: float) -> dict[str, str]:
    """Returns the headers that report how much of each limit is left.

    style: `openai` (resets as durations like `6m0s`), `azure` (the same names, resets in whole
    seconds), `anthropic` (resets as RFC 3339 times), `ietf` (RateLimit and RateLimit-Policy of
    draft version 08), `envoy` (only a limit of requests, reset in seconds), `slowapi` (only a limit
    of requests, reset as a Unix time that is one second late). Other styles have no such headers.
    wall_s: the current Unix time.
    """
    if style == "openai":
        return _each(readings, "x-ratelimit-{part}-{what}", duration)
    if style == "azure":
        return _each(readings, "x-ratelimit-{part}-{what}", lambda reset_s: str(whole(reset_s)))
    if style == "anthropic":
        name = "anthropic-ratelimit-{what}-{part}"
        return _each(readings, name, lambda reset_s: rfc3339(wall_s + reset_s))
    if style == "ietf":
        return _ietf(readings)
    requests = next((reading for reading in readings if reading.what == "requests"), None)
    if style not in ("envoy", "slowapi") or requests is None:
        return {}
    # slowapi adds a second to the reset time of its window (`reset_in` in its extension.py).
    late = str(wall_s + requests.reset_s + 1)
    return {
        "x-ratelimit-limit": str(requests.limit),
        "x-ratelimit-remaining": str(requests.left),
        "x-ratelimit-reset": late if style == "slowapi" else str(whole(requests.reset_s)),
    }


def retry_headers(style: str, wait_s: float) -> dict[str, str]:
    """Returns `retry-after` in seconds and `retry-after-ms`; the request fits after either time.

    The styles `envoy`, `ietf` and `slowapi` have no `retry-after-ms`. Empty for the style `none`,
    for `gemini` (see `retry_details`), and for a request that will never fit.
    """
    if style in ("none", "gemini") or math.isinf(wait_s):
        return {}
    headers = {"retry-after": str(whole(wait_s))}
    if style in ("openai", "azure", "anthropic"):
        headers["retry-after-ms"] = str(whole(wait_s * 1000))
    return headers


def retry_details(style: str, wait_s: float) -> list[dict[str, str]]:
    """Returns `error.details` for the body of a 429: RetryInfo for `gemini`, otherwise [].

    Also [] for a request that will never fit.
    """
    if style != "gemini" or math.isinf(wait_s):
        return []
    kind = "type.googleapis.com/google.rpc.RetryInfo"
    return [{"@type": kind, "retryDelay": f"{whole(wait_s)}s"}]


def _each(readings: Sequence[Reading], name: str, reset: Callable[[float], str]) -> dict[str, str]:
    """Returns three headers for each reading. name: a format string with `what` and `part`."""
    headers = {}
    for reading in readings:
        headers[name.format(what=reading.what, part="limit")] = str(reading.limit)
        headers[name.format(what=reading.what, part="remaining")] = str(reading.left)
        headers[name.format(what=reading.what, part="reset")] = reset(reading.reset_s)
    return headers


def _ietf(readings: Sequence[Reading]) -> dict[str, str]:
    if not readings:
        return {}
    rates = [f'"{each.what}";r={each.left};t={whole(each.reset_s)}' for each in readings]
    policies = [f'"{each.what}";q={each.limit};qu="{each.what}"' for each in readings]
    return {"ratelimit": ", ".join(rates), "ratelimit-policy": ", ".join(policies)}


def duration(seconds_s: float) -> str:
    """Formats a time as OpenAI does, rounded up: `0s`, `114ms`, `8.64s`, `6m0s`, `24h0m0s`."""
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
    """Formats a moment as `2030-01-02T03:04:05Z`, rounded up to the second."""
    return datetime.fromtimestamp(whole(wall_s), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def whole(value: float) -> int:
    """Rounds up, except for float noise below a millionth."""
    return math.ceil(round(value, 6))
