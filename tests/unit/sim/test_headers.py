"""Limit headers word for word."""

from __future__ import annotations

import math

import pytest

from redline.sim.admission import Reading
from redline.sim.headers import duration, limit_headers, retry_headers

WALL_S = 1_767_225_600.25
READINGS = [Reading("requests", 500, 499, 0.114), Reading("tokens", 200_000, 198_000, 360.0)]


def test_openai_shows_resets_as_durations() -> None:
    assert limit_headers("openai", READINGS, WALL_S) == {
        "x-ratelimit-limit-requests": "500",
        "x-ratelimit-remaining-requests": "499",
        "x-ratelimit-reset-requests": "114ms",
        "x-ratelimit-limit-tokens": "200000",
        "x-ratelimit-remaining-tokens": "198000",
        "x-ratelimit-reset-tokens": "6m0s",
    }


def test_azure_shows_bare_seconds() -> None:
    headers = limit_headers("azure", READINGS, WALL_S)
    assert headers["x-ratelimit-reset-requests"] == "1"
    assert headers["x-ratelimit-reset-tokens"] == "360"
    assert headers["x-ratelimit-remaining-tokens"] == "198000"


def test_anthropic_shows_moments() -> None:
    assert limit_headers("anthropic", READINGS, WALL_S) == {
        "anthropic-ratelimit-requests-limit": "500",
        "anthropic-ratelimit-requests-remaining": "499",
        "anthropic-ratelimit-requests-reset": "2026-01-01T00:00:01Z",
        "anthropic-ratelimit-tokens-limit": "200000",
        "anthropic-ratelimit-tokens-remaining": "198000",
        "anthropic-ratelimit-tokens-reset": "2026-01-01T00:06:01Z",
    }


def test_none_shows_nothing() -> None:
    assert limit_headers("none", READINGS, WALL_S) == {}
    assert retry_headers("none", 1.5) == {}


@pytest.mark.parametrize(
    ("seconds_s", "shown"),
    [
        (0.0, "0s"),
        (0.0001, "1ms"),
        (0.114, "114ms"),
        (0.9999, "1s"),
        (1.0, "1s"),
        (8.64, "8.64s"),
        (59.9996, "1m0s"),
        (86.4, "1m26.4s"),
        (360.0, "6m0s"),
        (3600.0, "1h0m0s"),
        (86400.0, "24h0m0s"),
    ],
)
def test_durations_read_like_openai_s(seconds_s: float, shown: str) -> None:
    assert duration(seconds_s) == shown


def test_retry_after_is_rounded_up_in_both_units() -> None:
    assert retry_headers("openai", 1.0014) == {"retry-after": "2", "retry-after-ms": "1002"}
    assert retry_headers("azure", 2.0) == {"retry-after": "2", "retry-after-ms": "2000"}
    assert retry_headers("anthropic", 0.3) == {"retry-after": "1", "retry-after-ms": "300"}


def test_what_never_fits_has_no_retry_after() -> None:
    assert retry_headers("openai", math.inf) == {}
