"""Reads from the headers or body of a refusal how long to wait and which limit was reached."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from redline.limits.rule import SECONDS, Kind
from redline.limits.server.stated_limit import (
    WRITTEN_KINDS,
    Stated,
    read_date_s,
    read_duration_s,
    read_limit,
    read_number,
    read_window_s,
    server_wall_s,
)

# A wait of more than a day is treated as a mistake in the header.
_LONGEST_S = 86_400.0
# Error bodies are short: a longer body echoes an answer or an upload, and is not read further.
_LONGEST_BODY = 65_536

# Gateways quote a body inside a body, so quotes may be single, or escaped once or several times.
_RETRY_INFO = re.compile(rb"""retryDelay\\*["']\s*:\s*\\*["']([0-9]+(?:\.[0-9]+)?)s""")
# When OpenRouter's limit is reset, in milliseconds since 1970. With free models, it sends no
# Retry-After.
_RESET = re.compile(rb"""X-RateLimit-Reset\\*["']\s*:\s*\\*["']?([0-9]{12,13})\b""", re.IGNORECASE)
_SENTENCE = re.compile(
    rb"(?:try again|retry) (?:in|after) (?:((?:[0-9]+(?:\.[0-9]+)?(?:ms|[smhd]))+)\b"
    rb"|([0-9]+(?:\.[0-9]+)?) (second|minute|hour)s?\b)",
    re.IGNORECASE,
)

# Parts of a Gemini quotaId, in the order in which they are searched.
_QUOTA_KINDS: dict[str, Kind] = {
    "inputtoken": "input_tokens",
    "outputtoken": "output_tokens",
    "token": "tokens",
    "request": "requests",
}
_QUOTA_WINDOWS = ("second", "minute", "hour", "day")

# "on tokens per min (TPM): Limit 30000, Used 29937" (OpenAI, Groq), "on requests per min. Limit:
# 3 / min" (OpenAI until 2023).
_OVER = re.compile(
    rb"on ((?:input |output )?tokens|requests) per (sec|min|hour|day)[a-z]*[^0-9]{0,12}"
    rb"limit:? ([0-9]+)\b",
    re.IGNORECASE,
)
# "Rate limit exceeded: 2 per 1 minute" (slowapi).
_EXCEEDED = re.compile(rb"Rate limit exceeded: ([0-9]+) per ([0-9]{1,6}) (second|minute|hour|day)")


def retry_after_s(headers: Mapping[str, str], wall_s: float, body: bytes = b"") -> float | None:
    """Returns the seconds to wait according to `retry-after-ms`, `Retry-After` or the body.

    headers: looked up in lower case. Retry-After (RFC 9110, 10.2.3) is a number of seconds, which
    may have a fraction, or an HTTP date, compared with the server's own `Date` if there is one,
    otherwise with wall_s. body: the error's, which may state a wait: Google's RetryInfo,
    OpenRouter's X-RateLimit-Reset, or a sentence such as `Please try again in 1m26.4s`. None if no
    wait of 0..86,400 s is stated.
    """
    wait_ms = read_number(headers.get("retry-after-ms"))
    wait_s = None if wait_ms is None else wait_ms / 1000
    if not wait_s:
        # Azure may send 0 milliseconds, rounded down, together with a Retry-After of 1.
        text = headers.get("retry-after")
        seconds_s = read_number(text)
        if seconds_s is None and (date_s := read_date_s(text)) is not None:
            seconds_s = max(0.0, date_s - server_wall_s(headers, wall_s))
        wait_s = wait_s if seconds_s is None else seconds_s
    if wait_s is None and body:
        wait_s = _body_s(body[:_LONGEST_BODY], server_wall_s(headers, wall_s))
    return wait_s if wait_s is not None and wait_s <= _LONGEST_S else None


def stated_in_body(body: bytes) -> tuple[Stated, ...]:
    """Returns the limits that the body of a 429 names as reached, each with its window if stated.

    Reads Google's QuotaFailure, whose limits have 0 remaining, and the sentences of OpenAI, Groq
    and slowapi. Some limits, such as Groq's requests per minute, are stated nowhere else.
    """
    body = body[:_LONGEST_BODY]
    if b"QuotaFailure" in body:
        return tuple(_quotas(body))
    if found := _OVER.search(body):
        what, span, limit = (group.decode().lower() for group in found.groups())
        kind = WRITTEN_KINDS[what.replace(" ", "-")]
        return (Stated(kind, read_limit(limit), None, None, SECONDS[span]),)
    if found := _EXCEEDED.search(body):
        limit, number, span = (group.decode() for group in found.groups())
        window_s = read_window_s(str(int(number) * round(SECONDS[span])))
        return (Stated("requests", read_limit(limit), None, None, window_s),)
    return ()


def _quotas(body: bytes) -> Iterator[Stated]:
    for violation in _violations(body):
        # For example GenerateRequestsPerMinutePerProjectPerModel-FreeTier.
        name = _text(violation.get("quotaId")).lower()
        kind = next((kind for part, kind in _QUOTA_KINDS.items() if part in name), None)
        if kind is not None:
            window_s = next(
                (SECONDS[span] for span in _QUOTA_WINDOWS if f"per{span}" in name), None
            )
            yield Stated(kind, read_limit(_text(violation.get("quotaValue"))), 0, None, window_s)


def _violations(body: bytes) -> Iterator[dict[Any, Any]]:
    try:
        parsed = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return
    # Gemini's OpenAI-compatible endpoint and its streams send a list of one error.
    for reply in _dicts(parsed if isinstance(parsed, list) else [parsed]):
        error = reply.get("error")
        for detail in _dicts(error.get("details") if isinstance(error, dict) else None):
            if _text(detail.get("@type")).endswith("google.rpc.QuotaFailure"):
                yield from _dicts(detail.get("violations"))


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _dicts(values: object) -> Iterator[dict[Any, Any]]:
    if isinstance(values, list):
        yield from (value for value in values if isinstance(value, dict))


def _body_s(body: bytes, wall_s: float) -> float | None:
    """Returns the longest wait that the body states; None if it states none.

    Gemini states its wait twice: in RetryInfo, rounded down, and exactly in a sentence. wall_s: the
    server's time, in seconds since 1970.
    """
    waits = []
    if found := _RESET.search(body):
        waits.append(max(0.0, int(found[1]) / 1000 - wall_s))
    if found := _RETRY_INFO.search(body):
        waits.append(float(found[1]))
    if found := _SENTENCE.search(body):
        if found[1] is None:
            waits.append(float(found[2]) * SECONDS[found[3].lower().decode()])
        else:
            waits.append(read_duration_s(found[1].decode().lower()) or 0.0)
    return max(waits, default=None)
