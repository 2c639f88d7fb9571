"""Decides what happens to batches and their rows, in plain functions that never wait.

a batch that is           its answered rows  its other rows
completed                 are saved          are looked for again, then sent again, at most twice
expired                   are saved          are sent again, at most --max-retries times
cancelled by redline      are saved          are sent live
cancelled otherwise       are saved          are left for the next run; this run ends
failed for lack of room                      wait for another batch to end, or are split in half
failed because of lines                      fail if their lines are bad; otherwise are sent again
failed otherwise                             are left for the next run, or are sent live by `auto`

If the answer is a retryable error, the row is sent again instead, at most --max-retries times; if
it cannot be read, at most twice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec

from redline.apis import UNFINISHED, Problem, ResultLine, judge, number
from redline.apis import replies as apis
from redline.calls import Outcome, failed
from redline.errors import BadReply, CallError, NoEndpoint, Rejected, Retryable, ServerFailed
from redline.limits import Limits
from redline.limits.rule import KINDS, last_send_s
from redline.process import counted

# OpenAI allows at most 50,000 requests, 200 MB and, for embeddings, 50,000 inputs in a file. Older
# servers with its API accept only 100 MB, and a file is in memory while it is uploaded.
MOST_ROWS = 50_000
MOST_BYTES = 100 * 10**6
# A batch ends within seconds at a server of your own, and within minutes to hours at a provider. So
# polls become rarer: 13 in the first two minutes, later one a minute.
FIRST_LOOK_S, LOOK_GROWTH, MOST_LOOK_S = 0.25, 1.5, 60.0
# Some providers process an uploaded file first. After this long, a batch is created from the file
# even if the provider still reports it as pending.
MOST_PROCESSING_S = 600.0
# A server that reports `completed` before the results can be read has this long to return them.
# Without that wait, rows would be sent and paid for again.
MOST_RESULTS_S = 30.0
# Some of a provider's servers may not know a new batch yet. So a batch counts as lost only if the
# provider has reported it as unknown for this long.
MOST_LOST_S = 30.0
# A batch whose creation was not confirmed may appear up to this long after the request, because a
# provider may finish a request whose connection is lost. A second batch would be paid for as well.
MOST_MAKING_S = 30.0
# A provider that cannot be reached for this long ends the run; its batches continue.
MOST_SILENCE_S = 3600.0
# The number of rows that --via auto sends live first, unless the ledger has the pace of an earlier
# run. They show the time and tokens that a row takes, and reveal a wrong prompt before rows wait
# for hours.
PROBE_ROWS = 20
# OpenAI lets a batch be `cancelling` for up to 10 minutes.
CANCEL_S = 600.0
_CANCEL_SHARE = 0.25
# The first rows may be faster than the others.
_LIVE_FACTOR = 1.5
# If no pace is known, a row is assumed to take this long, but all rows together at most this share
# of the deadline: with the factor above and the time to cancel, a quarter is left for the batches.
_ASSUMED_ROW_S, _ASSUMED_SHARE = 30.0, 1 / 3
_BAD_REPLIES = 2
# The error codes of rows that the provider did not process before their batch ended. An error with
# any other code may be permanent.
_NOT_TRIED = [code for code, _ in UNFINISHED.values()]


class Pace(msgspec.Struct, frozen=True):
    """The pace of rows that are sent live.

    row_s: the seconds that a row takes while all slots are in use. row_tokens: the mean number of
    tokens per row.
    """

    row_s: float
    row_tokens: float


def next_look_s(before_s: float | None) -> float:
    """Returns the seconds until a batch is polled again.

    before_s: the previous wait, None for the first poll.
    """
    return FIRST_LOOK_S if before_s is None else min(MOST_LOOK_S, before_s * LOOK_GROWTH)


def appears_s(making_wall_s: float, wall_s: float) -> float:
    """Returns for how many more seconds a batch whose creation was not confirmed may appear.

    making_wall_s: when its creation was requested. wall_s: the time now. Returns 0 if the batch can
    no longer appear, or if the clock has been set back.
    """
    since_s = wall_s - making_wall_s
    return MOST_MAKING_S - since_s if 0 <= since_s < MOST_MAKING_S else 0.0


def fits(inputs: int, size_bytes: int, more_inputs: int, more_bytes: int) -> bool:
    """Whether a request fits into a part; any request fits into an empty part.

    inputs, size_bytes: of the requests in the part. more_inputs, more_bytes: of this request. Each
    request has at least one input.
    """
    is_small = inputs + more_inputs <= MOST_ROWS and size_bytes + more_bytes <= MOST_BYTES
    return not inputs or is_small


def outcome_of(
    line: ResultLine,
    url: str,
    output_path: tuple[str | int, ...],
    wall_s: float,
    asked: Any = None,
) -> Outcome:
    """Returns the outcome that a line of the results gives to its row.

    url, asked: the path and the body of the row's request. wall_s: the wall time now.
    """
    response, error = line.response, line.error
    try:
        if line.problem:
            raise BadReply(f"the row's line in the results cannot be read: {line.problem}")
        if response is None or not is_answered(line):
            why = "" if error is None else _joined(error.code, error.message)
            if error is not None and why and error.code not in _NOT_TRIED:
                raise BadReply(f"the batch has an error instead of an answer: {why}")
            raise unfinished(why)
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
    """Whether the line has an answer to the request, even an answer that cannot be read."""
    response, error = line.response, line.error
    if line.problem or response is None:
        return bool(line.problem)
    # Some providers repeat the error of a failed response in the line's `error`.
    is_failure = (number(response.status_code) or 0) >= 400
    return is_failure or error is None or not (error.code or error.message)


def without_line(status: str, unread: int) -> CallError:
    """Returns the error of a row that has no line in the results of its batch.

    status: the batch's final status. unread: the number of lines that name no row. The rows of a
    completed batch were answered and paid for, so their error is a BadReply, after which a row is
    sent again fewer times.
    """
    why = "no line for the row"
    if unread:
        why += f", and {counted(unread, 'line names', 'lines name')} no row"
    if status != "completed":
        return unfinished(why)
    return BadReply(f"the batch was completed without an answer: {why}")


def unfinished(why: str = "") -> ServerFailed:
    """Returns the error of a row that its batch has not answered."""
    return ServerFailed(f"the batch ended without an answer: {why or 'no line for the row'}")


def _joined(*parts: object) -> str:
    return ": ".join(str(part) for part in parts if part)


def is_sent_again(error: Exception | None, attempts: int, max_retries: float) -> bool:
    """Whether a row is put into another batch. attempts: the number of batches that it was in."""
    if not isinstance(error, Retryable):
        return False
    most = min(max_retries, _BAD_REPLIES) if isinstance(error, BadReply) else max_retries
    return attempts <= most


def is_full(problems: Sequence[Problem]) -> bool:
    """Whether the batch failed because batches of this account already hold too many tokens."""
    return any(problem.code == "token_limit_exceeded" for problem in problems)


def bad_lines(problems: Sequence[Problem]) -> dict[int, Rejected]:
    """Returns the errors of the lines that made a batch fail, by line number from 1."""
    return {
        problem.line: Rejected(
            f"the Batch API rejected the row: {_reason(problem)}",
            hint="compare the request with the API's documentation; --dry-run shows the first one",
        )
        for problem in problems
        if problem.line is not None
    }


def reasons_of(problems: Sequence[Problem]) -> str:
    """Returns the first three reasons why a batch failed, in one line of text."""
    return "; ".join(map(_reason, problems[:3])) or "the provider gives no reason"


def _reason(problem: Problem) -> str:
    return _joined(problem.code, problem.message) or "no reason"


def live_s(rows: int, pace: Pace, limits: Limits, slots: int) -> float:
    """Estimates the seconds that `rows` rows take live.

    The estimate is the longest of the times that the slots and each given limit require. It is an
    upper estimate, because all tokens of a row count against the limits of both input and output.
    """
    requests, tokens = float(max(0, rows - 1)), rows * pace.row_tokens
    times = [math.ceil(rows / slots) * pace.row_s]
    times += [
        last_send_s(requests if kind == "requests" else tokens, rate, limits)
        for kind in KINDS
        for rate in limits.rates(kind)
    ]
    return max(times)


def assumed_pace(rows: int, slots: int, deadline_s: float) -> Pace:
    """Returns the pace of `rows` rows if earlier runs have sent none live.

    deadline_s: the length of the run's deadline.
    """
    most_s = _ASSUMED_SHARE * deadline_s / max(1, math.ceil(rows / slots))
    return Pace(row_s=min(_ASSUMED_ROW_S, most_s), row_tokens=0.0)


def margin_s(live_rest_s: float, deadline_s: float) -> float:
    """Returns how many seconds before its deadline a run gives up on its batches.

    Before they are cancelled, it cancels them then: the provider has 10 minutes for this, or a
    quarter of a deadline below 40 minutes. Afterwards, it stops waiting for them then. In the
    remaining time, the unfinished rows are sent live. live_rest_s: the estimate of `live_s` for
    these rows. deadline_s: the length of the run's deadline, or 0 if the batches are already being
    cancelled.
    """
    return min(CANCEL_S, _CANCEL_SHARE * deadline_s) + _LIVE_FACTOR * live_rest_s
