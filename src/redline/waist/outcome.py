"""Defines the outcome of a call, which is a value and never an exception."""

from __future__ import annotations

from collections.abc import Mapping
from reprlib import Repr
from typing import Any, Literal

import msgspec

from redline.errors import CallError, NoEndpoint, Retryable, Withdrawn
from redline.structs import mutable

Status = Literal["succeeded", "rejected", "exhausted"]
# How many of the latest attempts an outcome keeps: an outage may cost a row any number of attempts.
MOST_TRIED = 32
# Short, so that a list of a thousand outcomes is readable in a notebook.
_SHORT = Repr()
_SHORT.maxstring = _SHORT.maxother = 200


@mutable
class Reply(msgspec.Struct, kw_only=True):
    """An answer that was read from a response.

    output: a string; a list of strings for several choices; a vector or a list of vectors for
    embeddings; the JSON value that `output_path` selects, or all JSON for an API that redline does
    not know; the result of a user's function; None or empty if there are only tool calls.
    finish_reason: in the words of chat (`stop`, `length`, `content_filter`, `tool_calls`), any
    other as the endpoint sent it; but `refusal` if the model refused, and `empty` if it stopped
    without any content. For several choices, finish_reason and tool_calls are lists with an item
    for each choice; tool_calls is None if no choice has any.
    headers: the HTTP response's headers, keyed by lower-case name; do not change them. Empty if
    there was no response, or if the answer is from a cache or a batch.
    request_id: the response's `x-request-id`; without one, the `id` of a chat, completion or
    response, or None.
    usage, model: as the endpoint sent them; None if it sent none. input_tokens, output_tokens: read
    from usage, None if unknown.
    body: the bytes of the response; for a stream, those of the same answer without streaming, or
    b"" for a chat or completion whose sink relays. status: the HTTP status of the response.
    """

    output: Any = None
    tool_calls: Any = None
    finish_reason: str | list[str | None] | None = None
    usage: dict[str, Any] | None = None
    model: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    body: bytes = b""
    status: int = 200
    headers: Mapping[str, str] = {}
    request_id: str | None = None

    def __repr__(self) -> str:
        """Leaves out `body`, which would repeat the output; a long output is cut."""
        names = ("output", "tool_calls", "finish_reason", "usage", "model")
        shown = ((name, getattr(self, name)) for name in names)
        return (
            f"Reply({', '.join(f'{name}={_SHORT.repr(value)}' for name, value in shown if value)})"
        )

    @property
    def finish_reasons(self) -> list[str | None]:
        """The finish reason of each choice, one or more."""
        reason = self.finish_reason
        return reason if isinstance(reason, list) else [reason]


class Attempt(msgspec.Struct, frozen=True):
    """One attempt at a call, with the monotonic times of its steps in seconds.

    error: the error that the attempt ended with; None if it was answered.
    sent_s: when its request was about to be written; None if the request was not written.
    first_byte_s: when the response began. complete_s: when the attempt was over.
    eligible_s: when the attempt began to wait for a slot or a connection. slot_s: when it got the
    slot. ahead_s: when it became one of the few attempts that may take a connection.
    connected_s: when it had a connection and began to wait for its grant. granted_s: when it got
    the grant. Each of these five is None if the attempt did not wait there.
    first_token_s: when the first event of a stream was read; None if the answer was not streamed.
    queued_s: when the call began to wait for its turn in the gateway, for room in the budget, for
    one of several endpoints or for its batch; None if it waited for none of these.

    A request that is written again on a new connection belongs to the same attempt, which has the
    times of the last write.
    """

    endpoint: str
    error: CallError | NoEndpoint | None
    sent_s: float | None
    first_byte_s: float | None
    complete_s: float
    eligible_s: float | None = None
    slot_s: float | None = None
    ahead_s: float | None = None
    connected_s: float | None = None
    granted_s: float | None = None
    first_token_s: float | None = None
    queued_s: float | None = None

    @property
    def was_sent(self) -> bool:
        """Whether the request was sent, so that the endpoint may have received it."""
        return self.sent_s is not None


@mutable
class Outcome(msgspec.Struct, kw_only=True):
    """The outcome of a call; every call that is not cancelled has exactly one.

    status: `succeeded`; `exhausted` if the call failed but may succeed later, usually because its
    retries or its time ran out; `rejected` for any other failure. reply: None if no answer was
    read; a failure has a reply if its answer was rejected, by `fail_on`, `after` or the task.
    error: None for a success. endpoint: the name of the endpoint of the last attempt, "" if it
    reached none. attempts: the number of attempts started, even if their requests were not written.
    latency_s: seconds from the write of the last attempt to its end; 0 if it was not written.
    tried: at most the 32 latest attempts, oldest first; for a row of a task, the attempts of all
    its requests. Empty if no attempt reached an endpoint or a function.
    is_cached: True if the answer is that of another call, earlier or at the same time; `attempts`
    is then 0, and the reply's usage is that of the other call. is_batched: True if the answer came
    from the Batch API, at its price; `latency_s` is then 0, and `attempts` counts batches.
    custom_id, row, input: the id, the number (from 1) and the contents of the row that the call was
    made for; None without a row or an id.
    fields: the results that a task derived from the answer.
    """

    status: Status
    reply: Reply | None = None
    error: CallError | NoEndpoint | None = None
    endpoint: str = ""
    attempts: int = 1
    tried: tuple[Attempt, ...] = ()
    latency_s: float = 0.0
    is_cached: bool = False
    is_batched: bool = False
    custom_id: str | None = None
    row: int | None = None
    input: Any = None
    fields: dict[str, Any] | None = None

    def __repr__(self) -> str:
        """Shows the row and its result; a long output is cut."""
        shown: dict[str, Any] = {} if self.row is None else {"row": self.row}
        shown["status"] = self.status
        if self.error is None:
            shown["output"] = self.output
        else:
            shown["error"] = str(self.error)
        return (
            f"Outcome({', '.join(f'{name}={_SHORT.repr(value)}' for name, value in shown.items())})"
        )

    def was_queued(self, since_s: float) -> None:
        """Records in the first attempt when the call began to wait in a queue before the attempt.

        since_s: monotonic time.
        """
        if self.tried:
            first, *others = self.tried
            self.tried = (msgspec.structs.replace(first, queued_s=since_s), *others)

    @property
    def is_success(self) -> bool:
        return self.status == "succeeded"

    @property
    def output(self) -> Any:
        """The reply's output; None without a reply. A rejected answer is an output, too."""
        return self.reply.output if self.reply is not None else None


def failed(error: CallError | NoEndpoint, *, endpoint: str = "", latency_s: float = 0.0) -> Outcome:
    """Returns the outcome of a failed attempt: `exhausted` if a retry may help.

    Otherwise the status is `rejected`.
    """
    status: Status = "exhausted" if isinstance(error, Retryable | Withdrawn) else "rejected"
    return Outcome(status=status, error=error, endpoint=endpoint, latency_s=latency_s)
