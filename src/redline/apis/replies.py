"""Reading replies: chat completions, completions, embeddings, responses, and plain JSON.

The API is known by the last part of the request's path. `read` raises BadReply for a body that is
not what the API promises, so that it is tried again like any other fault, and the error itself for
a body that holds one.

  an answer                                    is
  with an `error` and no choices               judged by the status inside
  a choice with an `error`, or broken off      that error, or ServerFailed
  with fewer or more choices than asked for    BadReply
  a response that is queued or in progress     BadReply
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec

from redline.apis import loose_json
from redline.apis.counts import choices, inputs, number
from redline.apis.error_inside import is_error, judge_choice, judge_error, judge_part
from redline.errors import BadReply
from redline.waist import Reply

_LONGEST_QUOTE = 120
_NO_HEADERS: Mapping[str, str] = MappingProxyType({})
# Indices in a message.
_MOST_NAMED = 5
# The calls that the caller must answer; the others, such as web_search_call, are done already.
_CALLERS_TOOLS = frozenset({"function_call", "custom_tool_call"})
_USUAL = frozenset({None, "stop", "length", "tool_calls", "content_filter"})
# Fields of a request that may ask for several choices.
_MANY = frozenset({"n", "prompt"})
_APIS = frozenset({"completions", "embeddings", "responses"})
# Of a response; it may also be `failed`, `queued`, `in_progress` or `cancelled`.
_ENDED = frozenset({None, "completed", "incomplete"})


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
    finish_reason: str | int | None = None
    index: Any = None
    error: Any = None


class _Completion(_Lenient):
    choices: list[_Choice]
    usage: dict[str, Any] | None = None
    model: str | None = None
    id: Any = None
    error: Any = None


class _Vector(_Lenient):
    embedding: Any
    index: Any = None


class _Embeddings(_Lenient):
    data: list[_Vector]
    usage: dict[str, Any] | None = None
    model: str | None = None
    error: Any = None


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


class _ErrorInside(Exception):
    """The JSON of the body is an error."""

    def __init__(self, value: Any) -> None:
        self.value = value


def read(
    url: str,
    body: bytes,
    output_path: tuple[str | int, ...] = (),
    asked: Any = None,
    headers: Mapping[str, str] = _NO_HEADERS,
    wall_s: float = 0.0,
) -> Reply:
    """The reply that `body` holds for a call to `url`.

    output_path: picks the answer from the JSON, for any API. asked: the request's body, by which
    answers are counted; None if it is not known. headers, wall_s: for the Retry-After of an error
    inside, see `judge`. Raises CallError, and NoEndpoint if a local engine is lost.
    """
    path, api = _api_of(url)
    try:
        try:
            reply = _read(api, body, output_path, asked)
        except msgspec.DecodeError as error:
            # Either no JSON as it should be, or JSON of another shape.
            body, value = _loose(body, error)
            if is_error(value, of_any_api=api not in _APIS):
                raise _ErrorInside(value) from error
            reply = _read(api, body, output_path, asked)
    except _ErrorInside as found:
        raise judge_error(found.value, headers, wall_s) from found
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadReply(
            f"the answer is not what {path} promises: {error}; it begins {quote(body)}",
            hint=_page_hint(body),
        ) from error
    _count_tokens(reply)
    reply.body = body
    return reply


def _read(api: str, body: bytes, output_path: tuple[str | int, ...], asked: Any) -> Reply:
    if output_path:
        return _read_plain(body, output_path)
    asked = asked if isinstance(asked, dict) else None
    if api == "completions":
        return _read_completion(_COMPLETION.decode(body), asked)
    if api == "embeddings":
        return _read_embeddings(_EMBEDDINGS.decode(body), asked)
    if api == "responses":
        return _read_response(_RESPONSE.decode(body))
    return _read_plain(body, ())


def _loose(body: bytes, error: msgspec.DecodeError) -> tuple[bytes, Any]:
    """The body as proper JSON, and its value. Raises `error` for what is no JSON at all."""
    try:
        return body, msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    try:
        body = loose_json.mended(body)
        return body, msgspec.json.decode(body)
    except (ValueError, RecursionError):
        raise error from None


@lru_cache(maxsize=1024)
def _api_of(url: str) -> tuple[str, str]:
    """The path of a call without its query, and the last part of it."""
    path = url.partition("?")[0].rstrip("/")
    return path, path.rpartition("/")[2]


def _read_completion(reply: _Completion, asked: dict[str, Any] | None) -> Reply:
    found = reply.choices
    if not found:
        raise msgspec.ValidationError("`choices` is empty")
    first = found[0]
    message = first.message
    if (
        len(found) == 1
        and message is not None
        and type(message.content) is str
        and message.content
        and not (message.refusal or first.index or first.error or reply.error)
        and first.finish_reason in _USUAL
        and (asked is None or _MANY.isdisjoint(asked))
    ):
        # As nearly every answer is: nothing has to be looked at more closely.
        return _completion(
            reply,
            message.content,
            message.tool_calls or message.function_call,
            first.finish_reason,
        )
    if reply.error:
        raise judge_part("the answer broke off", reply.error)
    for index, choice in enumerate(found):
        if error := judge_choice(index, choice.error, choice.finish_reason):
            raise error
    found = _in_order(found, None if asked is None else choices(asked), "choice")
    texts = [_choice_text(choice) for choice in found]
    reasons = [_finish(choice, text) for choice, text in zip(found, texts, strict=True)]
    tools = [_tool_calls(choice) for choice in found]
    if len(found) == 1:
        return _completion(reply, texts[0], tools[0], reasons[0])
    return _completion(reply, texts, tools if any(tools) else None, reasons)


def _completion(reply: _Completion, output: Any, tool_calls: Any, finish_reason: Any) -> Reply:
    return Reply(
        output=output,
        tool_calls=tool_calls,
        finish_reason=finish_reason,
        usage=reply.usage,
        model=reply.model,
        request_id=reply.id if isinstance(reply.id, str) else None,
    )


N = TypeVar("N", _Choice, _Vector)


def _in_order(found: list[N], asked: int | None, name: str) -> list[N]:
    """The parts of an answer by their index. Raises BadReply if they are not those asked for."""
    if asked == len(found) == 1 and found[0].index in (None, 0):
        return found
    indices = [number(part.index) for part in found]
    if all(part.index is None for part in found):
        indices = list(range(len(found)))
    if asked is None:
        return [part for _, part in sorted(zip(indices, found, strict=True), key=_by_index)]
    by_index = dict(zip(indices, found, strict=True))
    if len(found) == asked and by_index.keys() == set(range(asked)):
        return [by_index[index] for index in range(asked)]
    missing = [str(index) for index in range(asked) if index not in by_index]
    named = ", ".join(missing[:_MOST_NAMED]) + (", ..." if len(missing) > _MOST_NAMED else "")
    what = f"index {named} is missing" if len(missing) == 1 else f"indices {named} are missing"
    if not missing:
        what = "an index comes twice, or was not asked for"
    raise BadReply(
        f"asked for {asked} {name}{'' if asked == 1 else 's'}, got {len(found)}: {what}",
        hint=f"ask for one {name} in each row if the endpoint gives no more",
    )


def _by_index(numbered: tuple[int | None, _Choice | _Vector]) -> int:
    return numbered[0] or 0


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


def _tool_calls(choice: _Choice) -> Any:
    message = choice.message
    return None if message is None else message.tool_calls or message.function_call


def _finish(choice: _Choice, output: Any) -> str | None:
    if choice.message is not None and choice.message.refusal:
        return "refusal"
    reason = choice.finish_reason
    if output in (None, "") and not _tool_calls(choice) and reason in (None, "stop"):
        return "empty"
    # Some servers send the number that their own API gives the reason.
    return str(reason) if isinstance(reason, int) else reason


def _read_embeddings(reply: _Embeddings, asked: dict[str, Any] | None) -> Reply:
    if not reply.data:
        raise msgspec.ValidationError("`data` is empty")
    if reply.error:
        raise judge_part("the answer broke off", reply.error)
    found = _in_order(reply.data, None if asked is None else inputs(asked), "embedding")
    vectors = [item.embedding for item in found]
    if not all(vectors):
        raise msgspec.ValidationError(
            f"the embedding of index {list(map(bool, vectors)).index(False)} is empty"
        )
    return Reply(
        output=vectors[0] if len(vectors) == 1 else vectors, usage=reply.usage, model=reply.model
    )


def _read_response(reply: _Response) -> Reply:
    if reply.error:
        raise judge_part("the response failed", reply.error)
    if reply.status == "failed":
        raise BadReply("the response failed, and does not say why")
    if reply.status not in _ENDED:
        waits = reply.status in ("queued", "in_progress")
        hint = "leave `background` out: redline does not wait for stored responses" if waits else ""
        raise BadReply(f"the response is not whole: its status is `{reply.status}`", hint=hint)
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
    _check_plain(whole)
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


def _check_plain(whole: Any) -> None:
    """Raises for an error, and for a choice that broke off, wherever choices are."""
    if is_error(whole, of_any_api=True):
        raise _ErrorInside(whole)
    found = whole.get("choices") if isinstance(whole, dict) else None
    for index, choice in enumerate(found if isinstance(found, list) else ()):
        if isinstance(choice, dict):
            error = judge_choice(index, choice.get("error"), choice.get("finish_reason"))
            if error is not None:
                raise error


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
