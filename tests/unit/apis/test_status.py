"""The retry table, row by row."""

from __future__ import annotations

import msgspec
import pytest

from redline.apis import judge
from redline.errors import (
    CallError,
    NoEndpoint,
    OverLimit,
    RateLimited,
    Refused,
    Rejected,
    Retryable,
    ServerFailed,
    Unpaid,
)

WALL_S = 784_111_777.0  # Sun, 06 Nov 1994 08:49:37 GMT


def verdict(status: int, body: bytes = b"", **headers: str) -> CallError:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    error = judge(status, named, body, WALL_S)
    assert isinstance(error, CallError)
    return error


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        *((status, Rejected) for status in (300, 301, 302, 307, 308)),
        *((status, Rejected) for status in (400, 403, 404, 405, 410, 413, 414, 415, 418, 422, 431)),
        *((status, ServerFailed) for status in (408, 409, 424, 425, 499)),
        *((status, ServerFailed) for status in (500, 501, 502, 503, 504, 520, 524, 529, 599)),
        (401, Refused),
        (402, Unpaid),
        (429, RateLimited),
    ],
)
def test_every_status(status: int, kind: type[CallError]) -> None:
    error = verdict(status)
    assert type(error) is kind
    assert error.status == status
    assert f"HTTP {status}" in error.what
    assert isinstance(error, Retryable) == (kind in (ServerFailed, RateLimited))


def test_a_redirect_names_its_target() -> None:
    error = verdict(308, b"Moved", location="https://api.example.com/v1/chat/completions")
    target = "HTTP 308: Moved, a redirect to https://api.example.com/v1/chat/completions"
    assert error.what == f"the endpoint rejected the request: {target}"
    assert error.hint.startswith("set the base URL to the target of the redirect")


@pytest.mark.parametrize("status", [400, 401, 402, 403, 404, 413, 422])
def test_what_the_user_can_mend_has_a_hint(status: int) -> None:
    assert verdict(status).hint


@pytest.mark.parametrize(
    ("status", "wish", "kind"),
    [
        (400, "true", ServerFailed),
        (404, "TRUE", ServerFailed),
        (500, "false", Rejected),
        (429, "false", Rejected),
        (429, "true", RateLimited),
        (408, "false", Rejected),
        (500, "maybe", ServerFailed),
        (400, "maybe", Rejected),
        (401, "true", Refused),
        (402, "true", Unpaid),
    ],
)
def test_x_should_retry_decides_except_for_key_and_credit(
    status: int, wish: str, kind: type[CallError]
) -> None:
    assert type(verdict(status, x_should_retry=wish)) is kind


@pytest.mark.parametrize(
    "body",
    [
        {"error": {"message": "broke", "type": "insufficient_quota", "code": "insufficient_quota"}},
        {"error": {"message": "broke", "type": "insufficient_quota", "code": None}},
        {"error": {"message": "broke", "type": "insufficient_quota", "code": 429}},
        {"error": {"message": "broke", "code": "insufficient_quota"}},
        {"message": "broke", "code": "insufficient_quota"},
    ],
)
def test_a_429_for_lack_of_credit_is_no_rate_limit(body: object) -> None:
    error = verdict(429, msgspec.json.encode(body), x_should_retry="true")
    assert type(error) is Unpaid
    assert error.what == "the account has no credit left: HTTP 429: broke"
    assert error.stops_run


TPM = "on tokens per min (TPM): Limit"


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        (
            f"Request too large for gpt-4o in organization o {TPM} 30000, Requested 31538.",
            OverLimit,
        ),
        ("Request too large on tokens per 2 s: Limit 20000, Used 0, Requested 25000.", OverLimit),
        (f"Request too large for gpt-4o {TPM} 30000, Requested 30000.", RateLimited),
        (f"Request too large for gpt-4o {TPM} 30000.", RateLimited),
        (f"Rate limit reached for gpt-4o {TPM} 30000, Used 1, Requested 31538.", RateLimited),
    ],
)
def test_a_429_for_a_call_that_no_window_could_hold_is_final(
    message: str, kind: type[CallError]
) -> None:
    error = {"message": message, "type": "tokens", "code": "rate_limit_exceeded"}
    found = verdict(429, msgspec.json.encode({"error": error}))
    assert type(found) is kind
    assert bool(found.hint) == (kind is OverLimit)
    groqs = verdict(413, msgspec.json.encode({"error": error}))
    assert type(groqs) is (OverLimit if kind is OverLimit else Rejected)


def test_an_engine_that_has_failed_ends_the_run() -> None:
    body = b'{"error": {"code": "engine_failed", "message": "the engine has failed: m"}}'
    error = judge(503, {}, body, WALL_S)
    assert isinstance(error, NoEndpoint)
    assert error.stops_run
    assert "the engine has failed: m" in error.what
    assert type(verdict(400, body)) is Rejected


@pytest.mark.parametrize(
    ("status", "message", "raw", "kind"),
    [
        (404, "Provider returned error", "", ServerFailed),
        (404, "Provider returned error", "no such model", Rejected),
        (400, "No models provided", None, ServerFailed),
        (400, "No such field", None, Rejected),
    ],
)
def test_what_openrouter_sends_while_its_providers_fail(
    status: int, message: str, raw: str | None, kind: type[CallError]
) -> None:
    error = {"message": message, "code": status, "metadata": {"raw": raw}}
    assert type(verdict(status, msgspec.json.encode({"error": error}))) is kind


def test_insufficient_quota_counts_only_with_429() -> None:
    body = b'{"error": {"code": "insufficient_quota", "message": "m"}}'
    assert type(verdict(500, body)) is ServerFailed


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", ""),
        (b"{}", ""),
        (b'{"error": "over\\n\\tloaded"}', ": over loaded"),
        (b'{"error": {"message": "overloaded", "type": "x"}}', ": overloaded"),
        (b'{"error": {"detail": 3}}', ": {'detail': 3}"),
        (b'{"error": {"message": null}}', ": None"),
        (b'{"error": {"message": "m", "metadata": {"raw": "{\\"a\\": 1}"}}}', ': m: {"a": 1}'),
        (b'{"error": {"message": "m", "metadata": {"raw": null}}}', ": m"),
        (b'{"error": ["a"]}', ": ['a']"),
        (b'{"message": "overloaded"}', ": overloaded"),
        (b'{"detail": "Not Found"}', ": Not Found"),
        (b'{"detail": [{"loc": ["body"], "msg": "m"}]}', ": [{'loc': ['body'], 'msg': 'm'}]"),
        (b'{"object": "error", "message": "overloaded", "code": 500}', ": overloaded"),
        (b'[{"error": {"message": "overloaded"}}]', ": overloaded"),
        (b"upstream connect error", ": upstream connect error"),
        (b"<html>\n<body>502 Bad\n Gateway", ": <html> <body>502 Bad Gateway"),
        (b'{"error": "cut', ': {"error": "cut'),
        (b"\xff\xfe", ": \ufffd\ufffd"),
        (b"null", ": null"),
        (b'"text"', ': "text"'),
        (b"[" * 100_000, ": " + "[" * 297 + "..."),
        (b'{"error": ' * 100_000, ": " + ('{"error": ' * 30)[:297] + "..."),
    ],
)
def test_every_shape_of_an_error_body(body: bytes, message: str) -> None:
    assert verdict(500, body).what == f"the server failed: HTTP 500{message}"


@pytest.mark.parametrize(
    ("headers", "wait_s"),
    [
        ({"retry_after": "3"}, 3.0),
        ({"retry_after": "0.25"}, 0.25),
        ({"retry_after_ms": "250", "retry_after": "3"}, 0.25),
        ({"retry_after": "Sun, 06 Nov 1994 08:49:47 GMT"}, 10.0),
        ({"retry_after": "Sun, 06 Nov 1994 08:00:00 GMT"}, 0.0),
        ({"retry_after": "later"}, None),
        ({}, None),
    ],
)
@pytest.mark.parametrize("status", [429, 503, 529, 408])
def test_the_servers_wish_to_wait_is_kept(
    status: int, headers: dict[str, str], wait_s: float | None
) -> None:
    error = verdict(status, **headers)
    assert isinstance(error, Retryable)
    assert error.retry_after_s == wait_s
