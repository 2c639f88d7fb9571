"""Hashes a prompt's prefixes; equal hashes mean that calls could share a prefix cache."""

from __future__ import annotations

from typing import Any

from redline.calls.tokens.asked import asked_of
from redline.calls.tokens.prompt import DATA, MOST_VALUES, json_text
from redline.waist import Request

# A block of vLLM's cache has 16 tokens, and this is about four blocks; a shorter shared prefix is
# not worth a hash.
_FIRST_CHARS = 256
# Each long prefix is about an eighth longer than the one before, so that 64 hashes cover any
# context window.
_GROWTH = 8
_MOST = 64
# Fields that hold the prompt, in the order in which a model reads them.
_FIELDS = ("system", "instructions", "messages", "prompt", "input")
_TEXTS = frozenset({"content", "text", "arguments", "name", "output"})


def _lengths() -> tuple[int, ...]:
    found = [_FIRST_CHARS]
    while len(found) < _MOST:
        step = max(1, found[-1] // _GROWTH // _FIRST_CHARS) * _FIRST_CHARS
        found.append(found[-1] + step)
    return tuple(found)


# The characters of each prefix: 256, 512, ... 2,048, and from then on at most an eighth more each
# time, in multiples of 256.
PREFIX_CHARS = _lengths()


def prefixes_of(request: Request) -> tuple[int, ...]:
    """Returns hashes of the prefixes of the request's prompt, the shortest first; at most 64.

    If the prompts of two requests to one model begin with the same PREFIX_CHARS[i] characters,
    their hashes up to index i are equal. Prefixes longer than the prompt have no hash. Each hash
    has 48 bits and is keyed by a secret of this process, so that it reveals nothing about the text
    and cannot be compared with the hashes of another process.
    """
    asked = asked_of(request)
    if asked is None:
        return ()
    texts = asked.texts
    if texts is None:
        texts = _texts(request.body)
    return _hashes(asked.name, texts)


def _hashes(model: str, texts: list[str]) -> tuple[int, ...]:
    text = texts[0] if len(texts) == 1 else "".join(texts)
    length = len(text)
    if length < _FIRST_CHARS:
        return ()
    found = list[int]()
    key, begin = hash(model), 0
    for end in PREFIX_CHARS:
        if end > length:
            break
        key = hash((key, text[begin:end]))
        # 48 bits, which JSON readers keep exactly.
        found.append(key >> 16)
        begin = end
    return tuple(found)


def _texts(body: dict[str, Any]) -> list[str]:
    """Returns the texts of a prompt of any form, in the order in which a model reads them."""
    todo: list[Any] = [body[name] for name in reversed(_FIELDS) if name in body]
    tools = body.get("tools")
    # Chat templates put the tools first.
    found, values_left = json_text(tools) if tools else [], MOST_VALUES
    while todo and values_left > 0:
        values_left -= 1
        value = todo.pop()
        if isinstance(value, str):
            # An image is represented by its URL: the same URL means the same prompt.
            found.append(value)
        elif isinstance(value, dict):
            parts = [part for name, part in value.items() if name in _TEXTS or _holds(part)]
            todo += reversed(parts)
        elif isinstance(value, (list, tuple)):
            todo += reversed(value[:values_left])
        elif type(value) is int:
            # A prompt of token ids.
            found.append(f"{value} ")
    return found


def _holds(value: Any) -> bool:
    """Whether a field's value may contain more of the prompt, as a list of parts does."""
    return isinstance(value, (dict, list)) or (isinstance(value, str) and value.startswith(DATA))
