"""Reads the bodies of requests within bounds, and finds what they request."""

from __future__ import annotations

import re
import resource
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
# Open files that are not connections, and a margin.
_OTHER_FILES = 32


def _most_connections() -> int:
    """Returns the most connections of clients, given the process's limit on open files.

    For each of them, one more file is left for the connection to an endpoint.
    """
    most, (files, _) = HttpBounds().most_connections, resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return most
    return max(1, min(most, (files - _OTHER_FILES) // 2))


class Bounds(HttpBounds, frozen=True, kw_only=True):
    """Bounds of a front, in addition to those of its HTTP server; all are above 0.

    most_connections: by default, bounded by the limit on the process's open files. most_requests:
    the most calls and requests to routes answered at once; further ones get 503. most_held_bytes:
    the most bytes of bodies that are being received or answered, all together; only a gateway
    applies this bound. grace_s: the seconds that requests in flight get when the front closes.
    """

    most_connections: int = msgspec.field(default_factory=_most_connections)
    most_requests: int = 1024
    most_held_bytes: int = 2**30
    grace_s: float = 10.0


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A call parsed from its body: what to send, and how to answer.

    wants_usage: the client requested usage in its stream.
    """

    request: Request
    model: str
    priority: int
    is_stream: bool
    wants_usage: bool


class _Known(msgspec.Struct):
    """The body fields that a front reads; the backend reads the others."""

    model: str | None = None
    priority: Annotated[int, Meta(ge=-(2**31), lt=2**31)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None


_OBJECT = msgspec.json.Decoder(dict[str, Any])
_VALUES = msgspec.json.Decoder(dict[str, msgspec.Raw])
# Matches the field in an error message of msgspec.
_FIELD = re.compile(r"required field `(\w+)|`\$\.(\w+)")
# No API has this many top-level fields.
_MOST_FIELDS = 1000
# Fields are counted only in a larger body: counting takes 0.05 ms per 100 KB, a tenth of the
# gateway's work for a call. In a smaller body with 20,000 fields, changing one takes 20 ms.
_LARGE_BYTES = 256 * 1024
_BODY_CODES = {408: "timed_out", 413: "too_large"}


async def read_of(body: Awaitable[bytes]) -> bytes:
    """Awaits a body or a part of it. Raises Refusal if the body is too large, malformed or late."""
    try:
        return await body
    except BodyError as error:
        raise Refusal(
            f"{error.reason[:1].upper()}{error.reason[1:]}.",
            status=error.status,
            code=_BODY_CODES.get(error.status),
        ) from None


def malformed(error: Exception) -> Refusal:
    """Returns the refusal for the error that decoding a body raised."""
    if not isinstance(error, msgspec.ValidationError):
        return Refusal(f"The body of the request could not be read as JSON: {error}")
    field = _FIELD.search(str(error))
    return Refusal(
        f"The body of the request is not valid: {error}",
        param=(field[1] or field[2]) if field else None,
    )


def read_call(path: str, raw: bytes, models: Collection[str]) -> Asked:
    """Parses the body of a call to `path`.

    models: the models that exist; empty for any. `priority` is removed from the request's body,
    since it concerns only the queue, as in vLLM. Raises Refusal if the body is not valid, or if its
    model does not exist.
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
    """Returns the refusal for a body whose facts are NOT_JSON, with the reason."""
    why: object = "it is nested too deeply"
    try:
        replacing_halves(msgspec.json.decode, raw)
    except (ValueError, RecursionError) as error:
        why = error
    return Refusal(f"The body of the request could not be read as JSON: {why}")


# Matches the key `model`, escaped or not, in any case: servers written in Go ignore the case.
_MODEL_KEY = re.compile(
    rb'(?i)"(?:m|\\u00[46]d)(?:o|\\u00[46]f)(?:d|\\u00[46]4)(?:e|\\u00[46]5)(?:l|\\u00[46]c)"\s*:'
)


class _Field(str):
    """The name of a body's field."""


def check_fields(raw: bytes) -> None:
    """Raises Refusal for a large body with more fields than any API has. raw: a JSON object.

    A body below 256 KiB is not checked. Changing one field of a body with a million fields takes
    seconds and would hold up other calls.
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
    """The fields that OpenRouter, LiteLLM and other routers use to choose a model or provider."""

    models: msgspec.Raw = msgspec.Raw()
    fallbacks: msgspec.Raw = msgspec.Raw()
    route: msgspec.Raw = msgspec.Raw()
    provider: msgspec.Raw = msgspec.Raw()
    preset: msgspec.Raw = msgspec.Raw()
    extra_body: msgspec.Raw = msgspec.Raw()


_ROUTING = msgspec.json.Decoder(_Routing)


def other_choice(raw: bytes) -> str | None:
    """Returns the field that may make a server use a model that `facts_of` does not find, or None.

    If a key is repeated, some servers use the first value, others the last; some ignore the case of
    keys.
    """
    found = len(_MODEL_KEY.findall(raw))
    try:
        routing = replacing_halves(_ROUTING.decode, raw)
        for name in routing.__struct_fields__:
            if getattr(routing, name):
                return name
        if found < 2:
            return None
        # Values stay undecoded: decoding all values of a large body would hold up other calls.
        fields = replacing_halves(_VALUES.decode, raw)
    except (ValueError, RecursionError):
        return "model"
    nested = sum(len(_MODEL_KEY.findall(value)) for value in fields.values())
    return None if found - nested < 2 else "model"
