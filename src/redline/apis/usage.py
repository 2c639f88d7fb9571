"""The tokens that a reply says it used, by what each kind costs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Usage(NamedTuple):
    """Tokens of one call: no token is counted twice.

    input: neither cached nor written. cached: read from the provider's cache. written: put into it.
    """

    input: int = 0
    cached: int = 0
    written: int = 0
    output: int = 0

    @property
    def tokens(self) -> int:
        return self.input + self.cached + self.written + self.output

    @property
    def input_tokens(self) -> int:
        return self.tokens - self.output


def read_usage(usage: Mapping[str, Any] | None, *, has_output: bool = True) -> Usage | None:
    """What a reply's `usage` says; None where it does not say all, or nothing but zeros.

    has_output: False for embeddings, whose usage names no output.
    OpenAI's chat, completions, embeddings and responses count cached tokens as a part of the input;
    so does DeepSeek. Anthropic's messages count what is read from the cache, and what is put into
    it, beside the input.
    """
    if usage is None:
        return None
    read = _count(usage.get("prompt_tokens", usage.get("input_tokens")))
    output = _count(usage.get("completion_tokens", usage.get("output_tokens")))
    if output is None and not has_output:
        output = 0
    if read is None or output is None or not read + output:
        return None
    if "cache_read_input_tokens" in usage or "cache_creation_input_tokens" in usage:
        cached = _count(usage.get("cache_read_input_tokens")) or 0
        written = _count(usage.get("cache_creation_input_tokens")) or 0
        return Usage(read, cached, written, output)
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details")
    named = details.get("cached_tokens") if isinstance(details, Mapping) else None
    cached = _count(named) or _count(usage.get("prompt_cache_hit_tokens")) or 0
    cached = min(cached, read)
    # Gemini counts what the model thought only in the total.
    total = _count(usage.get("total_tokens")) or 0
    return Usage(read - cached, cached, 0, max(output, total - read))


def _count(value: object) -> int | None:
    """A number of tokens, None where a server sent something else."""
    return value if type(value) is int and value >= 0 else None
