"""Makes cache keys, and decides whether a request alone determines its answer.

Two requests have the same key if everything that determines the answer is equal: the endpoints, the
method, the path, the JSON of the body in any order of its keys (1 and 1.0 differ), the output path,
the headers, and the tenant. Headers that identify a single request are left out. So are
credentials: some expire after an hour, and the next ones get the same answers. If two accounts get
different answers from the same address, each needs a cache folder of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any
from urllib.parse import urlsplit

import msgspec

from redline.apis import api_of, embeddings
from redline.calls.wire import Endpoint
from redline.waist import Call, Request, has_halves

KEY_BYTES = 32
# Increment this number when the answers that are already stored must no longer be found.
_VERSION = 1
_CREDENTIALS = frozenset({"authorization", "api-key", "x-api-key", "x-goog-api-key", "cookie"})
# These headers identify a single request: if they counted, no two requests would be identical.
_NAMES = frozenset({"x-request-id", "idempotency-key", "traceparent", "tracestate"})
# The answer to a body with one of these fields depends on more than the request and the model: on a
# search, on earlier turns that the provider stores, or on when the answer is fetched.
_OUTWARD = ("web_search_options", "conversation", "background")
_CALLERS_TOOLS = frozenset({"function", "custom"})
# Methods whose answers may be cached. A PUT or a DELETE has an effect each time.
_ASKING = frozenset({"GET", "POST"})
_encode = msgspec.json.Encoder(order="deterministic").encode


def identity(*endpoints: Endpoint, embedded: str = "") -> str:
    """Returns the identity of the endpoints, which is part of cache keys; it has no credentials.

    The identity is their group if all are in the same one, otherwise their addresses, headers and
    model names, so that two API keys of one endpoint share answers. embedded: the identity of an
    embedded server, used instead of its address, whose port changes from run to run.
    """
    groups = {endpoint.group for endpoint in endpoints}
    if len(groups) == 1 and (group := groups.pop()):
        return _encode({"group": group}).decode()
    members = sorted({_member(endpoint, embedded) for endpoint in endpoints})
    return members[0] if len(members) == 1 else _encode(members).decode()


def _member(endpoint: Endpoint, embedded: str) -> str:
    parts = urlsplit(endpoint.base_url)
    place = f"{parts.scheme}://{parts.netloc}".lower() + parts.path.rstrip("/")
    whose: list[object] = [embedded or place, _deciding(endpoint.headers)]
    if endpoint.models:
        whose.append(dict(endpoint.models))
    return _encode(whose).decode()


def key_of(request: Request, call: Call, identity: str) -> bytes | None:
    """Returns the request's key, 32 bytes; None if its body has no JSON form.

    JSON with half of a surrogate pair has none: read with U+FFFD instead, it would equal another
    body.
    """
    if request.raw is not None and has_halves(request.raw):
        return None
    headers = _deciding(request.headers) if request.headers else ()
    parts = (
        _VERSION,
        identity,
        call.tenant,
        request.method,
        request.url,
        request.output_path,
        headers,
        request.body,
    )
    try:
        # Encoded as one JSON text, so that the boundaries between the parts are unambiguous.
        text = _encode(parts)
    except (TypeError, ValueError, RecursionError):
        return None
    return blake2b(text, digest_size=KEY_BYTES).digest()


def only_asks(request: Request) -> bool:
    """Whether the request is a GET or a POST, which only ask for an answer."""
    return request.method in _ASKING


def is_determined(request: Request) -> bool:
    """Whether the request alone determines its answer, so that the answer is not sampled at random.

    This holds for embeddings, and for temperature 0 or a seed, unless the answer depends on a
    search, on a tool that the server runs, or on earlier turns. Providers sample all other answers.
    """
    body = request.body
    if request.method != "POST" or not isinstance(body, dict):
        return False
    if api_of(request.url) is embeddings.API:
        return True
    # An empty object also asks for a search.
    if any(body.get(name) not in (None, False) for name in _OUTWARD):
        return False
    if _has_servers_tools(body.get("tools")):
        return False
    # bool is a subclass of int, so True and False must be excluded.
    return type(body.get("seed")) is int or (
        type(body.get("temperature")) in (int, float) and body["temperature"] == 0
    )


def _has_servers_tools(tools: Any) -> bool:
    """Whether one of the tools is run by the server instead of the caller, such as a web search."""
    if not isinstance(tools, list):
        return False
    kinds = (tool.get("type", "function") if isinstance(tool, dict) else None for tool in tools)
    return any(kind not in _CALLERS_TOOLS for kind in kinds)


def _deciding(headers: Mapping[str, str]) -> list[tuple[str, str]]:
    """Returns the headers that may determine an answer, sorted."""
    named = ((name.lower(), value) for name, value in headers.items())
    return sorted(pair for pair in named if pair[0] not in _CREDENTIALS | _NAMES)
