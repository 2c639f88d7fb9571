"""Answers as the OpenAI API writes them, whole and as events of a stream."""

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

# The header line of a stored answer.
CACHED = header_lines({"x-redline-cache": "hit"})
# redline's own words for ends that the API calls `stop`.
_STOPS = frozenset({None, "empty", "refusal"})
_FORMS = {chat.API.path: chat.FORM, completions.API.path: completions.FORM}


def body_of(asked: Asked, reply: Reply) -> bytes:
    """The answer's JSON: the reply's own bytes, otherwise a completion made of its output.

    Requests to other paths are answered with the output itself. Raises Refusal for an output that
    JSON cannot represent.
    """
    if reply.body:
        return reply.body
    form = _FORMS.get(asked.request.url)
    try:
        return msgspec.json.encode(_made(form, asked, reply) if form else reply.output)
    except (TypeError, ValueError, RecursionError) as error:
        raise Refusal(f"the answer is not JSON: {error}", status=502, code="bad_reply") from error


def events_of(data: Any, *, wants_usage: bool) -> list[Any]:
    """The events for one chunk's data: usually that data, unchanged.

    A whole answer, from a backend that does not stream, becomes an event. The event with the usage,
    which redline requests from every server, goes only to a client that asked for it: it has no
    choices, and other clients read the first choice of each event.
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
    """The answer that has the reply's output."""
    reasons = reply.finish_reasons
    choices = []
    for index, text in enumerate(_texts(reply.output)):
        # A backend may state one reason for all of its texts.
        reason = reasons[index] if index < len(reasons) else reasons[0]
        reason = "stop" if reason in _STOPS else reason
        choices.append(
            form.choice(index, text, reason, tool_calls=None if index else reply.tool_calls)
        )
    writer = ChoicesWriter(form, uuid.uuid4().hex, int(SYSTEM.wall_s()), reply.model or asked.model)
    return writer.whole(choices, _usage(reply))


def _texts(output: Any) -> list[str | None]:
    """The text of each choice; what is not text becomes JSON."""
    if isinstance(output, list) and output and all(isinstance(text, str) for text in output):
        return list(output)
    is_text = output is None or isinstance(output, str)
    return [output if is_text else msgspec.json.encode(output).decode()]


def _usage(reply: Reply) -> dict[str, Any] | None:
    read, written = reply.input_tokens, reply.output_tokens
    if reply.usage is not None or read is None or written is None:
        return reply.usage
    return completion_usage(read, written)
