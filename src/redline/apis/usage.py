"""Writes and reads the token counts in the `usage` of an answer.

API                       input          output             input details
chat and completions      prompt_tokens  completion_tokens  prompt_tokens_details
embeddings                prompt_tokens  -                  -
responses and batches     input_tokens   output_tokens      input_tokens_details
Anthropic's messages      input_tokens   output_tokens      cache_read_input_tokens,
                                                            cache_creation_input_tokens
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

import msgspec

# More than any call can use: a larger count is an error, and over 308 digits do not fit a float.
MOST_TOKENS = 10**9
_Tokens = Annotated[int, msgspec.Meta(ge=0, le=MOST_TOKENS)]


class Counts(msgspec.Struct, frozen=True, gc=False):
    """The counts in the usage of chat and completions.

    A usage that counts the tokens of a cache separately cannot be converted to this type.
    """

    prompt_tokens: _Tokens
    completion_tokens: _Tokens
    total_tokens: _Tokens = 0
    cache_read_input_tokens: msgspec.UnsetType = msgspec.UNSET
    cache_creation_input_tokens: msgspec.UnsetType = msgspec.UNSET


class _Details(msgspec.Struct, frozen=True):
    cached_tokens: _Tokens = 0
    cache_write_tokens: _Tokens = 0


class _UsualUsage(Counts, frozen=True):
    """The usage of chat and completions, without fields that some providers count differently."""

    prompt_tokens_details: _Details | None = None
    input_tokens_details: msgspec.UnsetType = msgspec.UNSET
    prompt_cache_hit_tokens: msgspec.UnsetType = msgspec.UNSET
    cached_tokens: msgspec.UnsetType = msgspec.UNSET


def completion_usage(input_tokens: int, output_tokens: int) -> dict[str, Any]:
    """Returns the usage of chat and completions.

    input_tokens: the tokens of each prompt, counted once even for n > 1.
    """
    return {
        "prompt_tokens": input_tokens,
        "completion_tokens": output_tokens,
        "total_tokens": input_tokens + output_tokens,
    }


def response_usage(input_tokens: int, output_tokens: int) -> dict[str, Any]:
    """Returns the usage of a response or of a batch."""
    return {
        "input_tokens": input_tokens,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": input_tokens + output_tokens,
    }


def stated_tokens(usage: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """Returns the input and output tokens of a usage, 0 to 10^9 each; None for a missing count.

    The output includes thinking tokens that only the total counts.
    """
    read, written = usage.get("prompt_tokens"), usage.get("completion_tokens")
    found = read_usage(usage)
    if found is not None:
        written = found.output
    return (
        _count(usage.get("input_tokens") if read is None else read),
        _count(usage.get("output_tokens") if written is None else written),
    )


class Usage(NamedTuple):
    """The tokens of one call, each counted once.

    input: tokens that were neither read from the provider's cache nor written to it. cached: tokens
    read from the cache. written: tokens written to the cache. output: generated tokens.
    """

    input: int = 0
    cached: int = 0
    written: int = 0
    output: int = 0

    @property
    def tokens(self) -> int:
        """All tokens of the call."""
        return self.input + self.cached + self.written + self.output

    @property
    def input_tokens(self) -> int:
        """The tokens of the prompt, including those read from the cache or written to it."""
        return self.tokens - self.output


def read_usage(usage: Mapping[str, Any] | None, *, has_output: bool = True) -> Usage | None:
    """Reads the `usage` of a reply; None if it lacks the input or the output, or has only zeros.

    has_output: False for embeddings, whose usage has no output.
    In OpenAI's chat, completions, embeddings and responses, the input includes the tokens read from
    the cache and those written to it, as it does at OpenRouter, DeepSeek and Moonshot. Anthropic's
    messages count both separately. LiteLLM uses Anthropic's names for parts of `prompt_tokens`.
    """
    if usage is None:
        return None
    try:
        usual = msgspec.convert(usage, _UsualUsage)
    except msgspec.ValidationError:
        return _read_carefully(usage, has_output=has_output)
    read, output = usual.prompt_tokens, usual.completion_tokens
    if not read + output:
        return None
    # Gemini and xAI count thinking tokens only in the total.
    output = max(output, usual.total_tokens - read)
    details = usual.prompt_tokens_details
    if details is None:
        return Usage(read, 0, 0, output)
    cached = min(details.cached_tokens, read)
    written = details.cache_write_tokens and min(details.cache_write_tokens, read - cached)
    return Usage(read - cached - written, cached, written, output)


def _read_carefully(usage: Mapping[str, Any], *, has_output: bool) -> Usage | None:
    """Reads as `read_usage` does, but accepts missing and malformed fields."""
    read = _count(usage.get("prompt_tokens", usage.get("input_tokens")))
    output = _count(usage.get("completion_tokens", usage.get("output_tokens")))
    if output is None and not has_output:
        output = 0
    if read is None or output is None or not read + output:
        return None
    hit = _count(usage.get("cache_read_input_tokens")) or 0
    written = _count(usage.get("cache_creation_input_tokens")) or 0
    if hit + written > (read if "prompt_tokens" in usage else 0):
        # More than the whole cannot be a part of it: these are counted separately, as at Anthropic.
        return Usage(read, hit, written, output)
    stated = usage.get("prompt_tokens_details") or usage.get("input_tokens_details")
    details = stated if isinstance(stated, Mapping) else {}
    named = _count(details.get("cached_tokens", usage.get("cached_tokens")))
    cached = named or _count(usage.get("prompt_cache_hit_tokens")) or hit
    cached = min(cached, read)
    written = min(_count(details.get("cache_write_tokens")) or written, read - cached)
    total = _count(usage.get("total_tokens")) or 0
    return Usage(read - cached - written, cached, written, max(output, total - read))


def _count(value: object) -> int | None:
    """Returns the value if it is a number of tokens from 0 to 10^9; otherwise None."""
    return value if type(value) is int and 0 <= value <= MOST_TOKENS else None
