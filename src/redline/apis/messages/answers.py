"""Converts answers of chat to messages of the Messages API.

finish_reason                       stop_reason
stop, none, or any other            end_turn; tool_use if tools are called; stop_sequence if the
                                    server sends the sequence found, as vLLM and SGLang do
length, model_length                max_tokens
content_filter, or a refusal        refusal
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import msgspec

from redline.apis.choices import is_filtered, text_of
from redline.apis.loose_json import decoded
from redline.apis.usage import read_usage
from redline.errors import BadReply

Object = dict[str, Any]

# The key in a tool's input for arguments that are not a JSON object.
INVALID_JSON = "INVALID_JSON"


def message_of(
    chat: Mapping[str, Any], *, model: str = "", stop_sequences: Collection[str] = ()
) -> Object:
    """Converts a chat's first choice to a message.

    model: the message's model if the answer has none. stop_sequences: those of the request. If a
    tool call's arguments are not a JSON object, its input is an object with the arguments under
    INVALID_JSON. The model's thinking is left out: a thinking block needs a signature, which chat
    servers do not provide. Raises BadReply for an answer that is not a chat.
    """
    try:
        choice = chat["choices"][0]
        said = choice.get("message")
        if said is None and is_filtered(choice.get("finish_reason")):
            said = {}
        content = [*_content(said)]
        is_called = any(block["type"] == "tool_use" for block in content)
        reason, sequence = stop_of(
            choice, stop_sequences, is_called=is_called, is_refused=bool(said.get("refusal"))
        )
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise BadReply("the answer has no message that can be read") from error
    return {
        **opening(chat, model),
        "content": content,
        "stop_reason": reason,
        "stop_sequence": sequence,
        "usage": usage_of(chat.get("usage")),
    }


def opening(chat: Mapping[str, Any], model: str) -> Object:
    """Returns an unfinished message without content. chat: a chat, or its stream's first event."""
    name, stated = chat.get("id"), chat.get("model")
    name = name.removeprefix("chatcmpl-") if isinstance(name, str) else ""
    return {
        "id": f"msg_{name or uuid.uuid4().hex}",
        "type": "message",
        "role": "assistant",
        "model": stated if isinstance(stated, str) and stated else model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage_of(chat.get("usage")),
    }


def stop_of(
    choice: Mapping[str, Any],
    stop_sequences: Collection[str],
    *,
    is_called: bool,
    is_refused: bool = False,
) -> tuple[str, str | None]:
    """Returns the stop_reason and stop_sequence of a choice that has ended.

    choice: the whole choice, or its part in the last event of a stream. is_called: whether the
    choice calls a tool. is_refused: whether the model refused.
    """
    if is_refused or is_filtered(choice.get("finish_reason")):
        return "refusal", None
    if choice.get("finish_reason") in ("length", "model_length"):
        return "max_tokens", None
    if is_called:
        return "tool_use", None
    for name in ("stop_reason", "matched_stop"):
        found = choice.get(name)
        if isinstance(found, str) and found in stop_sequences:
            return "stop_sequence", found
    return "end_turn", None


def usage_of(usage: Any) -> Object:
    """Converts the usage of a chat to that of a message; zeros if the server sends no usage."""
    found = read_usage(usage if isinstance(usage, dict) else None)
    if found is None:
        return {"input_tokens": 0, "output_tokens": 0}
    return {
        "input_tokens": found.input,
        "cache_creation_input_tokens": found.written,
        "cache_read_input_tokens": found.cached,
        "output_tokens": found.output,
    }


def tool_use(call: Mapping[str, Any], arguments: Any = None) -> Object:
    """Returns the tool_use block of a call. arguments: all of them; None at the call's start."""
    name = call.get("id")
    return {
        "type": "tool_use",
        "id": name if isinstance(name, str) and name else f"toolu_{uuid.uuid4().hex}",
        "name": call["function"]["name"],
        "input": _input(arguments),
    }


def _content(said: Mapping[str, Any]) -> Iterator[Object]:
    for text in (text_of(said.get("content")), said.get("refusal")):
        if text:
            if not isinstance(text, str):
                raise TypeError
            yield {"type": "text", "text": text}
    for call in said.get("tool_calls") or ():
        yield tool_use(call, call["function"].get("arguments"))


def _input(arguments: Any) -> Object:
    """Returns the input of a tool_use block. arguments: JSON text, or the decoded value."""
    if isinstance(arguments, dict):
        return arguments
    if not arguments:
        return {}
    text = arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()
    if not text.strip():
        return {}
    try:
        found = decoded(text.encode())
    except (ValueError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {INVALID_JSON: text}
