"""Which answers are the same answer: what decides one, and whether anything else does.

Two requests have one key if nothing that decides the answer differs: the endpoints, the method,
the path, the JSON of the body whatever the order of its keys (1 and 1.0 differ), the output path,
the headers, and the tenant. Credentials are left out: some live for an hour, and an answer is the
same under the next one. Two accounts that differ behind one address need two folders.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any
from urllib.parse import urlsplit

import msgspec

from redline.apis import api_of, embeddings
from redline.calls.wire import Endpoint
from redline.waist import Call, Request

KEY_BYTES = 32
# To be counted up when equal requests are to have other keys than before.
_VERSION = 1
_CREDENTIALS = frozenset({"authorization", "api-key", "x-api-key", "x-goog-api-key", "cookie"})
# They name one request, so with them no two would be equal.
_NAMES = frozenset({"x-request-id", "idempotency-key", "traceparent", "tracestate"})
# A body that has one of these asks for more than the model: what it looks up, or what it is given
# of before, is not in the request.
_OUTWARD = ("web_search_options", "conversation", "background")
_CALLERS_TOOLS = frozenset({"function", "custom"})
# Requests that only ask. A PUT or a DELETE does something, each time.
_ASKING = frozenset({"GET", "POST"})
_encode = msgspec.json.Encoder(order="deterministic").encode


def identity(*endpoints: Endpoint, embedded: str = "") -> str:
    """What the answers of these endpoints have in common; holds no credential.

    It is their group, if all state the same one; otherwise which endpoints they are, so that two
    keys of one endpoint have the same answers. embedded: the identity of an embedded server, which
    has another port each time.
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
    """The request's key, 32 bytes; None if its body has no JSON form."""
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
        # One JSON text, so that no part can run over into the next.
        text = _encode(parts)
    except (TypeError, ValueError, RecursionError):
        return None
    return blake2b(text, digest_size=KEY_BYTES).digest()


def only_asks(request: Request) -> bool:
    """Asking it again changes nothing."""
    return request.method in _ASKING


def is_determined(request: Request) -> bool:
    """The request states that its answer is not drawn by lot, and nothing else decides it.

    So are embeddings, temperature 0, and a seed; without them a provider samples.
    """
    body = request.body
    if request.method != "POST" or not isinstance(body, dict):
        return False
    if api_of(request.url) is embeddings.API:
        return True
    if any(body.get(name) for name in _OUTWARD) or _has_servers_tools(body.get("tools")):
        return False
    # True is an int to Python, and 0 is False.
    return type(body.get("seed")) is int or (
        type(body.get("temperature")) in (int, float) and body["temperature"] == 0
    )


def _has_servers_tools(tools: Any) -> bool:
    """Whether some tool is run by the server, such as a web search, and not by the caller."""
    if not isinstance(tools, list):
        return False
    kinds = (tool.get("type", "function") if isinstance(tool, dict) else None for tool in tools)
    return any(kind not in _CALLERS_TOOLS for kind in kinds)


def _deciding(headers: Mapping[str, str]) -> list[tuple[str, str]]:
    """The headers that may decide an answer, in one order whatever theirs is."""
    named = ((name.lower(), value) for name, value in headers.items())
    return sorted(pair for pair in named if pair[0] not in _CREDENTIALS | _NAMES)
