"""Every failure there is, as an HTTP status, headers and an error body."""

from __future__ import annotations

import math
from typing import Any

import pytest

from redline import errors
from redline.errors import (
    BadReply,
    BudgetSpent,
    CallError,
    Disconnected,
    NoEndpoint,
    OverLimit,
    RateLimited,
    RedlineError,
    Refused,
    Rejected,
    ServerFailed,
    TimedOut,
    Unpaid,
    Unpriced,
    Withdrawn,
)
from redline.serve.http import refusals

WRONG, LIMITED, OURS = "invalid_request_error", "rate_limit_error", "server_error"
FINAL = {"x-should-retry": "false"}
SOON = {"retry-after": "1"}

# failure: status, headers, type and code of the body.
TABLE: list[tuple[Any, int, dict[str, str], str, str]] = [
    (Rejected("no"), 400, FINAL, WRONG, "rejected"),
    (errors.BadRow("no"), 400, FINAL, WRONG, "bad_row"),
    (errors.BadTemplate("no"), 400, FINAL, WRONG, "bad_template"),
    (Rejected("no", status=404), 404, FINAL, WRONG, "rejected"),
    (Rejected("no", status=301), 502, FINAL, OURS, "rejected"),
    (Rejected("no", status=500), 500, FINAL, OURS, "rejected"),
    (Rejected("no", status=429), 429, FINAL, LIMITED, "rate_limit_exceeded"),
    (OverLimit("no"), 400, FINAL, WRONG, "over_limit"),
    (Refused("no", status=401), 502, FINAL, OURS, "refused"),
    (Unpaid("no", status=429), 502, FINAL, OURS, "unpaid"),
    (BudgetSpent("no"), 502, FINAL, OURS, "budget_spent"),
    (Unpriced("no"), 502, FINAL, OURS, "unpriced"),
    (Withdrawn("no"), 502, {}, OURS, "withdrawn"),
    (RateLimited("no"), 429, SOON, LIMITED, "rate_limit_exceeded"),
    (RateLimited("no", retry_after_s=0.0), 429, SOON, LIMITED, "rate_limit_exceeded"),
    (
        RateLimited("no", status=429, retry_after_s=6.1),
        *(429, {"retry-after": "7"}, LIMITED, "rate_limit_exceeded"),
    ),
    (
        RateLimited("no", retry_after_s=math.inf),
        *(429, {"retry-after": "86400"}, LIMITED, "rate_limit_exceeded"),
    ),
    (TimedOut("attempt", 3.0), 504, {}, OURS, "timed_out"),
    (NoEndpoint("no"), 503, SOON, OURS, "no_endpoint"),
    (
        ServerFailed("full", status=503, retry_after_s=2),
        *(503, {"retry-after": "2"}, OURS, "server_failed"),
    ),
    (ServerFailed("full", status=529), 503, SOON, OURS, "server_failed"),
    (ServerFailed("no", status=500), 502, {}, OURS, "server_failed"),
    (Disconnected("no"), 502, {}, OURS, "disconnected"),
    (BadReply("no"), 502, {}, OURS, "bad_reply"),
]


@pytest.mark.parametrize(("error", "status", "headers", "kind", "code"), TABLE)
def test_a_failure_becomes_an_error(
    error: Any, status: int, headers: dict[str, str], kind: str, code: str
) -> None:
    refusal = refusals.refusal_of(error)
    assert (refusal.status, refusal.headers) == (status, headers)
    shown = {"message": error.what, "type": kind, "param": None, "code": code}
    assert refusal.body == {"error": shown}


@pytest.mark.parametrize(
    ("error", "headers"),
    [
        (OverLimit("too large for any minute", status=429), FINAL),
        (Rejected("no", status=404), FINAL),
        (RateLimited("later", status=429, retry_after_s=6.1), {"retry-after": "7"}),
        (RateLimited("later", status=429), {}),
        (ServerFailed("no", status=500), {}),
    ],
)
def test_an_answer_of_the_endpoints_own_says_whether_to_ask_again(
    error: CallError, headers: dict[str, str]
) -> None:
    assert refusals.retry_headers(error) == headers


def leaves(kind: type[RedlineError]) -> set[type[RedlineError]]:
    below = [each for each in kind.__subclasses__() if each.__module__ == errors.__name__]
    return set().union(*(leaves(each) for each in below)) if below else {kind}


def test_the_table_knows_every_failure_of_a_call() -> None:
    known = leaves(CallError) | {Rejected, errors.NoEndpoint}
    assert {type(row[0]) for row in TABLE} == known


def test_the_hint_of_a_backend_is_told_and_that_of_a_command_line_is_not() -> None:
    own = refusals.refusal_of(Rejected("top_p must be 0 to 1, not 7", hint="leave it out"))
    assert own.body["error"]["message"] == "top_p must be 0 to 1, not 7: leave it out"
    far = Rejected("the endpoint rejected the request: HTTP 404", hint="check --model", status=404)
    assert refusals.refusal_of(far).body["error"]["message"] == far.what
    late = TimedOut("row", hint="raise --row-deadline")
    assert "--row" not in refusals.refusal_of(late).body["error"]["message"]


@pytest.mark.parametrize(
    ("error", "param"),
    [
        (Rejected("`top_p` is 7", hint="`n` too"), "top_p"),
        (Rejected("`messages[0].content[1].type` is not valid"), "messages[0].content[1].type"),
        (Rejected("`logit_bias[...]` is not valid: Expected `float`"), "logit_bias[...]"),
        (Rejected("the request asks for 40 answers"), None),
        (Rejected("an answer that begins `<html>` or `404 Not Found`"), None),
        (Rejected("HTTP 400: `top_p` is 7", status=400), None),
        (TimedOut("row", hint="`top_p`"), None),
    ],
)
def test_the_parameter_of_our_own_refusals_is_told(error: CallError, param: str | None) -> None:
    assert refusals.refusal_of(error).body["error"]["param"] == param
