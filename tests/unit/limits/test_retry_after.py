"""Retry-After in all its forms, and what the body of a refusal tells."""

from __future__ import annotations

import json
from email.utils import formatdate
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redline.limits.server import Stated, retry_after_s, stated_in_body

NOW_S = 784_111_777.0  # Sun, 06 Nov 1994 08:49:37 GMT, the date of RFC 9110's examples


def read(body: bytes = b"", **headers: str) -> float | None:
    found = {name.replace("_", "-"): text for name, text in headers.items()}
    return retry_after_s(found, NOW_S, body)


@pytest.mark.parametrize(
    ("text", "wait_s"),
    [
        ("0", 0.0),
        ("3", 3.0),
        ("1.5", 1.5),
        ("7.66", 7.66),  # Groq
        (" 2 ", 2.0),
        ("86400", 86_400.0),
        ("86401", None),
        ("-1", None),
        ("nan", None),
        ("inf", None),
        ("soon", None),
        ("", None),
        ("Sun, 06 Nov 1994 08:49:47 GMT", 10.0),
        ("Sunday, 06-Nov-94 08:49:47 GMT", 10.0),
        ("Sun Nov  6 08:49:47 1994", 10.0),
        ("Sun, 06 Nov 1994 08:49:37 GMT", 0.0),
        ("Sun, 06 Nov 1994 08:00:00 GMT", 0.0),
        ("Sun, 06 Nov 2094 08:49:37 GMT", None),
        ("Sun, 99 Nov 1994 08:49:37 GMT", None),
    ],
)
def test_retry_after(text: str, wait_s: float | None) -> None:
    assert read(retry_after=text) == wait_s


def test_milliseconds_go_before_seconds() -> None:
    assert read(retry_after_ms="250") == 0.25
    assert read(retry_after_ms="250", retry_after="3") == 0.25
    assert read(retry_after_ms="soon", retry_after="3") == 3.0
    assert read(retry_after_ms="-1", retry_after="3") == 3.0
    # Azure AI, in 2026: the milliseconds are rounded down to nothing.
    assert read(retry_after_ms="0", retry_after="1") == 1.0
    assert read(retry_after_ms="0") == 0.0


def test_no_header_is_no_wish() -> None:
    assert read() is None


# --- the body --------------------------------------------------------------------------------

# Gemini, in 2025 and 2026: the shape and the values of github.com/googleapis/python-genai/
# issues/2044 and github.com/continuedev/continue/issues/11274.
GEMINI = {
    "error": {
        "code": 429,
        "message": "You exceeded your current quota. \n* Quota exceeded for metric: "
        "generativelanguage.googleapis.com/generate_content_free_tier_requests, limit: 20, "
        "model: gemini-2.5-flash\nPlease retry in 26.211922938s.",
        "status": "RESOURCE_EXHAUSTED",
        "details": [
            {"@type": "type.googleapis.com/google.rpc.Help", "links": []},
            {
                "@type": "type.googleapis.com/google.rpc.QuotaFailure",
                "violations": [
                    {
                        "quotaMetric": "generativelanguage.googleapis.com/"
                        "generate_content_free_tier_requests",
                        "quotaId": "GenerateRequestsPerDayPerProjectPerModel-FreeTier",
                        "quotaDimensions": {"location": "global", "model": "gemini-2.5-flash"},
                        "quotaValue": "20",
                    },
                    {"quotaId": "GenerateRequestsPerMinutePerProjectPerModel-FreeTier"},
                    {
                        "quotaId": "GenerateContentPaidTierInputTokensPerModelPerMinute",
                        "quotaValue": "1000000",
                    },
                ],
            },
            {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "26s"},
        ],
    }
}
RETRY_INFO = {
    "error": {
        "code": 429,
        "details": [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "26s"}],
    }
}


def openrouter(reset_s: float) -> bytes:
    limits = {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": f"{1000 * reset_s:.0f}"}
    error = {"message": "Rate limit exceeded", "code": 429, "metadata": {"headers": limits}}
    return json.dumps({"error": error}).encode()


def openai(message: str) -> bytes:
    return json.dumps({"error": {"message": message, "code": "rate_limit_exceeded"}}).encode()


@pytest.mark.parametrize(
    ("body", "wait_s"),
    [
        (json.dumps(RETRY_INFO).encode(), 26.0),
        (json.dumps(RETRY_INFO, indent=2).encode(), 26.0),
        # A list, as the OpenAI-compatible endpoint sends it.
        (json.dumps([RETRY_INFO]).encode(), 26.0),
        # Quoted by a gateway, once and twice, and as Python prints it.
        (json.dumps({"error": {"message": json.dumps(RETRY_INFO)}}).encode(), 26.0),
        (json.dumps({"e": json.dumps({"m": json.dumps(RETRY_INFO)})}).encode(), 26.0),
        (f"litellm.RateLimitError: {RETRY_INFO}".encode(), 26.0),
        # RetryInfo is rounded down, so the sentence beside it holds.
        (json.dumps(GEMINI).encode(), 26.211922938),
        (b'{"retryDelay": "3.5s"}', 3.5),
        (b'{"retryDelay": "31167s"}', 31167.0),
        (b'{"retryDelay": "-1s"}', None),
        # github.com/FoundationAgents/MetaGPT/issues/523
        (
            openai("Limit 10000, Used 8554, Requested 3082. Please try again in 9.816s. Visit"),
            9.816,
        ),
        # github.com/BuilderIO/micro-agent/issues/86
        (openai("Limit 30000, Used 29937, Requested 385. Please try again in 644ms."), 0.644),
        # github.com/daveshap/Medical_Intake/issues/9
        (openai("Limit: 10000 / min. Please try again in 6ms. Contact us through"), 0.006),
        # OpenAI, three requests per minute and 200 per day
        (openai("Limit: 3 / min. Please try again in 20s. Contact us"), 20.0),
        (openai("Limit 200, Used 200, Requested 1. Please try again in 7m12s."), 432.0),
        (openai("Please try again in 1m26.4s."), 86.4),
        (openai("Please try again in 1h0m0s."), 3600.0),
        # Groq: github.com/continuedev/continue/issues/10920, ago19800/HomeMind/issues/29
        (openai("Requested 3619. Please try again in 9m38.016s. Need more tokens?"), 578.016),
        (openai("Please try again in 1.984999999s. Need more tokens?"), 1.984999999),
        # Gemini, less than a second
        (openai("limit: 20, model: gemini-3.5-flash\nPlease retry in 997.965142ms."), 0.997965142),
        # Azure: github.com/icereed/paperless-gpt/issues/814, jasonacox/TinyLLM/issues/17
        (openai("under API version 2023-05-15. Please retry after 45 seconds."), 45.0),
        (openai("Please retry after 1 second. Please contact Azure"), 1.0),
        (openai("Please retry after 86400 seconds."), 86_400.0),
        (openai("Please retry after 86401 seconds."), None),
        (openai("Try again in 2 minutes"), 120.0),
        # OpenRouter: github.com/hydropix/TranslateBooksWithLLMs/issues/125
        (openrouter(NOW_S + 26), 26.0),
        (openrouter(NOW_S - 26), 0.0),
        (openrouter(NOW_S + 90_000), None),
        # No time in these.
        (openai("Please try again later."), None),
        (openai("Please retry after a brief wait."), None),
        (openai("Please try again in 5 days' time"), None),
        (openai("please try again in 12steps"), None),
        (b"\xff\xfe try again in 3s", 3.0),
        (b"", None),
    ],
)
def test_a_wait_told_in_the_body(body: bytes, wait_s: float | None) -> None:
    assert read(body) == pytest.approx(wait_s)


def test_headers_go_before_the_body() -> None:
    body = openai("Please try again in 20s.")
    assert read(body, retry_after="3") == 3.0
    assert read(body, retry_after_ms="30") == 0.03
    assert read(body, retry_after="soon") == 20.0


def test_only_the_beginning_of_a_long_body_is_searched() -> None:
    assert read(b" " * 60_000 + b"try again in 3s") == 3.0
    assert read(b" " * 70_000 + b"try again in 3s") is None


@pytest.mark.parametrize(
    ("body", "stated"),
    [
        (
            json.dumps(GEMINI).encode(),
            (
                Stated("requests", 20, 0, None, 86_400.0),
                Stated("requests", None, 0, None, 60.0),
                Stated("input_tokens", 1_000_000, 0, None, 60.0),
            ),
        ),
        (json.dumps([GEMINI]).encode(), 3),
        (
            openai("Rate limit reached for gpt-4o in organization org-1 on tokens per min (TPM): "
                   "Limit 30000, Used 29937, Requested 385. Please try again in 644ms."),
            (Stated("tokens", 30_000, None, None, 60.0),),
        ),
        (
            # Groq: the limit per minute that no header tells.
            openai("Rate limit reached for model `llama-3.1-8b-instant` in organization `org_1` "
                   "service tier `on_demand` on requests per minute (RPM): Limit 30, Used 30, "
                   "Requested 1. Please try again in 2s."),
            (Stated("requests", 30, None, None, 60.0),),
        ),
        (
            openai("on tokens per day (TPD): Limit 100000, Used 97050, Requested 3619."),
            (Stated("tokens", 100_000, None, None, 86_400.0),),
        ),
        (
            openai("on output tokens per minute (OTPM): Limit 1000, Requested 1434."),
            (Stated("output_tokens", 1000, None, None, 60.0),),
        ),
        (
            openai("Rate limit reached for 10KTPM-200RPM in organization org-1 on tokens per min. "
                   "Limit: 10000 / min. Please try again in 6ms."),
            (Stated("tokens", 10_000, None, None, 60.0),),
        ),
        (
            # slowapi 0.1.9
            b'{"error":"Rate limit exceeded: 2 per 15 minute"}',
            (Stated("requests", 2, None, None, 900.0),),
        ),
        (b'{"error":"Rate limit exceeded: 2 per 999999 day"}', (Stated("requests", 2),)),
        (openai("on input requests per minute: Limit 30, Used 30."), ()),
        (b'{"error": {"message": "Rate limit reached."}}', ()),
        (b'{"error": {"details": [{"@type": "google.rpc.QuotaFailure", "violations": 3}]}}', ()),
        (b'{"QuotaFailure": ', ()),
        (b'["QuotaFailure", {"error": []}]', ()),
        (b'["QuotaFailure"' + b"[" * 5000, ()),
        (b"", ()),
    ],
)  # fmt: skip
def test_limits_told_in_the_body(body: bytes, stated: tuple[Stated, ...] | int) -> None:
    found = stated_in_body(body)
    assert len(found) == stated if isinstance(stated, int) else found == stated


# --- garbage ---------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.integers(0, 86_400))
def test_every_date_within_a_day_is_read(ahead_s: int) -> None:
    assert read(retry_after=formatdate(NOW_S + ahead_s, usegmt=True)) == ahead_s


@pytest.mark.parametrize("ahead_s", [-4000, -60, 0, 60, 4000])
def test_a_date_is_compared_with_the_servers_own(ahead_s: int) -> None:
    """ahead_s: of the server's clock before ours."""
    now_s = NOW_S + ahead_s
    until = formatdate(now_s + 20, usegmt=True)
    assert read(retry_after=until, date=formatdate(now_s, usegmt=True)) == 20
    assert read(retry_after=formatdate(NOW_S + 20, usegmt=True), date="soon") == 20


ANY_TEXT = st.text(st.characters() | st.characters(categories=["Cs"]), max_size=40)


@settings(deadline=None)
@given(ANY_TEXT | st.floats().map(str) | st.integers().map(str), st.binary(max_size=60))
def test_nonsense_never_raises(text: str, body: bytes) -> None:
    wait_s = read(body, retry_after=text, retry_after_ms=text)
    assert wait_s is None or 0 <= wait_s <= 86_400


@settings(deadline=None)
@given(st.from_regex(r"[A-Za-z]{0,4},? ?\d{0,3}[ -][A-Za-z]{3}[ -]\d{0,6} [\d:]{0,9} ?[A-Z+\d-]{0,5}"))  # fmt: skip  # noqa: E501
def test_what_looks_like_a_date_never_raises(text: str) -> None:
    wait_s = read(retry_after=text)
    assert wait_s is None or 0 <= wait_s <= 86_400


@settings(deadline=None)
@given(st.from_regex(rb"(retry|try again) (in|after) [0-9.]{0,400}(ms|s|m|h|d| seconds?)?(3s)?"))
def test_what_looks_like_a_wait_never_raises(body: bytes) -> None:
    wait_s = read(body)
    assert wait_s is None or 0 <= wait_s <= 86_400


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.just("1e9"),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["quotaId", "quotaValue", "x"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(deadline=None)
@given(JSON, JSON)
def test_no_quota_failure_raises(violations: Any, details: Any) -> None:
    failure = {"@type": "x.google.rpc.QuotaFailure", "violations": violations}
    for reply in ({"error": {"details": [failure, details]}}, {"error": details, "a": failure}):
        for stated in stated_in_body(json.dumps(reply).encode()):
            assert stated.limit is None or stated.limit >= 1
