"""The outcome of a call: a value, never an exception."""

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

    output: a text; a list of texts for n > 1; a vector or a list of vectors for embeddings; the
    JSON value itself from a plain endpoint.
    finish_reason: as the endpoint sent it (`stop`, `length`, `content_filter`, `tool_calls`, ...),
    but `refusal` if the model refused and `empty` if it stopped without any content. For n > 1,
    finish_reason and tool_calls are lists with an item for each choice; tool_calls is None if no
    choice has any.
    headers: the headers of the HTTP response, by lower-case names; do not change them. Empty if
    there was no response.
    usage: as the endpoint sent it. input_tokens, output_tokens: read from usage, None if unknown.
    body: the bytes of the response; status: its HTTP status.
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
        """Returns a text without the body, which would repeat the output; a long output is cut."""
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
    """One attempt at a call, with the times of its steps by the monotonic clock.

    error: the error that it ended with; None if it was answered.
    sent_s: the time just before its request was written; None if the request was not written.
    first_byte_s: when the response began. complete_s: when the attempt was over.
    eligible_s: when it began to wait for a slot or a connection. slot_s: when it got the slot that
    it waited for. ahead_s: when it became one of the few that may get ready for their grants.
    connected_s: when it had a connection and began to wait for its grant. granted_s: when it got
    the grant that it waited for. Each of these five is None if there was no such wait.
    first_token_s: when the first event of a stream was read; None for an answer that came whole.
    queued_s: when the call began to wait for room in the budget, or for one of several endpoints.

    A request that was repeated on a new connection is one attempt, with the times of its last
    write.
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
        """Whether its request was sent, so that the endpoint may have received it."""
        return self.sent_s is not None


@mutable
class Outcome(msgspec.Struct, kw_only=True):
    """The outcome of a call; each call has exactly one.

    status: `succeeded`; `rejected` if it will never succeed; `exhausted` if its retries or its time
    ran out.
    latency_s: from the write of the last attempt to the end of its response.
    tried: at most the 32 latest attempts, oldest first; for a row of a task, those of all its
    requests. Empty if no request was made.
    is_cached: the answer was given to another call, now or before; attempts is then 0, and usage is
    what the answer cost when it was given. is_batched: the answer came from the Batch API, at its
    price; latency_s is then 0, and attempts counts batches.
    custom_id, row and input identify the row if the call came from one. fields: the results that a
    task derived from the answer.
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
        """Returns the row and its result as a text; a long output is cut."""
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
        """Records in the first attempt when the call began to wait in a queue before it."""
        if self.tried:
            first, *others = self.tried
            self.tried = (msgspec.structs.replace(first, queued_s=since_s), *others)

    @property
    def is_success(self) -> bool:
        return self.status == "succeeded"

    @property
    def output(self) -> Any:
        """The reply's output; None for a failure."""
        return self.reply.output if self.reply is not None else None


def failed(error: CallError | NoEndpoint, *, endpoint: str = "", latency_s: float = 0.0) -> Outcome:
    """Returns the outcome of a failed attempt: `exhausted` if the error is retryable."""
    status: Status = "exhausted" if isinstance(error, Retryable | Withdrawn) else "rejected"
    return Outcome(status=status, error=error, endpoint=endpoint, latency_s=latency_s)
