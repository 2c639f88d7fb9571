"""Computes the most tokens that one request can use."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from redline.apis import api_of, drafts, number
from redline.calls.tokens.asked import OUTPUT_LIMITS
from redline.calls.tokens.prompt import is_media
from redline.waist import Request

# The tokens that a chat template adds around all messages: 3 in OpenAI's template, 20 to 50 in a
# model's own template with a default system prompt or a date. Around each message a template adds 3
# to 10 tokens, but the JSON of an empty message has 28 bytes.
FRAME_TOKENS = 64
# Anthropic adds 264 to 530 tokens before the definitions of tools.
_TOOLS_TOKENS = 1000
# The largest image that OpenAI accepts costs 48,169 tokens with gpt-4o-mini, 1,445 with gpt-4o.
_MEDIA_TOKENS = 50_000
_MEDIA_WORDS = (b"image", b"audio", b"video", b"file", b"document")


class Worst(NamedTuple):
    """The most tokens that a request can use.

    output_tokens: None if the request has no maximum. may_write: whether the request asks the
    provider to cache some of the input.
    """

    input_tokens: int
    output_tokens: int | None
    may_write: bool


def worst_of(request: Request) -> Worst:
    """Returns the most tokens that the request can use, from its contents alone.

    A tokenizer that works on bytes makes at most one token per byte, and every text that the model
    reads is in the JSON, except for what the server adds by itself, such as a conversation that it
    stores. Raises TypeError, ValueError or RecursionError for a body that has no JSON form.
    """
    body = request.body
    raw = msgspec.json.encode(body)
    # Checked before media are removed, since they may also have the field.
    may_write = b'"cache_control"' in raw
    media = 0
    if any(word in raw for word in _MEDIA_WORDS):
        found: list[Any] = []
        rest = _without_media(body, found)
        media = len(found)
        raw = msgspec.json.encode(rest) if media else raw
    tokens = len(raw) + FRAME_TOKENS + media * _MEDIA_TOKENS
    if not isinstance(body, dict):
        return Worst(tokens, None, may_write=False)
    if body.get("tools") or body.get("functions"):
        tokens += _TOOLS_TOKENS
    return Worst(tokens, _most_output(request.url, body), may_write)


def _most_output(url: str, body: dict[str, Any]) -> int | None:
    if not api_of(url).has_output:
        return 0
    limits = [number(body[name]) for name in OUTPUT_LIMITS if body.get(name) is not None]
    stated = [most for most in limits if most is not None and most >= 0]
    # Some servers take -1 as no maximum.
    if not stated or len(stated) < len(limits):
        return None
    return max(1, *stated) * drafts(body)


def _without_media(value: Any, found: list[Any]) -> Any:
    """Returns the value without its images, sounds and files, which are added to `found`."""
    if isinstance(value, dict):
        if is_media(value):
            found.append(value)
            return None
        return {name: _without_media(item, found) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_media(item, found) for item in value]
    if isinstance(value, str) and value.startswith("data:"):
        found.append(value)
        return None
    return value
