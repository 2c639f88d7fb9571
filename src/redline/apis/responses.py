"""Defines POST /v1/responses: input items in, output items out, such as messages and tool calls.

https://platform.openai.com/docs/api-reference/responses
"""

from __future__ import annotations

from typing import Any

import msgspec

from redline.apis.api import Api, Envelope
from redline.apis.error_inside import judge_part
from redline.apis.request_parts import Count, Messages, ResponseFormat
from redline.errors import BadReply
from redline.waist import Reply

# Tool calls that the client must run; the provider runs all others, such as web_search_call.
_CALLERS_TOOLS = frozenset(
    {
        *("function_call", "custom_tool_call"),
        *("computer_call", "local_shell_call", "apply_patch_call"),
    }
)
# A response may also be `failed`, `queued`, `in_progress` or `cancelled`.
_ENDED = frozenset({None, "completed", "incomplete"})
_LAST_EVENTS = frozenset({"response.completed", "response.incomplete", "response.failed"})


class TextOptions(msgspec.Struct):
    """The part of a request that contains its response format."""

    format: ResponseFormat | None = None


class Request(msgspec.Struct):
    """The body of a request, as far as the simulated provider reads it."""

    model: str
    input: str | Messages
    instructions: str | None = None
    max_output_tokens: Count | None = None
    stream: bool | None = None
    text: TextOptions | None = None


class _Part(msgspec.Struct):
    type: str = ""
    text: str | None = None
    refusal: str | None = None


class _Item(msgspec.Struct):
    type: str = ""
    content: list[_Part] | None = None


class _Reply(Envelope, kw_only=True):
    output: list[msgspec.Raw]
    status: str | None = None
    incomplete_details: dict[str, Any] | None = None


_REPLY = msgspec.json.Decoder(_Reply)
_ITEM = msgspec.json.Decoder(_Item)


def read(body: bytes, asked: dict[str, Any] | None) -> Reply:
    """Reads a body whose output is its text, or its refusal if it has no text; see `Api.read`."""
    reply = _REPLY.decode(body)
    if reply.error:
        raise judge_part("the response failed", reply.error)
    if reply.status == "failed":
        raise BadReply("the response failed without giving a reason")
    if reply.status not in _ENDED:
        waits = reply.status in ("queued", "in_progress")
        hint = "remove `background`: redline does not wait for stored responses" if waits else ""
        raise BadReply(f"the response is not complete: its status is `{reply.status}`", hint=hint)
    texts, refusals, tool_calls = [], [], []
    for raw in reply.output:
        item = _ITEM.decode(raw)
        if item.type == "message":
            parts = item.content or []
            texts += [part.text or "" for part in parts if part.type != "refusal"]
            refusals += [part.refusal or "" for part in parts if part.type == "refusal"]
        elif item.type.endswith("_call"):
            tool_calls.append(msgspec.json.decode(raw))
    text = "".join(texts) or "".join(refusals)
    reason = "stop"
    if reply.status == "incomplete":
        cause = (reply.incomplete_details or {}).get("reason", "incomplete")
        reason = "length" if cause == "max_output_tokens" else str(cause)
    elif refusals:
        reason = "refusal"
    elif any(call["type"] in _CALLERS_TOOLS for call in tool_calls):
        reason = "tool_calls"
    elif not text:
        reason = "empty"
    return Reply(
        output=text,
        tool_calls=tool_calls or None,
        finish_reason=reason,
        usage=reply.usage,
        model=reply.model,
        request_id=reply.request_id,
    )


API = Api(
    path="/v1/responses",
    prompt="input",
    texts=("input", "instructions"),
    as_json=("tools", "text"),
    output_limits=("max_output_tokens",),
    has_system=True,
    is_streamed=True,
    read=read,
)


def whole(name: str, created_s: int, text: str, *, is_cut: bool, **fields: Any) -> dict[str, Any]:
    """Returns the answer with this text. is_cut: whether the token limit cut the text.

    name: the ids of the response and its message, without prefixes. created_s: wall time in whole
    seconds. fields: more fields, such as `model` and `usage`.
    """
    status = "incomplete" if is_cut else "completed"
    part = {"type": "output_text", "text": text, "annotations": []}
    message = {
        "type": "message",
        "id": f"msg-{name}",
        "status": status,
        "role": "assistant",
        "content": [part],
    }
    return {
        "id": f"resp-{name}",
        "object": "response",
        "created_at": created_s,
        "status": status,
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
        "output": [message],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        **fields,
    }


def event_of(whole: dict[str, Any]) -> dict[str, Any]:
    """Returns the event of a one-event stream, which contains the whole response."""
    return {"type": "response.completed", "sequence_number": 0, "response": whole}


def text_of_event(event: dict[str, Any]) -> str:
    """Returns the text that an event adds; empty if it adds none."""
    is_text = event.get("type") == "response.output_text.delta"
    return str(event.get("delta", "")) if is_text else ""


def is_last(event: dict[str, Any]) -> bool:
    """Whether the event contains the whole response."""
    return event.get("type") in _LAST_EVENTS
