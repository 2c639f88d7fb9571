"""Writes and reads the error object: `{"error": {"message", "type", "param", "code"}}`.

https://developers.openai.com/api/docs/guides/error-codes
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec


def error_body(
    message: str, kind: str, *, code: str | None = None, param: str | None = None
) -> dict[str, Any]:
    """Returns the body of an error response. kind: its `type`. param: the wrong parameter."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


class ErrorBody(NamedTuple):
    """The contents of an error body: its message, and all its codes and types in lower case."""

    message: str
    codes: frozenset[str] = frozenset()


class _Shape(msgspec.Struct):
    error: Any = None
    message: Any = None
    detail: Any = None
    code: Any = None
    type: Any = None


def read_error(body: bytes) -> ErrorBody:
    """Reads the message and codes of an error body in any usual format.

    The message of a body in an unknown format is the body itself.
    """
    try:
        parsed = msgspec.json.decode(body, type=_Shape | list[_Shape])
    except (ValueError, RecursionError):
        return ErrorBody(body.decode("utf-8", "replace"))
    # Gemini's OpenAI-compatible endpoint sends a list with one error:
    # https://github.com/n4ze3m/page-assist/issues/406
    if isinstance(parsed, list):
        parsed = parsed[0] if parsed else _Shape()
    error = parsed.error if parsed.error is not None else parsed.message or parsed.detail
    codes = frozenset(_codes({"code": parsed.code, "type": parsed.type}))
    if isinstance(error, dict):
        message, metadata = str(error.get("message", error)), error.get("metadata")
        # OpenRouter's own message is often only `Provider returned error`.
        if isinstance(metadata, dict) and (raw := metadata.get("raw")):
            message = f"{message}: {raw}"
        return ErrorBody(message, codes.union(_codes(error)))
    if not error and body.strip() not in (b"{}", b"[]"):
        # The body has none of the usual formats, so the reason may be in any field.
        return ErrorBody(body.decode("utf-8", "replace"), codes)
    return ErrorBody(str(error or ""), codes)


def _codes(error: dict[Any, Any]) -> Iterator[str]:
    """Yields all codes and types of an error, including those in its details and metadata."""
    for name in ("code", "type", "status", "error_code", "reason", "limit_source"):
        if isinstance(value := error.get(name), str | int):
            yield str(value).lower()
    for name in ("details", "metadata"):
        inner = error.get(name)
        for each in inner if isinstance(inner, list) else [inner]:
            if isinstance(each, dict):
                yield from _codes(each)
