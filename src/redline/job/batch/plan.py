"""Decisions about batches: plain functions that never wait.

a batch that is     its finished lines   its other lines
completed           are results          are looked for again, then sent again, at most twice
expired             are results          are sent again, at most --max-retries times
cancelled by us     are results          are sent live
cancelled otherwise are results          are left for the next run, and this one ends
failed for lack of room                  wait until another batch is over, or are halved
failed by lines                          those lines are failures, the others are sent again
failed otherwise                         are left for the next run, and this one ends
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec

from redline.apis import Problem, ResultLine, judge, number
from redline.apis import replies as apis
from redline.calls import Outcome, failed
from redline.errors import BadReply, CallError, NoEndpoint, Rejected, Retryable, ServerFailed
from redline.limits import Limits
from redline.limits.rule import KINDS, last_send_s
from redline.process import counted

# OpenAI's bounds are 50,000 requests and 200 MB. Older servers with its API take 100 MB, and a file
# is in memory while it is sent.
MOST_ROWS = 50_000
MOST_BYTES = 100 * 10**6
# A batch at a server of your own ends in seconds, one at a provider in minutes to hours. So polls
# become rarer: 13 in the first two minutes, then one a minute.
FIRST_LOOK_S, LOOK_GROWTH, MOST_LOOK_S = 0.25, 1.5, 60.0
# A server that reports `completed` before its results can be read has this long to return them:
# rows that are sent again are paid for again.
MOST_RESULTS_S = 30.0
# A batch whose creation was not confirmed may appear this long after the request, because a
# provider may finish a request whose connection is lost. A second batch would be paid for as well.
MOST_MAKING_S = 30.0
# A provider that cannot be reached for this long ends the run; its batches continue.
MOST_SILENCE_S = 3600.0
# For --via auto: rows that are sent live first. They show the time and tokens of a row, and reveal
# a wrong prompt before its rows wait for hours.
PROBE_ROWS = 20
# OpenAI lets a batch be `cancelling` for up to 10 minutes.
CANCEL_S = 600.0
_CANCEL_SHARE = 0.25
# The first rows may be faster than the others.
_LIVE_FACTOR = 1.5
_BAD_REPLIES = 2


class Pace(msgspec.Struct, frozen=True):
    """The pace of rows that are sent live.

    row_s: seconds of one row while all slots are in use. row_tokens: its tokens.
    """

    row_s: float
    row_tokens: float


def next_look_s(before_s: float | None) -> float:
    """Returns the seconds until a batch is polled again.

    before_s: the previous wait, None for the first poll.
    """
    return FIRST_LOOK_S if before_s is None else min(MOST_LOOK_S, before_s * LOOK_GROWTH)


def appears_s(making_wall_s: float, wall_s: float) -> float:
    """Returns the seconds in which a batch whose creation was not confirmed may still appear.

    Returns 0 also if the clock was set back meanwhile.
    """
    since_s = wall_s - making_wall_s
    return MOST_MAKING_S - since_s if 0 <= since_s < MOST_MAKING_S else 0.0


def fits(rows: int, size_bytes: int, more_bytes: int) -> bool:
    """Whether a request of this size may join a part of this many rows and bytes."""
    return rows < MOST_ROWS and (not rows or size_bytes + more_bytes <= MOST_BYTES)


def outcome_of(
    line: ResultLine,
    url: str,
    output_path: tuple[str | int, ...],
    wall_s: float,
    asked: Any = None,
) -> Outcome:
    """Returns the outcome of the row. url, asked: the path and the body of its request."""
    response, error = line.response, line.error
    try:
        if line.problem:
            raise BadReply(f"the row's line in the results cannot be read: {line.problem}")
        if response is None or not is_answered(line):
            raise unfinished(error.code, error.message) if error is not None else unfinished()
        body = bytes(response.body)
        status = number(response.status_code)
        if status is None:
            raise BadReply("the row's line in the results has no status")
        if not 200 <= status < 300:
            raise judge(status, {}, body, wall_s)
        reply = apis.read(url, body, output_path, asked, wall_s=wall_s)
        reply.status = status
        if isinstance(response.request_id, str):
            reply.request_id = response.request_id
        outcome = Outcome(status="succeeded", reply=reply)
    except (CallError, NoEndpoint) as failure:
        outcome = failed(failure)
    outcome.is_batched = True
    return outcome


def is_answered(line: ResultLine) -> bool:
    """Whether the line has an answer to the request, even one that cannot be read."""
    error = line.error
    is_error = error is not None and bool(error.code or error.message)
    return bool(line.problem) or (line.response is not None and not is_error)


def without_line(status: str, unread: int) -> CallError:
    """Returns the error of a row without a line in a batch of this status.

    unread: lines that name no row. Rows of a completed batch were answered and paid for, so they
    are sent again fewer times.
    """
    why = "no line for the row"
    if unread:
        why += f", and {counted(unread, 'line names', 'lines name')} no row"
    if status != "completed":
        return unfinished(message=why)
    return BadReply(f"the batch was completed without an answer: {why}")


def unfinished(code: object = None, message: object = None) -> ServerFailed:
    """Returns the error of a row that its batch has not answered."""
    why = ": ".join(str(part) for part in (code, message) if part)
    return ServerFailed(f"the batch ended without an answer: {why or 'no line for the row'}")


def is_sent_again(error: Exception | None, attempts: int, max_retries: float) -> bool:
    """Whether the row is put into another batch. attempts: the batches that it was in."""
    if not isinstance(error, Retryable):
        return False
    most = min(max_retries, _BAD_REPLIES) if isinstance(error, BadReply) else max_retries
    return attempts <= most


def is_full(problems: Sequence[Problem]) -> bool:
    """Whether the batch failed because batches of this account already hold too many tokens."""
    return any(problem.code == "token_limit_exceeded" for problem in problems)


def bad_lines(problems: Sequence[Problem]) -> dict[int, Rejected]:
    """Returns the lines, from 1, that made a batch fail, each with its error."""
    return {
        problem.line: Rejected(
            f"the Batch API rejected the row: {_reason(problem)}",
            hint="compare the row with the API's documentation; --dry-run shows a request",
        )
        for problem in problems
        if problem.line is not None
    }


def reasons_of(problems: Sequence[Problem]) -> str:
    """Returns the reasons why a batch failed, in one line."""
    return "; ".join(map(_reason, problems[:3])) or "the provider names no reason"


def _reason(problem: Problem) -> str:
    return ": ".join(part for part in (problem.code, problem.message) if part) or "no reason"


def live_s(rows: int, pace: Pace, limits: Limits, slots: int) -> float:
    """Estimates the seconds that `rows` rows take live.

    The maximum of the times that the slots and each stated limit require. All tokens of a row count
    in the limits of input and of output tokens, so this is an upper estimate.
    """
    requests, tokens = float(max(0, rows - 1)), rows * pace.row_tokens
    times = [math.ceil(rows / slots) * pace.row_s]
    times += [
        last_send_s(requests if kind == "requests" else tokens, rate, limits)
        for kind in KINDS
        for rate in limits.rates(kind)
    ]
    return max(times)


def margin_s(live_rest_s: float, deadline_s: float) -> float:
    """Returns how many seconds before its deadline a run cancels its batches.

    In that time, the unfinished rows run live.
    """
    return min(CANCEL_S, _CANCEL_SHARE * deadline_s) + _LIVE_FACTOR * live_rest_s
