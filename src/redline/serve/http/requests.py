"""Requests as they come: bodies read within bounds, and what they ask for."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Collection
from contextlib import suppress
from itertools import count
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from redline.apis import APIS, StreamOptions, api_of
from redline.apis.messages import COUNT_TOKENS, MESSAGES
from redline.calls import Request
from redline.httpserver import BodyError, HttpBounds
from redline.serve.http.refusals import Refusal, no_model
from redline.waist import replacing_halves

# The paths of Anthropic's API, and those of all calls.
MESSAGES_CALLS = (MESSAGES, COUNT_TOKENS)
CALLS = (*(api.path for api in APIS), *MESSAGES_CALLS)


class Bounds(HttpBounds, frozen=True, kw_only=True):
    """Bounds of a front besides those of its HTTP server. All above 0.

    most_requests: the most requests answered at once; further ones get 503. most_held_bytes: the
    total size of bodies that are being received or answered. grace_s: time for requests in flight
    when the front closes.
    """

    most_requests: int = 1024
    most_held_bytes: int = 2**30
    grace_s: float = 10.0


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A call's options: its priority, whether it is a stream, and whether that includes usage."""

    request: Request
    model: str
    priority: int
    is_stream: bool
    wants_usage: bool


class _Known(msgspec.Struct):
    """The fields of a body that are read here; the backend reads the others."""

    model: str | None = None
    priority: Annotated[int, Meta(ge=-(2**31), lt=2**31)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None


_OBJECT = msgspec.json.Decoder(dict[str, Any])
_VALUES = msgspec.json.Decoder(dict[str, msgspec.Raw])
# The field that an error message of msgspec names.
_FIELD = re.compile(r"required field `(\w+)|`\$\.(\w+)")
# No API has as many top-level fields.
_MOST_FIELDS = 1000
# Changing a field of a smaller body, which has at most 20,000, takes 20 ms. Counting takes 0.05 ms
# for each 100 KB, which is a tenth of what the gateway does for a call.
_LARGE_BYTES = 256 * 1024
_BODY_CODES = {408: "timed_out", 413: "too_large"}


async def read_of(body: Awaitable[bytes]) -> bytes:
    """What is read of a body. Raises Refusal if the body is too large, malformed or late."""
    try:
        return await body
    except BodyError as error:
        raise Refusal(
            f"{error.reason[:1].upper()}{error.reason[1:]}.",
            status=error.status,
            code=_BODY_CODES.get(error.status),
        ) from None


def malformed(error: Exception) -> Refusal:
    """The refusal of a body, for the error with which its decoding failed."""
    if not isinstance(error, msgspec.ValidationError):
        return Refusal(f"The body of the request could not be read as JSON: {error}")
    field = _FIELD.search(str(error))
    return Refusal(
        f"The body of the request is not valid: {error}",
        param=(field[1] or field[2]) if field else None,
    )


def read_call(path: str, raw: bytes, models: Collection[str]) -> Asked:
    """What the body asks of `path`. models: all there are; empty for any. Raises Refusal.

    `priority` is removed from the body: as in vLLM, it is for the queue.
    """
    try:
        body = _OBJECT.decode(raw)
        known = msgspec.convert(body, _Known)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise malformed(error) from None
    model = known.model or ""
    if model and models and model not in models:
        raise no_model(model, models)
    body.pop("priority", None)
    options = known.stream_options
    return Asked(
        request=Request(body=body, url=path),
        model=model,
        priority=known.priority or 0,
        is_stream=bool(known.stream) and api_of(path).is_streamed,
        wants_usage=options is not None and bool(options.include_usage),
    )


def not_json(raw: bytes) -> Refusal:
    """The refusal of a body whose facts are NOT_JSON, with the reason."""
    why: object = "it is nested too deeply"
    try:
        replacing_halves(msgspec.json.decode, raw)
    except (ValueError, RecursionError) as error:
        why = error
    return Refusal(f"The body of the request could not be read as JSON: {why}")


# The key `model`, also with escapes; servers written in Go ignore its case.
_MODEL_KEY = re.compile(
    rb'(?i)"(?:m|\\u00[46]d)(?:o|\\u00[46]f)(?:d|\\u00[46]4)(?:e|\\u00[46]5)(?:l|\\u00[46]c)"\s*:'
)


class _Field(str):
    """The name of a field of a body."""


def check_fields(raw: bytes) -> None:
    """Raises Refusal for a body with more fields than any API has. raw: a JSON object.

    Changing one field of a body with a million takes seconds, which would hold up other calls.
    """
    if len(raw) < _LARGE_BYTES:
        return

    def counted(body: bytes) -> None:
        fields = count(1)

        def named(_: type, name: Any) -> _Field:
            if next(fields) > _MOST_FIELDS:
                raise Refusal(f"The body of the request has more than {_MOST_FIELDS:,} fields.")
            return _Field(name)

        msgspec.json.decode(body, type=dict[_Field, msgspec.Raw], dec_hook=named)

    with suppress(ValueError, RecursionError):
        replacing_halves(counted, raw)


class _Routing(msgspec.Struct):
    """The fields by which OpenRouter, LiteLLM and the like choose a model or a provider."""

    models: msgspec.Raw = msgspec.Raw()
    fallbacks: msgspec.Raw = msgspec.Raw()
    route: msgspec.Raw = msgspec.Raw()
    provider: msgspec.Raw = msgspec.Raw()
    preset: msgspec.Raw = msgspec.Raw()
    extra_body: msgspec.Raw = msgspec.Raw()


_ROUTING = msgspec.json.Decoder(_Routing)


def other_choice(raw: bytes) -> str | None:
    """The field by which a reader may find another model in the body than `facts_of`, if any.

    Of a repeated key, some servers take the first, others the last; some ignore its case.
    """
    found = len(_MODEL_KEY.findall(raw))
    try:
        routing = replacing_halves(_ROUTING.decode, raw)
        for name in routing.__struct_fields__:
            if getattr(routing, name):
                return name
        if found < 2:
            return None
        # Values stay as they are: of a large body, reading them all would hold other calls up.
        fields = replacing_halves(_VALUES.decode, raw)
    except (ValueError, RecursionError):
        return "model"
    nested = sum(len(_MODEL_KEY.findall(value)) for value in fields.values())
    return None if found - nested < 2 else "model"
