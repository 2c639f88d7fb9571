"""Limit headers word for word."""

from __future__ import annotations

import math

import msgspec
import pytest

from redline.limits.server import HeaderReader, retry_after_s
from redline.sim import (
    HEADER_STYLES,
    Reading,
    duration,
    limit_headers,
    retry_details,
    retry_headers,
)

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


def test_envoy_shows_requests_in_seconds() -> None:
    assert limit_headers("envoy", READINGS, WALL_S) == {
        "x-ratelimit-limit": "500",
        "x-ratelimit-remaining": "499",
        "x-ratelimit-reset": "1",
    }
    assert limit_headers("envoy", READINGS[1:], WALL_S) == {}


def test_slowapi_shows_a_moment_one_second_late() -> None:
    assert limit_headers("slowapi", [Reading("requests", 500, 499, 0.25)], WALL_S) == {
        "x-ratelimit-limit": "500",
        "x-ratelimit-remaining": "499",
        "x-ratelimit-reset": "1767225601.5",
    }


def test_ietf_shows_policies() -> None:
    assert limit_headers("ietf", READINGS, WALL_S) == {
        "ratelimit": '"requests";r=499;t=1, "tokens";r=198000;t=360',
        "ratelimit-policy": '"requests";q=500;qu="requests", "tokens";q=200000;qu="tokens"',
    }
    assert limit_headers("ietf", [], WALL_S) == {}


def test_gemini_shows_a_wait_in_the_body_only() -> None:
    assert limit_headers("gemini", READINGS, WALL_S) == {}
    assert retry_headers("gemini", 1.5) == {}
    kind = "type.googleapis.com/google.rpc.RetryInfo"
    assert retry_details("gemini", 1.5) == [{"@type": kind, "retryDelay": "2s"}]
    assert retry_details("gemini", math.inf) == []


def test_none_shows_nothing() -> None:
    assert limit_headers("none", READINGS, WALL_S) == {}
    assert retry_headers("none", 1.5) == {}
    assert all(retry_details(style, 1.5) == [] for style in HEADER_STYLES if style != "gemini")


# By style: how late a reset may read, and what else is known.
READ = {
    "openai": (0.001, ["requests", "tokens"], None),
    "azure": (1.0, ["requests", "tokens"], None),
    "anthropic": (1.0, ["requests", "tokens"], 60.0),
    "gemini": (0.0, [], None),
    "envoy": (1.0, ["requests"], None),
    "ietf": (1.0, ["requests", "tokens"], None),
    "slowapi": (1.0, ["requests"], None),
    "none": (0.0, [], None),
}


@pytest.mark.parametrize("style", HEADER_STYLES)
def test_the_client_reads_every_style(style: str) -> None:
    late_s, kinds, window_s = READ[style]
    headers = limit_headers(style, READINGS, WALL_S)
    found = {stated.kind: stated for stated in HeaderReader().read(headers, WALL_S)}
    assert list(found) == kinds
    for reading in READINGS:
        if reading.what in kinds:
            stated = found[reading.what]
            assert stated.reset_s is not None
            assert -1e-6 <= stated.reset_s - reading.reset_s <= late_s + 1e-6
            # Its name only tells it from other limits of its kind.
            told = reading.what, reading.limit, reading.left, window_s
            assert (stated.kind, stated.limit, stated.remaining, stated.window_s) == told


@pytest.mark.parametrize("style", HEADER_STYLES)
@pytest.mark.parametrize("wait_s", [0.0, 0.3, 1.0, 59.2])
def test_after_the_wait_that_is_read_the_request_fits(style: str, wait_s: float) -> None:
    body = msgspec.json.encode({"error": {"details": retry_details(style, wait_s)}})
    read_s = retry_after_s(retry_headers(style, wait_s), WALL_S, body)
    if style == "none":
        assert read_s is None
    else:
        assert read_s is not None
        assert wait_s <= read_s <= wait_s + 1


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
    assert retry_headers("envoy", 0.3) == {"retry-after": "1"}


def test_what_never_fits_has_no_retry_after() -> None:
    assert retry_headers("openai", math.inf) == {}
