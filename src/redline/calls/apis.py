"""Reading replies: chat completions, completions, embeddings, responses, and plain JSON.

The API is known by the last part of the request's path. `read` raises BadReply for a body that is
not what the API promises, so that it is tried again like any other fault.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgspec

from redline.calls.outcome import Reply
from redline.errors import BadReply

_LONGEST_QUOTE = 120
# The calls that the caller must answer; the others, such as web_search_call, are done already.
_CALLERS_TOOLS = frozenset({"function_call", "custom_tool_call"})


class _Lenient(msgspec.Struct):
    """Base of the reply shapes: unknown fields are skipped, whatever they hold."""


class _Message(_Lenient):
    content: Any = None
    refusal: Any = None
    tool_calls: Any = None
    function_call: Any = None


class _Choice(_Lenient):
    message: _Message | None = None
    text: Any = None
    finish_reason: str | None = None


class _Completion(_Lenient):
    choices: list[_Choice]
    usage: dict[str, Any] | None = None
    model: str | None = None
    id: Any = None


class _Vector(_Lenient):
    embedding: Any
    index: int = 0


class _Embeddings(_Lenient):
    data: list[_Vector]
    usage: dict[str, Any] | None = None
    model: str | None = None


class _Part(_Lenient):
    type: str = ""
    text: str | None = None
    refusal: str | None = None


class _Item(_Lenient):
    type: str = ""
    content: list[_Part] | None = None


class _Response(_Lenient):
    output: list[msgspec.Raw]
    status: str | None = None
    incomplete_details: dict[str, Any] | None = None
    error: Any = None
    usage: dict[str, Any] | None = None
    model: str | None = None
    id: Any = None


_COMPLETION = msgspec.json.Decoder(_Completion)
_EMBEDDINGS = msgspec.json.Decoder(_Embeddings)
_RESPONSE = msgspec.json.Decoder(_Response)
_ITEM = msgspec.json.Decoder(_Item)


def read(url: str, body: bytes, output_path: tuple[str | int, ...] = ()) -> Reply:
    """The reply that `body` holds for a call to `url`.

    output_path: picks the answer from the JSON, for any API. Raises BadReply.
    """
    path, api = _api_of(url)
    try:
        if output_path:
            reply = _read_plain(body, output_path)
        elif api == "completions":
            reply = _read_completion(_COMPLETION.decode(body))
        elif api == "embeddings":
            reply = _read_embeddings(_EMBEDDINGS.decode(body))
        elif api == "responses":
            reply = _read_response(_RESPONSE.decode(body))
        else:
            reply = _read_plain(body, ())
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadReply(
            f"the answer is not what {path} promises: {error}; it begins {quote(body)}",
            hint=_page_hint(body),
        ) from error
    _count_tokens(reply)
    reply.body = body
    return reply


@lru_cache(maxsize=1024)
def _api_of(url: str) -> tuple[str, str]:
    """The path of a call without its query, and the last part of it."""
    path = url.partition("?")[0].rstrip("/")
    return path, path.rpartition("/")[2]


def _read_completion(reply: _Completion) -> Reply:
    choices = reply.choices
    if not choices:
        raise msgspec.ValidationError("`choices` is empty")
    first = choices[0]
    output = text = _choice_text(first)
    if len(choices) > 1:
        output = [text, *(_choice_text(choice) for choice in choices[1:])]
    tool_calls = None
    if first.message is not None:
        tool_calls = first.message.tool_calls or first.message.function_call
    return Reply(
        output=output,
        tool_calls=tool_calls,
        finish_reason=_finish(first, text),
        usage=reply.usage,
        model=reply.model,
        request_id=reply.id if isinstance(reply.id, str) else None,
    )


def _choice_text(choice: _Choice) -> Any:
    if choice.message is None:
        if choice.text is None:
            raise msgspec.ValidationError("a choice has neither `message` nor `text`")
        return choice.text
    message = choice.message
    content = message.content
    if type(content) is str:
        return content
    content = text_of(content)
    if content is None and message.refusal:
        return message.refusal
    return content


def text_of(content: Any) -> Any:
    """The content as it is, but the texts of a list of parts joined."""
    if not isinstance(content, list):
        return content
    texts = (part.get("text") for part in content if isinstance(part, dict))
    return "".join(text for text in texts if isinstance(text, str))


def _finish(choice: _Choice, output: Any) -> str | None:
    message = choice.message
    if message is not None and message.refusal:
        return "refusal"
    has_tools = message is not None and (message.tool_calls or message.function_call)
    if output in (None, "") and not has_tools and choice.finish_reason in (None, "stop"):
        return "empty"
    return choice.finish_reason


def _read_embeddings(reply: _Embeddings) -> Reply:
    if not reply.data:
        raise msgspec.ValidationError("`data` is empty")
    vectors = [item.embedding for item in sorted(reply.data, key=lambda item: item.index)]
    return Reply(
        output=vectors[0] if len(vectors) == 1 else vectors, usage=reply.usage, model=reply.model
    )


def _read_response(reply: _Response) -> Reply:
    if reply.status == "failed" or reply.error:
        raise msgspec.ValidationError(f"the response failed: {reply.error}")
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
        request_id=reply.id if isinstance(reply.id, str) else None,
    )


def _read_plain(body: bytes, output_path: tuple[str | int, ...]) -> Reply:
    whole = msgspec.json.decode(body)
    value = whole
    for step in output_path:
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            path = ".".join(map(str, output_path))
            raise msgspec.ValidationError(f"--output-path {path} finds no `{step}`") from None
    usage = whole.get("usage") if isinstance(whole, dict) else None
    model = whole.get("model") if isinstance(whole, dict) else None
    return Reply(
        output=value,
        usage=usage if isinstance(usage, dict) else None,
        model=model if isinstance(model, str) else None,
    )


def _count_tokens(reply: Reply) -> None:
    """Reads the token counts out of the reply's usage."""
    usage = reply.usage
    if usage is None:
        return
    value = usage.get("prompt_tokens")
    if value is None:
        value = usage.get("input_tokens")
    if type(value) is int and value >= 0:
        reply.input_tokens = value
    value = usage.get("completion_tokens")
    if value is None:
        value = usage.get("output_tokens")
    if type(value) is int and value >= 0:
        reply.output_tokens = value


def quote(body: bytes) -> str:
    """The beginning of a body, on one line, for a message."""
    line = " ".join(body[: 2 * _LONGEST_QUOTE].decode("utf-8", "replace").split())
    cut = line if len(line) <= _LONGEST_QUOTE else line[: _LONGEST_QUOTE - 3] + "..."
    return f"`{cut}`" if cut else "with nothing at all"


def _page_hint(body: bytes) -> str:
    if body.lstrip()[:1] == b"<":
        return "this is a web page; check that --base-url ends in the API's /v1"
    return "check --base-url and --url"
