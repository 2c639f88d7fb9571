"""Answers as the OpenAI API writes them, whole and as events of a stream."""

from __future__ import annotations

import uuid
from typing import Any

import msgspec

from redline.calls import Reply
from redline.clock import SYSTEM
from redline.serve.http.refusals import Refusal
from redline.serve.http.requests import Asked

# redline's own words for ends that the API calls `stop`.
_STOPS = frozenset({None, "empty", "refusal"})


def body_of(asked: Asked, reply: Reply) -> bytes:
    """The answer's JSON: the reply's own bytes; else a completion made of its output.

    What is asked of other paths is answered with the output as it is. Raises Refusal for an output
    that JSON cannot hold.
    """
    if reply.body:
        return reply.body
    is_completion = asked.request.url.endswith("/completions")
    try:
        return msgspec.json.encode(_completion(asked, reply) if is_completion else reply.output)
    except (TypeError, ValueError, RecursionError) as error:
        raise Refusal(f"the answer is not JSON: {error}", status=502, code="bad_reply") from error


def events_of(data: Any, *, wants_usage: bool) -> list[Any]:
    """What is sent for one chunk's data: mostly that data, as it is.

    A whole answer, from a backend that does not stream, becomes a chunk. The event with the usage,
    for which redline asks every server, goes only to a client that asked for it: it has no
    choices, and others read the first of them.
    """
    if not isinstance(data, dict):
        return [data]
    if not wants_usage and data.get("choices") == [] and data.get("usage"):
        return []
    if data.get("object") == "chat.completion":
        return [_as_chunk(data)]
    if data.get("object") == "response":
        return [{"type": "response.completed", "sequence_number": 0, "response": data}]
    return [data]


def _as_chunk(whole: dict[str, Any]) -> dict[str, Any]:
    choices = []
    for choice in whole.get("choices") or []:
        rest = dict(choice)
        delta = dict(rest.pop("message", None) or {})
        if delta.get("tool_calls"):
            delta["tool_calls"] = [{"index": i, **c} for i, c in enumerate(delta["tool_calls"])]
        choices.append({**rest, "delta": delta})
    return {**whole, "object": "chat.completion.chunk", "choices": choices}


def _completion(asked: Asked, reply: Reply) -> dict[str, Any]:
    is_chat = asked.request.url.endswith("/chat/completions")
    reasons = reply.finish_reasons
    choices = []
    for index, text in enumerate(_texts(reply.output)):
        # One for all, if a backend of the user's own states one for several texts.
        reason = reasons[index] if index < len(reasons) else reasons[0]
        reason = "stop" if reason in _STOPS else reason
        said: dict[str, Any] = {"text": text or ""}
        if is_chat:
            said = {"message": {"role": "assistant", "content": text}}
            if reply.tool_calls and index == 0:
                said["message"]["tool_calls"] = reply.tool_calls
        choices.append({"index": index, **said, "logprobs": None, "finish_reason": reason})
    return {
        "id": f"{'chatcmpl' if is_chat else 'cmpl'}-{uuid.uuid4().hex}",
        "object": "chat.completion" if is_chat else "text_completion",
        "created": int(SYSTEM.wall_s()),
        "model": reply.model or asked.model,
        "choices": choices,
        "usage": _usage(reply),
    }


def _texts(output: Any) -> list[str | None]:
    """The text of each choice; what is no text becomes JSON."""
    if isinstance(output, list) and output and all(isinstance(text, str) for text in output):
        return list(output)
    is_text = output is None or isinstance(output, str)
    return [output if is_text else msgspec.json.encode(output).decode()]


def _usage(reply: Reply) -> dict[str, Any] | None:
    read, written = reply.input_tokens, reply.output_tokens
    if reply.usage is not None or read is None or written is None:
        return reply.usage
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}
