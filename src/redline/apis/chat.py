"""Defines POST /v1/chat/completions: messages in, a message for each choice out.

https://platform.openai.com/docs/api-reference/chat
"""

from __future__ import annotations

from functools import partial
from typing import Any

from msgspec import Struct

from redline.apis.api import Api
from redline.apis.choices import Form, Object, SampledRequest, read, read_usual, write_choice
from redline.apis.request_parts import Count, Messages


class Function(Struct, frozen=True):
    """The name of a tool, and the JSON schema of its arguments."""

    name: str
    parameters: Object | None = None


class Tool(Struct, frozen=True):
    """A tool that the model may call."""

    function: Function


class ToolChoice(Struct, frozen=True):
    """The tool that the model has to call."""

    function: Function


class Request(SampledRequest, kw_only=True):
    """The body of a request, as far as the simulated provider reads it."""

    messages: Messages
    max_completion_tokens: Count | None = None
    tools: list[Tool] | None = None
    tool_choice: str | ToolChoice | None = None
    parallel_tool_calls: bool | None = None


API = Api(
    path="/v1/chat/completions",
    prompt="messages",
    texts=("messages",),
    as_json=("tools", "functions", "response_format"),
    output_limits=("max_tokens", "max_completion_tokens"),
    has_system=True,
    is_streamed=True,
    read=read,
    read_usual=read_usual,
)


def _message(text: str | None, tool_calls: Any = None) -> Object:
    message: Object = {"role": "assistant", "content": text, "refusal": None}
    if tool_calls:
        message["tool_calls"] = tool_calls
    return message


def _delta(text: str | None, tool_calls: Any) -> Object:
    delta: Object = {"content": text} if text else {}
    if tool_calls:
        delta["tool_calls"] = tool_calls
    return delta


_piece = partial(write_choice, "delta", _delta)


def _opening(index: int) -> Object:
    return {**_piece(index, None), "delta": _message("")}


FORM = Form(
    id_prefix="chatcmpl",
    whole="chat.completion",
    event="chat.completion.chunk",
    choice=partial(write_choice, "message", _message),
    piece=_piece,
    opening=_opening,
)


def tool_call(name: str, tool: str, arguments: str) -> Object:
    """Returns a tool call. name: the call's id. tool: the tool's name. arguments: JSON."""
    return {"id": name, "type": "function", "function": {"name": tool, "arguments": arguments}}


def call_piece(index: int, position: int, call: Object) -> Object:
    """Returns a choice of an event, with a new part of a tool call.

    index: that of the choice. position: the index of the tool call. call: its new part.
    """
    return _piece(index, None, tool_calls=[{"index": position, **call}])


def event_of(whole: Object) -> Object:
    """Returns the event of a one-event stream, which contains the whole answer."""
    choices = []
    for choice in whole.get("choices") or []:
        rest = dict(choice)
        delta = dict(rest.pop("message", None) or {})
        if delta.get("tool_calls"):
            delta["tool_calls"] = [{"index": i, **c} for i, c in enumerate(delta["tool_calls"])]
        choices.append({**rest, "delta": delta})
    return {**whole, "object": FORM.event, "choices": choices}
