"""Turns request bodies into items of a function's list, and its answers into response bodies.

path                   an item                           its answer          response body
/v1/embeddings         each `input`: a text or tokens    a vector            OpenAI's
/v1/completions        each `prompt`: a text or tokens   a text              OpenAI's
/v1/chat/completions   the `messages`                    a text              OpenAI's
/v1/NAME               each `input`: any JSON value      any JSON value      as for embeddings, with
                                                                             `output` in place of
                                                                             `embedding`

An answer may also be a Reply, which adds the numbers of tokens and a finish reason.
"""

from __future__ import annotations

import base64
import math
import sys
from array import array
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from redline.apis import chat, completions, embeddings
from redline.calls import Reply, Request
from redline.errors import BadReply, Rejected
from redline.serve.http import Asked, body_of
from redline.sources import plain_form

# OpenAI accepts at most this many inputs in one request.
MOST_ITEMS = 2048
# Fields that do not affect the answer.
_IDLE = frozenset({"model", "user", "metadata", "store", "service_tier", "safety_identifier"})
_IDLE |= {"stream", "stream_options", "prompt_cache_key", "priority"}


class Form(NamedTuple):
    """How requests to one path are read and answered.

    items: the name of the field with the items. write: returns the response body. own: other fields
    that are handled here and not passed to the function. is_one: whether the field is a single item
    of any type. has_tokens: whether a list of integers is one item.
    """

    items: str
    write: Callable[[Asked, Sequence[Reply]], bytes]
    own: frozenset[str] = frozenset()
    is_one: bool = False
    has_tokens: bool = False


class Question(NamedTuple):
    """A request as a call of the function.

    items: the list to pass. options: the keyword arguments. asked: see Asked.
    """

    items: list[Any]
    options: dict[str, Any]
    asked: Asked


def forms_of(name: str) -> dict[str, Form]:
    """Returns the forms of a function with this name, by path."""
    return {
        embeddings.API.path: Form(
            "input", _vectors, frozenset({"encoding_format"}), has_tokens=True
        ),
        completions.API.path: Form("prompt", _texts, frozenset({"n"}), has_tokens=True),
        chat.API.path: Form("messages", _texts, frozenset({"n"}), is_one=True),
        f"/v1/{name}": Form("input", _plain),
    }


def read(request: Request, form: Form, name: str, takes: frozenset[str] | None) -> Question:
    """Returns the function call for a request. Raises Rejected if the function cannot answer it.

    name: the function's name. takes: the keyword arguments that the function takes; None for any.
    """
    body = request.body
    if not isinstance(body, dict):
        raise Rejected("the body of the request is not a JSON object", status=400)
    given = {key: value for key, value in body.items() if value is not None}
    if form.items not in given:
        raise Rejected(f"`{form.items}` is missing", status=400)
    items = _items(given.pop(form.items), form)
    if given.get("n", 1) != 1:
        raise Rejected(f"`n` must be 1: {name} returns one answer per item", status=400)
    options = {k: v for k, v in given.items() if k not in _IDLE and k not in form.own}
    for key in options:
        if takes is not None and key not in takes:
            known = f"it takes {', '.join(sorted(takes))}" if takes else "it takes no options"
            raise Rejected(f"{name} does not take `{key}`: {known}", status=400)
    options_asked = given.get("stream_options")
    asked = Asked(
        request=request,
        model=str(given.get("model") or name),
        priority=0,
        is_stream=given.get("stream") is True,
        wants_usage=isinstance(options_asked, dict) and bool(options_asked.get("include_usage")),
    )
    return Question(items, options, asked)


def _items(value: Any, form: Form) -> list[Any]:
    if form.is_one or not isinstance(value, list):
        return [value]
    if not value:
        raise Rejected(f"`{form.items}` is empty", status=400)
    if form.has_tokens and all(type(one) is int for one in value):
        return [value]
    if len(value) > MOST_ITEMS:
        raise Rejected(
            f"`{form.items}` has {len(value):,} items; at most {MOST_ITEMS:,} are accepted",
            status=400,
        )
    return value


def _vectors(asked: Asked, replies: Sequence[Reply]) -> bytes:
    is_base64 = asked.request.body.get("encoding_format") == "base64"
    vectors = [_checked(reply.output) for reply in replies]
    written: list[Any] = [_packed(vector) for vector in vectors] if is_base64 else vectors
    return _encoded(embeddings.whole(written, asked.model, 0), replies)


def _checked(vector: Any) -> list[float]:
    if isinstance(vector, list | tuple):
        # A list of means or sums may contain numpy scalars.
        vector = [one.tolist() if hasattr(one, "tolist") else one for one in vector]
    is_vector = isinstance(vector, list | tuple) and bool(vector)
    if not is_vector or not all(type(one) in (float, int) for one in vector):
        raise BadReply(
            f"the function's answer is {type(vector).__name__}, not a vector of numbers",
            hint="use POST /v1/NAME for answers that are not vectors",
        )
    if not all(map(math.isfinite, vector)):
        raise BadReply("the function's answer is a vector with an infinite value or a NaN")
    return list(vector)


def _packed(vector: list[float]) -> str:
    """Returns the base64 of the vector as little-endian 32-bit floats."""
    try:
        floats = array("f", vector)
    except OverflowError as error:
        raise BadReply(
            f"the function's answer is not a vector of 32-bit floats: {error}"
        ) from error
    if sys.byteorder == "big":
        floats.byteswap()
    return base64.b64encode(floats.tobytes()).decode()


def _texts(asked: Asked, replies: Sequence[Reply]) -> bytes:
    for reply in replies:
        if not isinstance(reply.output, str):
            raise BadReply(
                f"the function's answer is {type(reply.output).__name__}, not a string",
                hint="use POST /v1/NAME for answers that are not text",
            )
    tokens = tokens_of(replies)
    whole = Reply(
        output=[reply.output for reply in replies],
        finish_reason=[reply.finish_reasons[0] for reply in replies],
        tool_calls=replies[0].tool_calls,
    )
    if tokens is not None:
        whole.input_tokens, whole.output_tokens = tokens
    return body_of(asked, whole)


def _plain(asked: Asked, replies: Sequence[Reply]) -> bytes:
    data = [{"index": index, "output": reply.output} for index, reply in enumerate(replies)]
    return _encoded({"object": "list", "data": data, "model": asked.model}, replies)


def _encoded(whole: dict[str, Any], replies: Sequence[Reply]) -> bytes:
    """Returns the JSON body, with usage if the function reports it."""
    tokens = tokens_of(replies)
    whole.pop("usage", None)
    if tokens is not None:
        whole["usage"] = {"prompt_tokens": tokens[0], "total_tokens": sum(tokens)}
    try:
        return msgspec.json.encode(whole, enc_hook=plain_form)
    except (TypeError, ValueError, RecursionError) as error:
        raise BadReply(f"the function's answer is not JSON: {error}") from error


def tokens_of(replies: Sequence[Reply]) -> tuple[int, int] | None:
    """Returns the input and output tokens of all replies; None if a reply does not report them."""
    if any(reply.input_tokens is None for reply in replies):
        return None
    read = sum(reply.input_tokens or 0 for reply in replies)
    return read, sum(reply.output_tokens or 0 for reply in replies)
