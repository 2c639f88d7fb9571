"""Decisions about batches, in plain functions."""

from __future__ import annotations

import json
from typing import Any

import pytest

from redline.apis import Problem, read_line
from redline.errors import BadReply, RateLimited, Refused, Rejected, ServerFailed
from redline.job.batch import (
    MOST_BYTES,
    MOST_ROWS,
    Pace,
    bad_lines,
    fits,
    is_full,
    is_sent_again,
    live_s,
    margin_s,
    next_look_s,
    outcome_of,
    reasons_of,
)
from redline.job.batch import plan as batch_plan
from redline.limits import Limits

CHAT = "/v1/chat/completions"


def test_looks_become_rarer_up_to_a_minute() -> None:
    waits: list[float] = []
    while not waits or waits[-1] < batch_plan.MOST_LOOK_S:
        waits.append(next_look_s(waits[-1] if waits else None))
    assert waits[0] == 0.25
    assert waits == sorted(waits)
    # A day of waiting is about 1,440 looks, an hour about 75.
    assert 100 < sum(waits) < 240


def test_a_part_ends_at_its_rows_or_its_bytes_and_takes_a_long_row_alone() -> None:
    assert fits(MOST_ROWS - 1, 10, 1, 10)
    assert not fits(MOST_ROWS, 10, 1, 10)
    assert fits(1, MOST_BYTES - 10, 1, 10)
    assert not fits(1, MOST_BYTES - 10, 1, 11)
    assert fits(0, 0, MOST_ROWS + 1, MOST_BYTES + 1)


def line(response: Any = None, error: Any = None) -> Any:
    shown = {"id": "x", "custom_id": "k", "response": response, "error": error, "more": [1]}
    return read_line(json.dumps(shown).encode())


def answer(status: int, body: Any) -> Any:
    return line({"status_code": status, "request_id": "req-1", "body": body})


def test_an_answer_is_read_as_it_would_be_live() -> None:
    body = {"choices": [{"message": {"content": "hi"}}], "usage": {"prompt_tokens": 3}}
    outcome = outcome_of(answer(200, body), CHAT, (), 0.0)
    assert outcome.is_success
    assert outcome.is_batched
    assert outcome.output == "hi"
    assert outcome.reply is not None
    assert (outcome.reply.request_id, outcome.reply.input_tokens) == ("req-1", 3)
    assert json.loads(outcome.reply.body) == body
    assert outcome_of(answer(200, {"a": [7]}), "/v1/own", ("a", 0), 0.0).output == 7


@pytest.mark.parametrize(
    ("result", "kind", "status"),
    [
        (answer(400, {"error": {"message": "no"}}), Rejected, "rejected"),
        (answer(401, {"error": {"message": "no"}}), Refused, "rejected"),
        (answer(429, {}), RateLimited, "exhausted"),
        (answer(500, {}), ServerFailed, "exhausted"),
        (answer(200, {"choices": []}), BadReply, "exhausted"),
        (line(error={"code": "batch_expired", "message": "late"}), ServerFailed, "exhausted"),
        (line(error={"code": "batch_cancelled"}), ServerFailed, "exhausted"),
        (line(error={"code": "inference_failed", "message": "no"}), BadReply, "exhausted"),
        (line(), ServerFailed, "exhausted"),
    ],
)
def test_an_error_is_judged_as_it_would_be_live(result: Any, kind: type, status: str) -> None:
    outcome = outcome_of(result, CHAT, (), 0.0)
    assert type(outcome.error) is kind
    assert outcome.status == status
    assert outcome.is_batched


@pytest.mark.parametrize("raw", [b"", b"[]", b"{}", b'{"custom_id": 1}', b"\xff"])
def test_what_is_no_result_is_told(raw: bytes) -> None:
    with pytest.raises(BadReply, match="Batch API's format"):
        read_line(raw)


def test_what_may_pass_is_sent_again_as_often_as_retries_allow() -> None:
    failed = ServerFailed("x")
    assert [is_sent_again(failed, attempts, 2) for attempts in (1, 2, 3)] == [True, True, False]
    unread = BadReply("x")
    assert [is_sent_again(unread, attempts, 8) for attempts in (1, 2, 3)] == [True, True, False]
    assert not is_sent_again(Rejected("x"), 1, 8)
    assert not is_sent_again(None, 1, 8)


def test_why_a_batch_failed_decides_what_becomes_of_its_rows() -> None:
    full = [Problem(code="token_limit_exceeded", message="Enqueued token limit reached.")]
    lines = [Problem(code="bad", message="no", line=2), Problem(message="odd", line=5)]
    assert is_full(full)
    assert not is_full(lines)
    found = bad_lines(lines)
    assert list(found) == [2, 5]
    assert found[2].what == "the Batch API rejected the row: bad: no"
    assert bad_lines(full) == {}
    assert reasons_of(full) == "token_limit_exceeded: Enqueued token limit reached."
    assert reasons_of([]) == "the provider gives no reason"


def test_the_live_rest_takes_what_its_slots_and_limits_demand() -> None:
    pace = Pace(row_s=2.0, row_tokens=50.0)
    assert live_s(100, pace, Limits(), 10) == 20.0
    assert live_s(101, pace, Limits(), 10) == 22.0
    assert live_s(0, pace, Limits(), 10) == 0.0
    slow = Limits(requests=("1/1s",), guard_s=0.0)
    assert live_s(100, pace, slow, 10) == pytest.approx(99.0)
    few = Limits(tokens=("100/1s",), guard_s=0.0)
    assert live_s(100, pace, few, 10) == pytest.approx(50.0)
    for kind in ("input_tokens", "output_tokens"):
        few = Limits(**{kind: ("100/1s",)}, guard_s=0.0)
        assert live_s(100, pace, few, 10) == pytest.approx(50.0)


def test_the_margin_has_room_for_the_cancel_and_half_as_much_again_for_the_rest() -> None:
    assert margin_s(100.0, 6 * 3600.0) == 600 + 150
    assert margin_s(0.0, 8.0) == 2.0
