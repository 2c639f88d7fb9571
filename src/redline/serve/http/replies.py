"""Encodes replies in the OpenAI API's format: whole, and as events of a stream."""

from __future__ import annotations

import uuid
from typing import Any

import msgspec

from redline.apis import (
    ChoicesWriter,
    Form,
    chat,
    completion_usage,
    completions,
    is_usage_event,
    responses,
)
from redline.calls import Reply
from redline.clock import SYSTEM
from redline.httpserver import header_lines
from redline.serve.http.refusals import Refusal
from redline.serve.http.requests import Asked

# The header line of an answer from the cache.
CACHED = header_lines({"x-redline-cache": "hit"})
# Finish reasons in redline that the API calls `stop`.
_STOPS = frozenset({None, "empty", "refusal"})
_FORMS = {chat.API.path: chat.FORM, completions.API.path: completions.FORM}


def body_of(asked: Asked, reply: Reply) -> bytes:
    """Returns the answer as JSON: the reply's own bytes, or a completion made from its output.

    Without such bytes, a request to a path other than chats and completions gets the output itself.
    Raises Refusal for an output that JSON cannot represent.
    """
    if reply.body:
        return reply.body
    form = _FORMS.get(asked.request.url)
    try:
        return msgspec.json.encode(_made(form, asked, reply) if form else reply.output)
    except (TypeError, ValueError, RecursionError) as error:
        raise Refusal(f"the answer is not JSON: {error}", status=502, code="bad_reply") from error


def events_of(data: Any, *, wants_usage: bool) -> list[Any]:
    """Returns the events for one chunk's data: usually the data, unchanged.

    A whole answer, from a backend that does not stream, becomes one event. The event with the
    usage, which redline requests from every server, goes only to clients that requested it, since
    it has no choices, and other clients read the first choice of each event.
    """
    if not isinstance(data, dict):
        return [data]
    if not wants_usage and is_usage_event(data):
        return []
    if data.get("object") == chat.FORM.whole:
        return [chat.event_of(data)]
    if data.get("object") == "response":
        return [responses.event_of(data)]
    return [data]


def _made(form: Form, asked: Asked, reply: Reply) -> dict[str, Any]:
    """Makes a completion, in the format of `form`, from the reply's output."""
    reasons = reply.finish_reasons
    choices = []
    for index, text in enumerate(_texts(reply.output)):
        # A backend may give one finish reason for all its texts.
        reason = reasons[index] if index < len(reasons) else reasons[0]
        reason = "stop" if reason in _STOPS else reason
        choices.append(
            form.choice(index, text, reason, tool_calls=None if index else reply.tool_calls)
        )
    writer = ChoicesWriter(form, uuid.uuid4().hex, int(SYSTEM.wall_s()), reply.model or asked.model)
    return writer.whole(choices, _usage(reply))


def _texts(output: Any) -> list[str | None]:
    """Returns the text of each choice. An output that is not text is encoded as JSON."""
    if isinstance(output, list) and output and all(isinstance(text, str) for text in output):
        return list(output)
    is_text = output is None or isinstance(output, str)
    return [output if is_text else msgspec.json.encode(output).decode()]


def _usage(reply: Reply) -> dict[str, Any] | None:
    read, written = reply.input_tokens, reply.output_tokens
    if reply.usage is not None or read is None or written is None:
        return reply.usage
    return completion_usage(read, written)
